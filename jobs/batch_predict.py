"""A registered model's answers for a dataset version or for files, as Parquet parts: each row once, also after a crash.

  python -m jobs.batch_predict --config configs/flights.yaml                         # all rows of the newest dataset version
  python -m jobs.batch_predict --config configs/flights.yaml --split test --model 3 --keep carrier,flight
  python -m jobs.batch_predict --config configs/flights.yaml --input 'new/*.csv' --missing NA --output answers
  python -m jobs.batch_predict --config configs/flights.yaml --resume latest         # after a crash: parts that are there stay
  python -m jobs.batch_predict --config configs/flights.yaml --workers 4             # leaves a shared cluster's other CPUs free
  ray job submit --working-dir . -- python -m jobs.batch_predict --config configs/flights.yaml

The folder gets predictions/, failed/ (rows that cannot be predicted, with the reason) and at the end manifest.json. The exit
code is 2 where more rows fail than --max-failed allows. Files are .parquet, .csv (with a header) or .jsonl.
"""

from rayloom.cli import arguments, at_least, command


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--model", default="@champion", help="alias or version (default: @champion)")
    rows = parser.add_mutually_exclusive_group()
    splits = ["train", "validation", "test", "all"]
    rows.add_argument("--split", default="all", choices=splits, help="of the newest dataset version (default: all)")
    rows.add_argument("--input", metavar="PATTERN", help="predict these files instead; quote the pattern")
    folder = parser.add_mutually_exclusive_group()
    folder.add_argument("--output", metavar="FOLDER", help="a new folder (default: predictions/RUN below storage.root)")
    folder.add_argument("--resume", metavar="FOLDER", help="go on with this one, or with 'latest'; all else as it was")
    parser.add_argument("--keep", default="", metavar="COL,COL", help="input columns to have beside the answers")
    parser.add_argument("--missing", default="", metavar="CELL,CELL", help="CSV cells without a value, besides empty ones")
    parser.add_argument("--max-failed", default="5%", metavar="SHARE", help="of all rows; more end the run (default: 5%%)")
    most = "at most so many, a CPU each (default: all CPUs that are free)"
    parser.add_argument("--workers", type=at_least(1), metavar="N", help=most)
    parsed = parser.parse_args()
    with command(parsed) as run:
        from rayloom import stages

        names = ("split", "output", "resume", "keep", "missing", "max_failed", "workers")
        chosen = {name: getattr(parsed, name) for name in names}
        stages.predict_batch(run, stages.load(run, parsed.model), stages.BatchRequest(pattern=parsed.input, **chosen))


if __name__ == "__main__":
    main()
