"""Reading a pipeline file: YAML with the place of every key, overlays and `--set` laid over it, then the models' check.

A mistake is answered with the file, the line, the dotted key, the value found, and the nearest known name.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from rayloom.config.model import DEFAULT_FAMILY
from rayloom.config.pipeline import Pipeline
from rayloom.config.tuning import KINDS
from rayloom.errors import ConfigError, hint


class _Loader(yaml.SafeLoader):
    """YAML 1.1 as PyYAML reads it, but 1e-3 is a number, as everyone who tunes a learning rate expects."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


@dataclass
class Document:
    """Plain YAML data, and the place ('file:line') of each key by its path."""

    data: dict[str, Any]
    places: dict[tuple, str] = field(default_factory=dict)

    def place(self, path: tuple) -> str:
        """The place of a key, or of the nearest enclosing one."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, "the pipeline file")


def load(files: list[str | Path], settings: list[str] = []) -> Pipeline:
    """Reads a pipeline file.

    Args:
        files: the pipeline file, then overlays; a later file's keys win.
        settings: `dotted.key=value` texts, the value in YAML; they win over all files.

    Raises:
        ConfigError: a file cannot be read, is not YAML, or says something that the models do not know.
    """
    document = Document({})
    for file in files:
        _overlay(document, _read(Path(file)))
    for setting in settings:
        _overlay(document, _parse_setting(setting))
    return check(document)


def check(document: Document) -> Pipeline:
    """Validates plain data; the first mistake found becomes a ConfigError with its place and the nearest known key."""
    try:
        return Pipeline.model_validate(document.data)
    except ValidationError as error:
        mistakes = error.errors(include_url=False)
        more = f" ({len(mistakes) - 1} more mistakes follow it.)" if len(mistakes) > 1 else ""
        raise ConfigError(_explain(document, mistakes[0]) + more) from None


def _explain(document: Document, mistake: Any) -> str:
    path = _data_path(document.data, mistake["loc"])
    key, place = ".".join(map(str, path)), document.place(path)
    match mistake["type"]:
        case "extra_forbidden":
            return f"{place}: unknown key '{key}'{hint(str(path[-1]), _keys_beside(path))}"
        case "missing":
            return f"{place}: the key '{key}' is missing; add it."
        case "value_error":
            return f"{place}: {mistake['ctx']['error']}."
        case _:
            found = f", found {mistake['input']!r:.80}" if not isinstance(mistake["input"], dict | list) else ""
            return f"{place}: '{key}': {mistake['msg']}{found}; correct the value."


def _data_path(data: Any, location: tuple) -> tuple:
    """Pydantic's location without the names it adds for the branches of a union, such as 'category'."""
    path: list = []
    for index, part in enumerate(location):
        is_last = index == len(location) - 1
        inside = (isinstance(data, dict) and part in data) or (isinstance(data, list) and isinstance(part, int))
        if inside or (is_last and isinstance(data, dict)):
            path.append(part)
            data = data[part] if inside else None
    return tuple(path)


def _keys_beside(path: tuple) -> list[str]:
    """The keys that the model at `path`'s parent knows."""
    models: list[Any] = [Pipeline]
    for part in path[:-1]:
        models = [inner for model in models for inner in _step_into(model, part)]
    return sorted({name for model in models for name in model.model_fields})


def _step_into(model: Any, part: Any) -> list[Any]:
    """The models that the value of field `part` may be; through dicts and lists, the models of their items."""
    if isinstance(part, int) or part not in model.model_fields:
        return [model]  # an item of the dict or list that was entered before
    return [inner for inner in _models_in(model.model_fields[part].annotation)]


def _models_in(annotation: Any) -> list[Any]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in getattr(annotation, "__args__", ()) for model in _models_in(argument)]


def _read(file: Path) -> Document:
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError(
            f"{file}: the pipeline file cannot be read ({reason}); name an existing file with --config."
        ) from None
    try:
        node = yaml.compose(text, Loader=_Loader)
        data = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{file}:{mark.line + 1}" if mark else str(file)
        raise ConfigError(f"{place}: not YAML: {getattr(error, 'problem', error)}; correct the line.") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{file}: a pipeline file is a mapping of keys to values, found {type(data).__name__}; see configs/.")
    document = Document(data)
    _note_places(node, (), document, file)
    return document


def _note_places(node: Any, path: tuple, document: Document, file: Path) -> None:
    document.places.setdefault(path, f"{file}:{node.start_mark.line + 1}")
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _note_places(item, (*path, index), document, file)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                _note_merged(value, path, document, file)
                continue
            if key.tag != "tag:yaml.org,2002:str":
                raise ConfigError(f"{file}:{key.start_mark.line + 1}: YAML reads the key {key.value} not as text; quote it.")
            inner = (*path, key.value)
            if inner in document.places:
                raise ConfigError(
                    f"{file}:{key.start_mark.line + 1}: the key '{'.'.join(map(str, inner))}' stands twice, first at "
                    f"{document.places[inner]}; remove one."
                )
            document.places[inner] = f"{file}:{key.start_mark.line + 1}"
            _note_places(value, inner, document, file)


def _note_merged(node: Any, path: tuple, document: Document, file: Path) -> None:
    """Places of keys that `<<` brings in; those written out beside it win, as YAML has it."""
    merged = Document({})
    for mapping in node.value if isinstance(node, yaml.SequenceNode) else [node]:
        _note_places(mapping, path, merged, file)
    document.places = {**merged.places, **document.places}


def _parse_setting(setting: str) -> Document:
    key, separator, text = setting.partition("=")
    if not separator or not all(key.split(".")):
        raise ConfigError(f"--set {setting}: expected dotted.key=value, as in --set train.lr=0.01.")
    try:
        value = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError:
        raise ConfigError(f"--set {setting}: the value is not YAML; quote it.") from None
    path = tuple(key.split("."))
    for part in reversed(path):
        value = {part: value}
    return Document(value, {path[: i + 1]: f"--set {setting}" for i in range(len(path))})


def _overlay(below: Document, above: Document) -> None:
    """Lays `above` over `below`: mappings merge key by key, everything else is replaced."""
    below.data = _merged(below.data, above.data)
    replaced = [path for path in above.places if path and not isinstance(_at(above.data, path), dict)]
    kept = {path: place for path, place in below.places.items() if not any(path[: len(old)] == old for old in replaced)}
    below.places = {**kept, **above.places}


def _at(data: Any, path: tuple) -> Any:
    for part in path:
        data = data[part]
    return data


def _merged(below: Any, above: Any) -> Any:
    if isinstance(below, dict) and isinstance(above, dict):
        if above.get("family", same := below.get("family", DEFAULT_FAMILY)) != same:
            return above  # another family has other keys: those below are not its
        if {*KINDS} & {*above}:  # a key is searched in another way
            below = {key: value for key, value in below.items() if key not in KINDS}
        return {**below, **{key: _merged(below.get(key), value) for key, value in above.items()}}
    return above
