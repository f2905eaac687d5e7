"""What went wrong in a worker, noted in a file by its rank: the launcher tells it in one sentence, whatever started the worker.

<run>/failures/rank-1.json    {"rank", "kind": the exception's type, "text", "final": whether another try would end alike}
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from rayloom import errors
from rayloom.errors import ConfigError, DataError, DivergedError, RayloomError, TrainingError

FINAL = (ConfigError, DataError, DivergedError)
"""Errors that the same data and settings give again: a worker notes them and ends, and is not started anew."""

COLLATERAL = re.compile(r"connection (closed|reset|refused)|broken pipe|timed? ?out|peer|socket|ProcessGroup|NCCL", re.I)
"""What ranks say that waited for one that failed."""

LONGEST = 600
"""Characters of an exception's text that a sentence repeats."""


@dataclass(frozen=True)
class Failure:
    """What ended a worker."""

    rank: int
    kind: str
    text: str
    final: bool

    def sentence(self) -> str:
        return f"rank {self.rank}: {self.kind}: {self.text}"


@contextmanager
def noted(folder: Path, rank: int) -> Iterator[None]:
    """Notes what ends the block. What is not final goes on to the launcher, which may start the workers again."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"rank-{rank}.json"
    file.unlink(missing_ok=True)
    try:
        yield
    except Exception as error:
        final = isinstance(error, FINAL)
        lines = str(error).strip().splitlines() or [""]
        text = str(error) if isinstance(error, RayloomError) else lines[0 if len(lines[0]) > 20 else -1]
        file.write_text(json.dumps(asdict(Failure(rank, type(error).__name__, text[:LONGEST], final))))
        if not final:
            raise


def found(folder: Path) -> list[Failure]:
    """All noted failures, by rank."""
    files = sorted(folder.glob("rank-*.json"), key=lambda file: int(file.stem.removeprefix("rank-")))
    return [Failure(**json.loads(file.read_text())) for file in files]


def raise_final(folder: Path) -> None:
    """Raises what a worker noted and ended with, where one did, as it was raised there."""
    for failure in found(folder):
        if failure.final:
            raise getattr(errors, failure.kind)(failure.text)


def raise_first(folder: Path, otherwise: str) -> NoReturn:
    """Raises a TrainingError that names the rank at fault: not those that only lost their connection to it.

    Args:
        otherwise: what the launcher knows, for a worker that had no time to note anything.
    """
    raise_final(folder)
    own = [failure for failure in found(folder) if failure.kind == "TrainingError" or not COLLATERAL.search(failure.text)]
    cause = own[0].sentence() if own else otherwise
    raise TrainingError(f"Training failed: {cause.rstrip('.')}. The workers' logs tell more.")
