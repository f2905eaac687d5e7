"""Trains as `jobs.train` does, with Spark's TorchDistributor: on RayDP's executors, or with train.local_mode beside the driver.

python -m jobs.train_spark --config configs/flights.yaml
python -m jobs.train_spark --config configs/flights.yaml --set train.local_mode=true
ray job submit --working-dir . -- python -m jobs.train_spark --config configs/flights.yaml
"""

from rayloom.cli import command, training_arguments


def main() -> None:
    with command(training_arguments(__doc__, "train.launcher=spark").parse_args()) as run:
        from rayloom import stages

        stages.check_room(run)
        stages.train(run, stages.etl(run))


if __name__ == "__main__":
    main()
