"""Sweeps over the tune section of a pipeline file: Optuna draws settings, ASHA stops what lags, warm actors train.

  python -m jobs.tune --config configs/flights.yaml
  python -m jobs.tune --config configs/flights.yaml --set tune.trials=100 --set tune.time_budget_s=600
  python -m jobs.tune --config configs/flights.yaml --resume latest        # after a crash: no trial runs twice
  python -m jobs.tune --config configs/flights.yaml --retrain              # and registers the best as @challenger
  ray job submit --working-dir . -- python -m jobs.tune --config configs/flights.yaml

The report and best.yaml, an overlay for --config, go to the run's folder. A trial that fails or diverges ends alone; the exit
code is 2 where no trial ended well, or more than tune.max_failed of them failed.
"""

from rayloom.cli import arguments, command


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--resume", metavar="RUN", help="a run whose sweep was interrupted, or 'latest'; with the same config")
    parser.add_argument("--retrain", action="store_true", help="train the best settings on all but the test rows; register")
    parsed = parser.parse_args()
    with command(parsed) as run:
        from rayloom import stages
        from rayloom.stages import search

        search.check_sweep(run)
        dataset = stages.etl(run)
        found = search.tune(run, dataset, parsed.resume)
        if parsed.retrain:
            search.retrain(run, dataset, found)


if __name__ == "__main__":
    main()
