"""Scores a registered model on the test split of the data it was trained on; moves @champion if the gate agrees.

  python -m jobs.evaluate --config configs/flights.yaml
  python -m jobs.evaluate --config configs/flights.yaml --model 3 --set evaluate.gate.at_least=0.68
  python -m jobs.evaluate --config configs/flights.yaml --dry-run --set 'evaluate.slices=[carrier, origin]'

Exit code 3: the model is not good enough, and @champion stays where it was. With --dry-run it stays where it was in any case,
and MLflow hears of nothing.
"""

from rayloom.cli import arguments, command


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--model", default="@challenger", help="alias or version (default: @challenger)")
    parser.add_argument("--dry-run", action="store_true", help="measure and print, but record nothing and move no alias")
    parsed = parser.parse_args()
    with command(parsed) as run:
        from rayloom import datasets, stages

        trained = stages.load(run, parsed.model)
        stages.evaluate(run, datasets.get(run.pipeline, trained.version.dataset), trained, parsed.dry_run)


if __name__ == "__main__":
    main()
