"""Trains as `jobs.train` does, with plain PyTorch DDP: torchrun's agent starts the workers, one agent a node.

python -m jobs.train_ddp --config configs/flights.yaml
python -m jobs.train_ddp --config configs/flights.yaml --set train.workers=8 --set train.gpu=true
ray job submit --working-dir . -- python -m jobs.train_ddp --config configs/flights.yaml
"""

from rayloom.cli import command, training_arguments


def main() -> None:
    with command(training_arguments(__doc__, "train.launcher=torchrun").parse_args()) as run:
        from rayloom import stages

        stages.check_room(run)
        stages.train(run, stages.etl(run))


if __name__ == "__main__":
    main()
