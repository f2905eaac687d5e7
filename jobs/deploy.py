"""Serves a registered model over HTTP after comparing its answers with the offline ones.

python -m jobs.deploy --config configs/flights.yaml                    # in the foreground, until Ctrl-C
python -m jobs.deploy --config configs/flights.yaml --model 3 --set serve.port=9000
ray job submit --working-dir . -- python -m jobs.deploy --config configs/flights.yaml    # stays deployed
"""

from rayloom.cli import arguments, command


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--model", default="@champion", help="alias or version (default: @champion)")
    parsed = parser.parse_args()
    with command(parsed, serves=True) as run:
        from rayloom import stages

        stages.serve(run, parsed.model)


if __name__ == "__main__":
    main()
