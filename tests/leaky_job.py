"""A job that leaves a process behind, for tests/system/test_pipeline.py."""

import subprocess

from rayloom.cli import arguments, command


def main() -> None:
    with command(arguments(__doc__).parse_args()):
        from rayloom import cluster  # Ray, which is not to be imported before the command is set up

        cluster.LEFTOVER_SECONDS = 6.0  # for what never ends
        subprocess.Popen(["sleep", "120"], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
