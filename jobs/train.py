"""Trains on the dataset version of a pipeline file (built first where it is not there) and registers @challenger.

python -m jobs.train --config configs/flights.yaml
python -m jobs.train --config configs/flights.yaml --set train.lr=0.01 --set seed=3
python -m jobs.train --config configs/flights.yaml --launcher inline --set train.workers=1
ray job submit --working-dir . -- python -m jobs.train --config configs/flights.yaml
"""

from rayloom.cli import command, training_arguments


def main() -> None:
    with command(training_arguments(__doc__).parse_args()) as run:
        from rayloom import stages

        stages.check_room(run)
        stages.train(run, stages.etl(run))


if __name__ == "__main__":
    main()
