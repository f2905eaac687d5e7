"""The flights ETL, and ten times the flights, as Rayloom and as plain PySpark; and both hand-offs from Spark to Ray Data.

  python -m benchmarks.etl
  python -m benchmarks.etl --times 3 --handoff-rows 1000000

Each side runs in a process of its own, one after the other, on the same plain CSV files. Seconds count from a ready Spark
session to the last byte on disk and Spark stopped; Rayloom's also contain what comes before the session (reading the CSV files)
and after it (reading all rows back, comparing checksums, statistics). Memory is the peak over all of a side's processes, of
what only they hold (USS). Ten times the flights are the same flights in ten years, so that no key occurs twice. The last line
is JSON:
{rayloom: {seconds, rows_per_s, peak_mb, …}, pyspark: {…}, ratio, x10: {rayloom, pyspark, ratio}, session_start_s,
handoff: {memory_s, parquet_s, write_s}}.

Of the hand-offs, memory_s is RayDP's from_spark, parquet_s is Ray Data reading the Parquet, and write_s is Spark writing it,
which is paid for either way: a dataset version is Parquet.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from contextlib import suppress
from pathlib import Path

import psutil

from rayloom import config
from rayloom.places import locate


def flights(folder: Path, times: int) -> Path:
    """A CSV file of all flights, `times` over: in 2013, 2014 and so on."""
    source = config.load(["configs/flights.yaml"]).etl.sources["flights"]
    with zipfile.ZipFile(locate(source.path, "etl.sources.flights.path")) as archive:
        header, *lines = archive.read("flights.csv").decode().splitlines()
    hour = header.split(",").index("time_hour")
    path = folder / f"flights-{times}.csv"
    with path.open("w") as file:
        file.write(header + "\n")
        for year in range(2013, 2013 + times):
            for line in lines:
                cells = line.split(",")
                cells[0], cells[hour] = str(year), cells[hour].replace("2013", str(year))
                file.write(",".join(cells) + "\n")
    return path


class Memory(threading.Thread):
    """Samples, until it is stopped, what a process and all below it hold and share with nobody, in MiB; keeps the peak."""

    def __init__(self, process: psutil.Process):
        super().__init__(daemon=True)
        self.process, self.peak, self.ended = process, 0.0, threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.5):
            total = 0
            with suppress(psutil.Error):
                for one in [self.process, *self.process.children(recursive=True)]:
                    with suppress(psutil.Error):
                        total += one.memory_full_info().uss
            self.peak = max(self.peak, total / 2**20)


def measured(command: list[str]) -> dict:
    """Runs a side; its last line of output, JSON, with the peak memory of its processes."""
    with subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True) as process:
        memory = Memory(psutil.Process(process.pid))
        memory.start()
        output, _ = process.communicate()
        memory.ended.set()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{output}")
    return {**json.loads(output.splitlines()[-1]), "peak_mb": round(memory.peak)}


def compare(path: Path, root: Path) -> dict:
    """Both sides on one file of flights."""
    settings = [f"etl.sources.flights.path={path}", "etl.executor_cores=2"]
    peer = measured(["benchmarks.plain_pyspark", str(root / f"peer-{path.stem}"), *settings])
    ours = measured(["benchmarks.etl", "--side", str(root / f"ours-{path.stem}"), *settings])
    assert (ours["rows_in"], ours["accepted"]) == (peer["rows_in"], peer["accepted"])
    for side in (ours, peer):
        side["rows_per_s"] = round(side["rows_in"] / side["seconds"])
        side.update({name: round(value, 2) for name, value in side.items() if isinstance(value, float)})
    return {"rayloom": ours, "pyspark": peer, "ratio": round(ours["seconds"] / peer["seconds"], 3)}


def rayloom(root: str, settings: list[str]) -> None:
    """Rayloom's side: the job `jobs.etl`; its figures come from the run's summary."""
    command = [sys.executable, "-m", "jobs.etl", "--set", f"storage.root={root}"]
    for setting in settings:
        command += ["--set", setting]
    subprocess.run(command, check=True, stdout=sys.stderr)
    summary = json.loads((Path(root) / "runs" / "latest" / "summary.json").read_text())
    [stage] = [stage for stage in summary["stages"] if stage["name"] == "etl"]
    start = stage["parts"]["spark start"]
    figures = {"session_start_s": start, "seconds": stage["seconds"] - start, "parts": stage["parts"]}
    print(json.dumps({**figures, "rows_in": summary["dataset"]["rows_in"], "accepted": summary["dataset"]["accepted"]}))


def handoff(rows: int, root: Path, repeats: int = 3) -> dict[str, float]:
    """Median seconds of both hand-offs and of the write, for `rows` rows of LONG, DOUBLE and STRING, in one session."""
    import logging

    from rayloom import environment

    environment.prepare()
    import ray.data
    from pyspark.sql import functions as F

    from rayloom import cluster
    from rayloom.etl import handoff as handoffs
    from rayloom.etl import session

    pipeline = config.load(["configs/flights.yaml"], ["etl.handoff=memory", f"storage.root={root}"])
    seconds: dict[str, list[float]] = {"memory_s": [], "parquet_s": [], "write_s": []}
    with cluster.connect(root), session.spark_session(pipeline, "rayloom-benchmark", root / "spark.log") as spark:
        logging.getLogger("ray").setLevel(logging.ERROR)
        frame = spark.range(rows).select("id", F.rand(1).alias("x"), F.col("id").cast("string").alias("text"))
        for turn in range(repeats + 1):  # the first warms both up
            times = [time.perf_counter()]
            frame.write.parquet((root / f"turn-{turn}").as_uri())
            times.append(time.perf_counter())
            assert handoffs.from_spark(frame).count() == rows
            times.append(time.perf_counter())
            assert ray.data.read_parquet(str(root / f"turn-{turn}")).materialize().count() == rows
            times.append(time.perf_counter())
            for name, began, ended in zip(("write_s", "memory_s", "parquet_s"), times, times[1:], strict=False):
                seconds[name] += [ended - began] if turn else []
    return {name: round(sorted(values)[len(values) // 2], 2) for name, values in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=10, metavar="N", help="flights in the larger file (default: 10 times)")
    parser.add_argument("--handoff-rows", type=int, default=5_000_000, metavar="N", help="rows of the hand-offs (5,000,000)")
    parser.add_argument("--side", nargs="+", help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.side:
        rayloom(parsed.side[0], parsed.side[1:])
        return
    with tempfile.TemporaryDirectory(prefix="rayloom-etl-") as folder:
        root = Path(folder)
        once, more = (compare(flights(root, times), root) for times in (1, parsed.times))
        handoffs = handoff(parsed.handoff_rows, root)
    start = once["rayloom"]["session_start_s"]
    print(json.dumps({**once, f"x{parsed.times}": more, "session_start_s": start, "handoff": handoffs}), flush=True)


if __name__ == "__main__":
    main()
