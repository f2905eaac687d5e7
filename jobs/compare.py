"""Trains the same config, seed and rows under each launcher, and reports what each costs beside a bare PyTorch loop.

  python -m jobs.compare --config configs/flights.yaml
  python -m jobs.compare --config configs/flights.yaml --launchers ray,torchrun --mllib lr --rounds 1
  python -m jobs.compare --config configs/flights.yaml --rounds 12 --set train.epochs=24     # narrower intervals
  ray job submit --working-dir . -- python -m jobs.compare --config configs/flights.yaml

Registers no model. The report goes to the run's folder and to MLflow; the last line printed is its figures as JSON.
"""

import json

from rayloom.cli import arguments, command


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--launchers", default="ray,torchrun,spark", help="with commas between (default: ray,torchrun,spark)")
    parser.add_argument(
        "--mllib", default="gbt", choices=["gbt", "lr", "none"], help="boosted trees or logistic regression (default: gbt)"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=3,
        metavar="N",
        help="launchers and the bare loop take turns N times (default: 3)",
    )
    parsed = parser.parse_args()
    if parsed.rounds < 1:
        parser.error(f"--rounds is {parsed.rounds}; at least 1")
    with command(parsed) as run:
        from rayloom.stages import etl
        from rayloom.stages.costs import compare

        costs = compare(run, etl(run), parsed.launchers.split(","), parsed.mllib, parsed.rounds)
    print(json.dumps(costs.line()), flush=True)


if __name__ == "__main__":
    main()
