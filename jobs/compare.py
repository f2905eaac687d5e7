"""Trains the same config, seed and dataset version under each launcher, and reports what each costs beside a bare PyTorch loop.

  python -m jobs.compare --config configs/flights.yaml
  python -m jobs.compare --config configs/flights.yaml --launchers ray,torchrun --mllib lr --seconds 60
  python -m jobs.compare --config configs/flights.yaml --rounds 3      # on a joined cluster: speeds of three runs each
  ray job submit --working-dir . -- python -m jobs.compare --config configs/flights.yaml

Speeds are of whole runs, and then, where all workers are on this machine's CPUs, of turns that ray, torchrun and the bare loop
take by the second: only those tell a few per cent apart. Registers no model. The report goes to the run's folder and to MLflow;
the last line printed is its figures as JSON.
"""

import json

from rayloom.cli import arguments, at_least, command


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--launchers", default="ray,torchrun,spark", help="with commas between (default: ray,torchrun,spark)")
    trees = "boosted trees or logistic regression (default: gbt)"
    parser.add_argument("--mllib", default="gbt", choices=["gbt", "lr", "none"], help=trees)
    parser.add_argument("--rounds", type=at_least(1), default=1, metavar="N", help="whole runs of each (default: 1)")
    parser.add_argument("--seconds", type=float, default=300, metavar="S", help="of turns; 0 for none (default: 300)")
    parsed = parser.parse_args()
    if not 0 <= parsed.seconds <= 86400:
        parser.error(f"--seconds is {parsed.seconds:g}; 0 to 86400")
    with command(parsed) as run:
        from rayloom.stages import etl
        from rayloom.stages.costs import compare

        costs = compare(run, etl(run), parsed.launchers.split(","), parsed.mllib, parsed.rounds, parsed.seconds)
    print(json.dumps(costs.line()), flush=True)


if __name__ == "__main__":
    main()
