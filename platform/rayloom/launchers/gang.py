"""Workers that stay: they train one run after the other, and start, import and meet once.

    gang = Gang(place, resources, settings, splits)
    for epoch in gang.epochs(pipeline, state, checkpoints): ...
    gang.close()

A run under a gang gives what it gives under `rayloom.launchers.ray_train` with as many workers. It is taken epoch by epoch, and
ends where no further one is taken. A gang that lost a worker, or whose run failed, starts anew with the next run.

`Solo` does the same with one worker in this process.
"""

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from torch.distributed import TCPStore

from rayloom import config, training
from rayloom.datasets import Encoded
from rayloom.errors import DivergedError, RayloomError, TrainingError
from rayloom.features import FeatureState
from rayloom.launchers import session
from rayloom.launchers.group import process_group
from rayloom.training import Epoch
from rayloom.worker import Shard, Worker

Splits = dict[str, Encoded]


class Solo:
    """One worker, in this process."""

    def __init__(self, splits: Splits, gpu: bool):
        self.shards = {name: encoded.shard(0, 1) for name, encoded in splits.items()}
        self.device = "cuda:0" if gpu else "cpu"

    def epochs(self, pipeline: config.Pipeline, state: FeatureState, checkpoints: Path) -> Iterator[Epoch]:
        """A run, epoch by epoch; raises as `rayloom.training.epochs` does."""
        return training.epochs(pipeline, state, Worker(0, 1, self.device, checkpoints), self.shards)

    def close(self) -> None:
        """Has nothing to give back."""


class Member:
    """A worker of a gang: an actor of Ray's."""

    def __init__(self, rank: int, world_size: int, gpu: bool, timeout_s: float):
        session.lead()
        self.rank, self.world_size, self.timeout_s = rank, world_size, timeout_s
        self.device = "cuda:0" if gpu else "cpu"
        self.store: TCPStore | None = None
        self.group = ExitStack()
        self.shards: dict[str, Shard] = {}
        self.run: Iterator[Epoch] = iter(())

    def listen(self) -> tuple[str, int]:
        """On rank 0: where the others find it."""
        host = ray.util.get_node_ip_address()
        self.store = TCPStore(host, 0, self.world_size, is_master=True, wait_for_workers=False)
        return host, self.store.port

    def join(self, host: str, port: int, splits: Splits) -> None:
        """Meets the others and takes its rows, once for all runs."""
        store = self.store or TCPStore(host, port, self.world_size, is_master=False)
        self.group.enter_context(process_group(self.rank, self.world_size, self.device, self.timeout_s, store))
        self.shards = {name: encoded.shard(self.rank, self.world_size) for name, encoded in splits.items()}

    def begin(self, pipeline: config.Pipeline, state: FeatureState, checkpoints: Path) -> None:
        worker = Worker(self.rank, self.world_size, self.device, checkpoints)
        self.run = training.epochs(pipeline, state, worker, self.shards)

    def advance(self) -> Epoch | None:
        """The run's next epoch; None where it is over."""
        return next(self.run, None)

    def leave(self) -> None:
        """Ends the run where it is. Its owner may have removed its checkpoints by now."""
        with suppress(FileNotFoundError):
            self.run.close()  # type: ignore[attr-defined]  # a generator


class Gang:
    """Workers in a placement group: one in each of its bundles."""

    def __init__(self, place: PlacementGroup | None, resources: dict[str, float], settings: config.Train, splits: Splits):
        self.place, self.resources, self.settings, self.splits = place, resources, settings, splits
        self.members: list[Any] = []

    def epochs(self, pipeline: config.Pipeline, state: FeatureState, checkpoints: Path) -> Iterator[Epoch]:
        """A run, epoch by epoch.

        Raises:
            RayloomError: as a rank raised it, or TrainingError with the rank that failed.
        """
        whole = False
        try:
            self._start()
            self._all("begin", pipeline, state, checkpoints)
            while (epoch := self._all("advance")[0]) is not None:
                yield epoch
                if epoch.is_last:
                    break
            self._all("leave")
            whole = True
        except GeneratorExit:  # the owner wants no further epoch
            self._all("leave")
            whole = True
            raise
        except DivergedError:  # on all ranks together: they are ready for the next run
            whole = True
            raise
        finally:
            if not whole:
                self.close()

    def _start(self) -> None:
        """Starts the workers, where they are not there."""
        if self.members:
            return
        size, own = self.settings.workers, dict(self.resources)
        cpus, gpus = own.pop("CPU", 0.0), own.pop("GPU", 0.0)
        for rank in range(size):
            where = PlacementGroupSchedulingStrategy(self.place, placement_group_bundle_index=rank)  # type: ignore[arg-type]
            actor = ray.remote(Member).options(num_cpus=cpus, num_gpus=gpus, resources=own, scheduling_strategy=where)
            self.members.append(actor.remote(rank, size, self.settings.gpu, self.settings.timeout_s))
        host, port = ray.get(self.members[0].listen.remote())
        self._all("join", host, port, self.splits)

    def _all(self, method: str, *given: Any) -> list[Any]:
        """What all ranks answer; they work at once. The first failure ends the wait: others may wait for the failed one."""
        answers = [getattr(member, method).remote(*given) for member in self.members]
        waiting, rank_of = list(answers), {answer: rank for rank, answer in enumerate(answers)}
        while waiting:
            [ready], waiting = ray.wait(waiting)
            try:
                ray.get(ready)
            except ray.exceptions.RayTaskError as error:
                raised = _as_raised(error, rank_of[ready])
                if isinstance(raised, DivergedError):
                    ray.wait(answers, num_returns=len(answers), timeout=self.settings.timeout_s)
                raise raised from None
            except ray.exceptions.RayActorError:
                rank = rank_of[ready]
                raise TrainingError(f"Training failed: rank {rank}: its process died (killed, or out of memory).") from None
        return ray.get(answers)

    def close(self) -> None:
        """Ends the workers."""
        members, self.members = self.members, []
        for member in members:
            with suppress(Exception):
                ray.kill(member)


def _as_raised(error: ray.exceptions.RayTaskError, rank: int) -> RayloomError:
    cause = error.cause
    if isinstance(cause, RayloomError):
        return cause
    text = next(iter(str(cause).strip().splitlines()), "")
    return TrainingError(f"Training failed: rank {rank}: {type(cause).__name__}: {text:.400}")
