"""From raw records to a served model: ETL, training, evaluation, registry, deployment, and a check over HTTP.

  python -m jobs.pipeline --config configs/flights.yaml
  python -m jobs.pipeline --config configs/flights.yaml --set train.epochs=8 --set train.lr=1e-3
  python -m jobs.pipeline --config configs/flights.yaml --set tune.enabled=true    # the best of a sweep instead
  ray job submit --working-dir . -- python -m jobs.pipeline --config configs/flights.yaml

Without RAY_ADDRESS it starts a Ray cluster of its own and leaves nothing running. On a cluster that it joins, the
application stays deployed.
"""

from rayloom.cli import command, training_arguments


def main() -> None:
    with command(training_arguments(__doc__).parse_args(), serves=True) as run:
        from rayloom import stages

        stages.check_room(run)
        dataset = stages.etl(run)
        trained = stages.train_best(run, dataset)
        probabilities = stages.evaluate(run, dataset, trained)
        stages.deploy(run, trained, dataset, probabilities)


if __name__ == "__main__":
    main()
