"""Trains on the dataset version of a pipeline file (built first where it is not there) and registers @challenger.

python -m jobs.train --config configs/flights.yaml
python -m jobs.train --config configs/flights.yaml --set train.lr=0.01 --set seed=3
ray job submit --working-dir . -- python -m jobs.train --config configs/flights.yaml
"""

from rayloom.cli import arguments, command


def main() -> None:
    with command(arguments(__doc__).parse_args()) as run:
        from rayloom import stages

        stages.check_room(run)
        stages.train(run, stages.etl(run))


if __name__ == "__main__":
    main()
