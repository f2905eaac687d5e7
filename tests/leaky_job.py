"""A job that says what is on its cluster after Ray Data was, and leaves a process behind; for tests/system/test_pipeline.py."""

import os
import subprocess

from rayloom import environment
from rayloom.cli import arguments, command


def main() -> None:
    with command(arguments(__doc__).parse_args()):
        import ray  # which is not to be imported before the command is set up

        from rayloom import cluster

        ray.data.range(3).map_batches(lambda batch: batch).materialize()
        print("actors:", *(actor["ActorClassName"] for actor in ray._private.state.actors().values()))
        running = environment.marked_processes(os.environ[environment.MARK])
        print("running:", *(process.cmdline() for process in running))
        cluster.LEFTOVER_SECONDS = 6.0  # for what never ends
        subprocess.Popen(["sleep", "120"], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
