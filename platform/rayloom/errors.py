"""Every error that a user can meet.

    RayloomError                 a sentence: what is wrong, where, and what to do; ends the command with exit code 2
    ├── ConfigError              the pipeline file, an overlay or a --set (place: file and line)
    ├── SourceError              an input file is missing, unreadable or not as declared
    ├── DataError                the records break a promise: a join lost rows, a split overlaps, hand-offs differ
    │   └── LeakError            one feature alone tells the label: it was not known in time
    ├── ResourceError            CPUs, GPUs, ports, disk or the cluster itself cannot be had
    ├── TrainingError            a worker failed or hangs
    │   └── DivergedError        the loss is not finite
    ├── BundleError              a bundle is incomplete, altered, or does not give its golden answers
    ├── RegistryError            the tracking server, a model, a version or an alias is not there
    ├── ServingError             the application did not become ready, or answers differ from offline ones
    ├── GateError                the model is sound but not good enough for @champion; exit code 3
    └── LeftoverError            something of ours outlived the command; exit code 4

    InvalidRecords               a request body that cannot be scored: its own tree, since it answers a client, not a user
    ├── Overloaded               a request that comes when too many are waiting, or that waits too long
    └── Refused                  a request without a key that may ask now (rayloom.serving.keys)

An error's text is one sentence or two on one line: the first says what was found and where, the second what to do.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches


class RayloomError(Exception):
    """What went wrong, where, and what to do about it, in one line."""

    exit_code = 2


class ConfigError(RayloomError):
    """The pipeline file, an overlay or a --set is wrong."""


class SourceError(RayloomError):
    """An input file is missing, unreadable or not as declared."""


class DataError(RayloomError):
    """The records break a promise that the pipeline file makes about them."""


class LeakError(DataError):
    """A single feature separates the label almost perfectly."""


class ResourceError(RayloomError):
    """CPUs, GPUs, a port, a lock or the cluster itself cannot be had."""


class TrainingError(RayloomError):
    """A training worker failed or hangs."""


class DivergedError(TrainingError):
    """The loss stopped being finite."""


class BundleError(RayloomError):
    """A bundle is incomplete, altered, or does not reproduce its golden answers."""


class RegistryError(RayloomError):
    """The tracking server, a registered model, a version or an alias cannot be found."""


class ServingError(RayloomError):
    """The application did not become ready, or its answers differ from the offline ones."""


class GateError(RayloomError):
    """The model did not reach what the gate asks of a champion."""

    exit_code = 3


class LeftoverError(RayloomError):
    """A process, placement group, actor or port of ours outlived the command."""

    exit_code = 4


@dataclass
class InvalidRecords(Exception):
    """A request body that cannot be scored.

    Attributes:
        status: HTTP status, 400 (not a JSON list of objects), 413 (too large), 415 (another type) or 422 (a value is not
            acceptable).
        message: what was found and what is expected.
        row: index of the record in the request, counted from 0, or None where no record is at fault.
        field: name of the field at fault, or None.
    """

    status: int
    message: str
    row: int | None = None
    field: str | None = None

    def __str__(self) -> str:
        return self.message

    def body(self) -> dict:
        """The JSON error that the client receives."""
        return {"error": {"message": self.message, "row": self.row, "field": self.field}}


class Overloaded(InvalidRecords):
    """A request that the model has no time for: status 503, to be sent again later."""

    def __init__(self, message: str):
        super().__init__(503, message)


def hint(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the nearest match where there is one, and the known names.

    >>> hint("flihgts", ["flights", "weather"])
    "; did you mean 'flights'? Known: flights, weather."
    """
    names = sorted(str(item) for item in known)
    nearest = get_close_matches(str(name), names, n=1)
    suggestion = f"; did you mean '{nearest[0]}'?" if nearest else "."
    return f"{suggestion} Known: {', '.join(names) or 'none'}."
