"""Peer `bare`: a plain PyTorch DDP loop over tensors in memory, which says how fast training can be here.

    python -m torch.distributed.run --standalone --nproc-per-node 2 -m rayloom.costs.bare FOLDER

Its steps call torch alone. Same model, rows, batch, precision and clipping as the launchers' loop; no checkpoints, validation,
balancing, accumulation or look at the loss.
"""

import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR

from rayloom import config, models, parallel, training
from rayloom.costs.table import Cost, overall
from rayloom.errors import TrainingError
from rayloom.features import FeatureState
from rayloom.launchers import handover
from rayloom.worker import Arrays, Shard, Worker


def measure(pipeline: config.Pipeline, state: FeatureState, train: Arrays, folder: Path) -> Cost:
    """Runs the loop on `train.workers` processes of this machine, outside of Ray, and returns its row.

    Args:
        train: the training split.
        folder: an empty one, for what the processes read and write.

    Raises:
        TrainingError: a process failed.
    """
    handover.write(folder, pipeline, state, {"train": train}, folder)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={pipeline.train.workers}"]
    env = {**os.environ, "OMP_NUM_THREADS": str(pipeline.train.cpus)}
    done = subprocess.run([*torchrun, "-m", __name__, str(folder)], env=env, text=True, capture_output=True)
    if done.returncode:
        said = next((line for line in done.stderr.splitlines() if "Error: " in line), "see its own run")
        raise TrainingError(f"The bare PyTorch loop ended with exit code {done.returncode}: {said:.300}.")
    found = json.loads((folder / "bare.json").read_text())
    return Cost(
        "bare",
        "plain PyTorch DDP",
        samples_per_s=overall(found["samples_per_s"]),
        peak_mb=found["peak_mb"],
        wire_bytes=found["wire_bytes"],
        losses=found["losses"],
    )


def main() -> None:
    """One rank."""
    folder, rank, world_size = Path(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    job = handover.read(folder)
    sys.path += [place for place in job.modules if place not in sys.path]
    device = f"cuda:{os.environ['LOCAL_RANK']}" if job.pipeline.train.gpu else "cpu"
    if job.pipeline.train.gpu:
        torch.cuda.set_device(device)
    if world_size > 1:
        distributed.init_process_group("nccl" if job.pipeline.train.gpu else "gloo")
    training.prepare(job.pipeline)  # the same threads, seed and kernels
    model = models.build(job.pipeline.model, job.state).to(device)
    models.load_pretrained(model, job.pipeline.model)
    found = run(model, job.shards(rank, world_size)["train"], job.pipeline.train, device, world_size)
    if rank == 0:
        peak = training.peak_bytes(Worker(rank, world_size, device, folder)) / 2**20
        (folder / "bare.json").write_text(json.dumps({**found, "peak_mb": peak}))
    if world_size > 1:
        distributed.destroy_process_group()


def run(network: nn.Module, shard: Shard, settings: config.Train, device: str, world_size: int) -> dict:
    """Trains all epochs; returns samples/s over all ranks and this rank's loss, by epoch, and bytes sent in a step."""
    data = {name: torch.tensor(values, device=device) for name, values in shard.arrays.items()}
    rows, steps = len(shard.arrays["label"]), max(1, -(-shard.total // settings.batch_size))
    model = DistributedDataParallel(network, gradient_as_bucket_view=True) if world_size > 1 else network
    weights, decay = model.parameters(), settings.weight_decay
    if settings.optimizer == "adamw":
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(weights, lr=settings.lr, weight_decay=decay, fused=True)
    else:
        optimizer = torch.optim.SGD(weights, lr=settings.lr, weight_decay=decay)
    schedule = CosineAnnealingLR(optimizer, steps * settings.epochs)
    low = settings.precision != "fp32"
    autocast = torch.autocast(torch.device(device).type, torch.bfloat16) if low else nullcontext()
    speeds, losses = [], []
    for _ in range(settings.epochs):
        total = torch.zeros((), device=device)
        began = time.perf_counter()
        for part in torch.randperm(rows).tensor_split(steps):
            there = part.to(device)
            batch = {name: values.index_select(0, there) for name, values in data.items()}
            with autocast:
                logits = model(batch)
            loss = mean_loss(logits.float(), batch["label"])
            loss.backward()
            if settings.clip_norm:
                nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            schedule.step()
            total += loss.detach()
        losses.append(float(total) / steps)  # waits for the device
        speeds.append(shard.total / (time.perf_counter() - began))
    return {"samples_per_s": speeds, "losses": losses, "wire_bytes": parallel.wire_bytes(network, world_size)}


def mean_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Of a batch: logits (n,) for two classes, (n, classes) for more."""
    if logits.dim() == 1:
        return binary_cross_entropy_with_logits(logits, labels.float())
    return cross_entropy(logits, labels.long())


if __name__ == "__main__":
    main()
