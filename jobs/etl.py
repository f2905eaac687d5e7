"""Builds the dataset version that a pipeline file describes, or finds it.

python -m jobs.etl --config configs/flights.yaml
ray job submit --working-dir . -- python -m jobs.etl --config configs/flights.yaml --set etl.executors=4
"""

from rayloom.cli import arguments, command


def main() -> None:
    with command(arguments(__doc__).parse_args()) as run:
        from rayloom import stages

        stages.etl(run)


if __name__ == "__main__":
    main()
