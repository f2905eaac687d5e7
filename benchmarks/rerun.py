"""What a second run costs beside the first, stage by stage: the pipeline on all flights, twice, in an empty workspace.

  python -m benchmarks.rerun
  python -m benchmarks.rerun --config configs/flights.yaml --set train.epochs=1

The first run builds the dataset version with Spark; the second finds it. Installing is not counted. The last line is JSON:
{first_s, second_s, ratio, first: {stage: seconds}, second: {stage: seconds}, same_weights}.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rayloom.cli import arguments


def run(given: list[str], root: Path) -> tuple[float, dict, str]:
    """One pipeline in its own process: wall seconds, its summary, and the sha256 of the weights it made."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "jobs.pipeline", *given, "--set", f"storage.root={root}"], check=True)
    seconds = time.perf_counter() - began
    latest = root / "runs" / "latest"
    weights = (latest / "bundle" / "model.safetensors").read_bytes()
    return seconds, json.loads((latest / "summary.json").read_text()), hashlib.sha256(weights).hexdigest()


def main() -> None:
    arguments(__doc__).parse_args()  # answers --help and refuses what jobs.pipeline would refuse
    with tempfile.TemporaryDirectory(prefix="rayloom-rerun-") as root:
        (first, one, weights), (second, two, again) = (run(sys.argv[1:], Path(root)) for _ in range(2))
    figures = {"first_s": round(first, 1), "second_s": round(second, 1), "ratio": round(second / first, 3)}
    stages = {
        name: {stage["name"]: stage["seconds"] for stage in made["stages"]} for name, made in [("first", one), ("second", two)]
    }
    print(json.dumps({**figures, **stages, "same_weights": weights == again}))


if __name__ == "__main__":
    main()
