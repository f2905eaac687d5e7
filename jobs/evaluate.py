"""Scores a registered model on the test split of the data it was trained on; moves @champion if the gate agrees.

  python -m jobs.evaluate --config configs/flights.yaml
  python -m jobs.evaluate --config configs/flights.yaml --model 3 --set evaluate.gate.at_least=0.68

Exit code 3: the model is not good enough, and @champion stays where it was.
"""

from rayloom.cli import arguments, command


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--model", default="@challenger", help="alias or version (default: @challenger)")
    parsed = parser.parse_args()
    with command(parsed) as run:
        from rayloom import datasets, stages

        trained = stages.load(run, parsed.model)
        stages.evaluate(run, datasets.get(run.pipeline, trained.version.dataset), trained)


if __name__ == "__main__":
    main()
