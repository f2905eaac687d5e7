"""The pipeline file: YAML in, checked, plain models out.

A file is read with the place of every key, overlays and `--set` are laid over it, and pydantic checks the whole. A mistake
is answered with the file, the line, the dotted key, the value found, and the nearest known name.

What is not here: whether columns exist (`etl/check.py`) and whether the cluster has room (`cluster.py`).
"""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rayloom.errors import ConfigError, hint

Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,62}$")]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Resources = dict[str, Annotated[float, Field(ge=0)]]


class Section(BaseModel):
    """A part of the pipeline file: unknown keys are refused, values do not change after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Source(Section):
    """One input file. `columns` is a Spark DDL list: the exact types, and the names that the header must have."""

    path: str = Field(description="a path, or package:NAME/FILE for a file that an installed package brings; .csv or .csv.zip")
    columns: str = Field(description="Spark DDL, for example 'year INT, carrier STRING'")
    missing: str = Field(default="", description="the text that stands for a missing value")


class Step(Section):
    """A Spark SQL query over the sources and earlier steps, with what it promises."""

    name: Name
    sql: str
    keeps: Name | None = Field(default=None, description="the source or step whose number of rows this one must have")
    unique: list[str] = Field(default=[], description="columns whose combination may occur once")


class Rule(Section):
    """A Spark SQL condition that a row of the last step must fulfil (NULL does not) to be accepted."""

    name: Name
    where: str
    action: Literal["reject", "fail"] = "reject"


class Splits(Section):
    """Spark SQL conditions; each accepted row must fulfil exactly one of them."""

    train: str
    validation: str
    test: str

    def conditions(self) -> dict[str, str]:
        return {"train": self.train, "validation": self.validation, "test": self.test}


class Etl(Section):
    """What Spark does, and what it may use."""

    sources: dict[Name, Source] = Field(min_length=1)
    steps: list[Step] = Field(min_length=1)
    rules: list[Rule] = []
    splits: Splits
    order_by: list[str] = Field(min_length=1, description="columns that give the rows one order, whatever the partitioning")
    handoff: Literal["memory", "parquet"] = Field(default="memory", description="how the rows of a new version reach Ray Data")
    executors: int = Field(default=1, ge=1, le=1000)
    executor_cores: int = Field(default=1, ge=1, le=256)
    executor_memory: str = Field(default="1g", pattern=r"^[1-9][0-9]*[mg]$")
    partitions: int = Field(default=4, ge=1, le=100_000, description="Spark's shuffle partitions")
    resources: Resources = Field(default={}, description="Ray resources an executor asks for besides its CPUs")


class Category(Section):
    """Text with few values: a row of an embedding table each; rarer than `min_count` in training is 'unknown'."""

    kind: Literal["category"]
    min_count: int = Field(default=20, ge=1)


class Number(Section):
    """A number: standardised by the training split's mean and deviation; missing is the mean and raises a flag."""

    kind: Literal["number"]


class Date(Section):
    """A date, as categories of its parts."""

    kind: Literal["date"]
    parts: list[Literal["weekday", "month", "day"]] = Field(default=["weekday"], min_length=1)


Feature = Annotated[Category | Number | Date, Field(discriminator="kind")]


class Features(Section):
    """The label (0 or 1) and the columns of a dataset version that a model may see."""

    label: str
    columns: dict[str, Feature] = Field(min_length=1)
    known_after: list[str] = Field(default=[], description="columns known only after the fact: none may be a feature")
    leak_auc: float = Field(
        default=0.98, gt=0.5, le=1, description="a single feature that ranks the label this well is refused"
    )


class Model(Section):
    """The network. `family` is a name in rayloom.models.FAMILIES or a function as 'package.module:function'."""

    family: str = "tabular"
    hidden: list[Annotated[int, Field(ge=1, le=65536)]] = Field(default=[128, 64], min_length=1)
    embedding: int = Field(default=8, ge=1, le=4096)
    dropout: Fraction = 0.2


class Train(Section):
    """The training loop. `batch_size` counts rows over all ranks."""

    launcher: str = "ray"
    workers: int = Field(default=2, ge=1, le=4096)
    gpu: bool = False
    resources: Resources = Field(default={}, description="Ray resources a worker asks for besides its CPU and GPU")
    epochs: int = Field(default=4, ge=1, le=100_000)
    batch_size: int = Field(default=1024, ge=1)
    lr: float = Field(default=2e-3, gt=0, le=10)
    weight_decay: float = Field(default=1e-2, ge=0)
    max_failures: int = Field(default=1, ge=0, description="how often a failed group of workers is started again")


class Gate(Section):
    """What a model must reach on the test split to become @champion."""

    metric: Literal["auc", "average_precision", "f1", "accuracy"] = "auc"
    at_least: float = Field(default=0.5, ge=0, le=1)


class Evaluate(Section):
    baseline: bool = Field(default=True, description="also train scikit-learn's HistGradientBoosting on the same rows")
    gate: Gate = Gate()


class Tracking(Section):
    """Where MLflow records. A server's credentials belong into MLFLOW_TRACKING_USERNAME and _PASSWORD, never here."""

    uri: str | None = Field(default=None, description="default: MLFLOW_TRACKING_URI, else SQLite below storage.root")
    experiment: str | None = Field(default=None, description="default: the pipeline's name")


class Serve(Section):
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=1, le=65535)
    replicas: int = Field(default=1, ge=1, le=1000)
    resources: Resources = Field(default={}, description="Ray resources a replica asks for besides its CPU")
    max_rows: int = Field(default=10_000, ge=1, description="records in one request")
    max_body_bytes: int = Field(default=8 * 2**20, ge=1024)
    check_rows: int = Field(default=250, ge=1, description="test rows sent over HTTP and compared with the offline answers")
    tolerance: float = Field(default=1e-6, gt=0, description="how far a served probability may be from the offline one")


class Storage(Section):
    root: str | None = Field(default=None, description="folder of datasets, runs and MLflow; default: RAYLOOM_HOME, else here")

    def path(self) -> Path:
        return Path(self.root or os.environ.get("RAYLOOM_HOME") or ".").resolve()


class Cluster(Section):
    autoscales: bool = Field(
        default=False, description="nodes come when work asks for them: wait instead of refusing what is not there"
    )


class Pipeline(Section):
    """A whole pipeline file."""

    name: Name
    seed: int = Field(default=17, ge=0, lt=2**31)
    storage: Storage = Storage()
    cluster: Cluster = Cluster()
    etl: Etl
    features: Features
    model: Model = Model()
    train: Train = Train()
    evaluate: Evaluate = Evaluate()
    tracking: Tracking = Tracking()
    serve: Serve = Serve()

    @model_validator(mode="after")
    def _no_feature_from_the_future(self) -> "Pipeline":
        late = sorted({*self.features.columns} & {*self.features.known_after, self.features.label})
        if late:
            raise ValueError(f"features.columns has {', '.join(late)}, known only after the fact; remove it from the features")
        return self


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
        if inside or is_last:
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
        return {**below, **{key: _merged(below.get(key), value) for key, value in above.items()}}
    return above
