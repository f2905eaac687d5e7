"""PyTorch's elastic agent in a Ray task: starts a node's training processes, and starts all again where one fails."""

import os
import signal
import sys
from pathlib import Path

import ray

from rayloom import tcp


def run(job: Path, run: str, nodes: int, workers: int, max_failures: int, endpoint: str) -> str | None:
    """Runs `workers` processes of `rayloom.launchers.process` until they end.

    Args:
        job: the folder that `rayloom.launchers.handover` wrote; logs go beside it.
        nodes: how many agents there are.
        max_failures: how often a failed group is started again.
        endpoint: 'host:port' of the rendezvous; '' for one node alone.

    Returns:
        None where all ended well, else what ended the first that did not.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ["OMP_NUM_THREADS"] = "1"  # the loop sets its own number; this keeps imports from starting threads on all CPUs
    logs = job.parent / "torchrun"
    logs.mkdir(exist_ok=True)
    settings = LaunchConfig(
        min_nodes=nodes,
        max_nodes=nodes,
        nproc_per_node=workers,
        run_id=run,
        rdzv_backend="c10d",
        rdzv_endpoint=endpoint or "localhost:0",
        rdzv_configs={"timeout": 300},
        local_addr=ray.util.get_node_ip_address() if nodes > 1 else "localhost",
        max_restarts=max_failures,
        monitor_interval=0.1,
        logs_specs=DefaultLogsSpecs(log_dir=str(logs), redirects=Std.ALL),
    )
    try:
        elastic_launch(settings, sys.executable)("-m", "rayloom.launchers.process", str(job))
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        return f"rank {rank} {_ending(failure.exitcode)}"
    return None


def _ending(code: int) -> str:
    """How a process ended, by its exit code; negative ones are signals."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def endpoint() -> str:
    """'host:port' of a free port of this node."""
    host = ray.util.get_node_ip_address()
    return f"{host}:{tcp.free_ports(1, host)[0]}"
