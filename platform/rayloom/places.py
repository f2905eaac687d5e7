"""What the pipeline file's places mean: a path of this machine, or package:NAME/FILE for what an installed package brings."""

from importlib.util import find_spec
from pathlib import Path

from rayloom.errors import SourceError

PACKAGE = "package:"


def locate(place: str, key: str) -> Path:
    """The file that `place` means.

    Args:
        place: a path, or package:NAME/FILE; the package is found without importing it.
        key: the dotted key that says so, for the error: "etl.sources.flights.path".

    Raises:
        SourceError: the package is not installed, or there is no such file.
    """
    found = resolve(place, key)
    if not found.is_file():
        raise SourceError(f"{section(key)}: there is no file {found}; {remedy(place, key)}.")
    return found


def resolve(place: str, key: str) -> Path:
    """The absolute path that `place` means, whether something is there or not.

    Raises:
        SourceError: the package is not installed.
    """
    if not place.startswith(PACKAGE):
        return Path(place).expanduser().resolve()
    package, _, inner = place.removeprefix(PACKAGE).partition("/")
    spec = find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise SourceError(f"{section(key)}: the package '{package}' is not installed; run `pip install {package}`.")
    return Path(spec.submodule_search_locations[0]) / inner


def section(key: str) -> str:
    """The section that a key stands in: 'etl.sources.flights' of 'etl.sources.flights.path'."""
    return key.rpartition(".")[0]


def remedy(place: str, key: str) -> str:
    """What to do where nothing is at `place`."""
    if not place.startswith(PACKAGE):
        return f"correct {key}"
    package = place.removeprefix(PACKAGE).partition("/")[0]
    return f"install the version of {package} that constraints.txt names"
