"""64 writers at once on a fresh SQLite store: through the one recorder, and each with an MLflow client of its own.

  python -m benchmarks.recorder
  python -m benchmarks.recorder --writers 16 --points 50

The writers are threads in four processes. Each opens a run, sends its points one by one, and each of them twice, and closes
the run. The naive writers log each point once, as MLflow's documentation has it, and stop at their first error: on a fresh
store, and (naive_prepared) on one whose tables and experiment were made before. Starting processes and importing MLflow are
not counted; making a fresh store's tables is. The last line is JSON: {writers, points, runs, stored, errors, seconds, sent,
naive: {runs, stored, errors, seconds}, naive_prepared: {...}}, `points` being what each writer has, and `stored` all that the
database holds.
"""

import argparse
import json
import logging
import sqlite3
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rayloom import config, environment

CONFIG = Path(__file__).parents[1] / "configs" / "flights.yaml"
PROCESSES = 4


def curve(count: int) -> list[tuple[str, float, int, int]]:
    return [("val_loss", 1 / (step + 1), step, 1_700_000_000_000 + step) for step in range(count)]


def count(database: Path) -> dict[str, int]:
    """Runs below a parent or alone, and all rows of all curves, straight from the database."""
    with closing(sqlite3.connect(database)) as store:
        try:
            runs = store.execute("SELECT count(*) FROM runs WHERE name LIKE 'trial %'").fetchone()[0]
            return {"runs": runs, "stored": store.execute("SELECT count(*) FROM metrics").fetchone()[0]}
        except sqlite3.OperationalError:
            return {"runs": 0, "stored": 0}


def shares(writers: int) -> list[list[int]]:
    """The writers of each process."""
    return [list(range(writers))[part::PROCESSES] for part in range(min(PROCESSES, writers))]


def figures(root: Path, errors: list[str], seconds: float) -> dict[str, Any]:
    print(*errors[:3], sep="\n", file=sys.stderr)
    return {**count(root / "mlflow.db"), "errors": len(errors), "seconds": round(seconds, 2)}


def through_recorder(root: Path, writers: int, points: int) -> dict[str, Any]:
    """All writers as Ray tasks that call the one actor."""
    import ray

    from rayloom import cluster, recorder

    def write(actor: Any, parent: str, index: int) -> int:
        run = ray.get(actor.open.remote(f"trial {index}", parent, {"index": index}))
        calls = [actor.log.remote(run, [point]) for point in curve(points) for _ in range(2)]
        ray.get([*calls, actor.close.remote(run)])
        return len(calls)

    @ray.remote(num_cpus=0, max_retries=0)
    def writers_of(actor: Any, parent: str, indices: list[int]) -> tuple[int, list[str]]:
        with ThreadPoolExecutor(len(indices)) as threads:
            tasks = [threads.submit(write, actor, parent, index) for index in indices]
        errors = [str(error).splitlines()[-1] for task in tasks if (error := task.exception())]
        return sum(task.result() for task in tasks if not task.exception()), errors

    pipeline = config.load([CONFIG], [f"storage.root={root}"])
    with cluster.connect(root):
        actor = recorder.start(pipeline)
        ray.get(actor.flush.remote())  # its process has started
        began = time.perf_counter()
        parent = ray.get(actor.open.remote("sweep"))
        ended = ray.get([writers_of.remote(actor, parent, indices) for indices in shares(writers)])
        recorder.stop(actor)
        seconds = time.perf_counter() - began
    return {
        **figures(root, [error for _, errors in ended for error in errors], seconds),
        "sent": sum(sent for sent, _ in ended),
    }


def naive(uri: str, indices: list[int], points: int) -> list[str]:
    """The errors of these writers, which are threads of one process; each stops at its first."""
    from mlflow import MlflowClient

    def write(index: int) -> str | None:
        try:
            client = MlflowClient(uri)
            experiment = client.get_experiment_by_name("naive")
            key = experiment.experiment_id if experiment else client.create_experiment("naive")
            run = client.create_run(key, run_name=f"trial {index}").info.run_id
            client.log_param(run, "index", index)
            for name, value, step, timestamp in curve(points):
                client.log_metric(run, name, value, timestamp, step)
            client.set_terminated(run)
        except Exception as error:
            return f"{type(error).__name__}: {str(error).splitlines()[0]:.160}"
        return None

    with ThreadPoolExecutor(len(indices)) as threads:
        return [error for error in threads.map(write, indices) if error]


def warm(_: int) -> None:
    import mlflow  # noqa: F401

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    time.sleep(0.5)  # so that no process takes two of these calls


def prepared(root: Path, writers: int, points: int) -> dict[str, Any]:
    """As `without_recorder`, on a store with tables and an experiment."""
    from mlflow import MlflowClient

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    MlflowClient(f"sqlite:///{root}/mlflow.db").create_experiment("naive")
    return without_recorder(root, writers, points)


def without_recorder(root: Path, writers: int, points: int) -> dict[str, Any]:
    uri = f"sqlite:///{root}/mlflow.db"
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as processes:
        list(processes.map(warm, range(PROCESSES)))
        began = time.perf_counter()
        tasks = [processes.submit(naive, uri, indices, points) for indices in shares(writers)]
        errors = [error for task in tasks for error in task.result()]
        seconds = time.perf_counter() - began
    return figures(root, errors, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writers", type=int, default=64)
    parser.add_argument("--points", type=int, default=50)
    given = parser.parse_args()
    environment.prepare()
    found = {}
    for name, way in {"naive": without_recorder, "naive_prepared": prepared, "recorder": through_recorder}.items():
        with tempfile.TemporaryDirectory(prefix="rayloom-recorder-") as root:
            found[name] = way(Path(root), given.writers, given.points)
    print(json.dumps({"writers": given.writers, "points": given.points, **found.pop("recorder"), **found}))


if __name__ == "__main__":
    main()
