"""Stage `predict`: a registered model's answers for a dataset version or for files, as Parquet parts.

The rows do not pass through Ray: an actor is told a block, reads it, predicts it and writes its part. So memory is bounded by
the actors' chunks whatever there is to predict, and what was written stays written when anything dies.
"""

import glob
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from pydantic import TypeAdapter, ValidationError
from ray.exceptions import RayError, RayTaskError

from rayloom import bundle, cluster, config, datasets, versions
from rayloom.batch import inputs, output, scoring
from rayloom.batch.inputs import SUFFIXES, Input
from rayloom.batch.output import Part, Plan
from rayloom.config.base import Share
from rayloom.errors import ConfigError, RayloomError, RegistryError, ResourceError, SourceError
from rayloom.runs import Run, say
from rayloom.serving.predictor import Predictor
from rayloom.stages.model import Trained
from rayloom.versions import Version

SAY_SECONDS = 2.0
"""A line of progress at most so often."""

LIVES = 3
"""How often an actor is started anew, and a block given out anew, where a process or a node dies."""


@dataclass(frozen=True)
class BatchRequest:
    """What a user asks for, as the command line has it.

    Attributes:
        split: of the dataset version; "all" for every one.
        pattern: of files to predict instead.
        output: folder to write to; None for one below the storage root.
        resume: folder to go on with, its name below the storage root's predictions, or 'latest'.
        keep, missing: names and cells with commas between.
        max_failed: share of the rows that may fail, as '5%' or '0.05'.
        workers: the most processes that predict, a CPU each; None for one on each CPU that is free.
    """

    split: str = "all"
    pattern: str | None = None
    output: str | None = None
    resume: str | None = None
    keep: str = ""
    missing: str = ""
    max_failed: str = "5%"
    workers: int | None = None


def predict_batch(run: Run, trained: Trained, request: BatchRequest) -> output.Manifest:
    """Predicts every row once, or what an interrupted prediction has left to do, and says in the manifest that all is whole.

    Raises:
        BundleError: the model does not give its golden answers.
        ConfigError: the folder is in use for something else, or was begun with another model, config or input.
        SourceError, RegistryError: there is nothing to predict, or it has not the model's columns.
        DataError: more rows failed than may.
        ResourceError: no CPU is free, or actors died too often.
    """
    most_failed = _share(request.max_failed)
    keep = [name.strip() for name in request.keep.split(",") if name.strip()]
    scoring.require_names(keep)
    with run.stage("predict") as stage:
        cluster.require({"CPU": 1.0}, "predict", "join another cluster", run.pipeline.cluster)
        free = max(1, int(cluster.free_cpus()))
        workers = min(free, request.workers or free)
        folder = _folder(run, request)
        with stage.part("plan"):
            predictor = Predictor(trained.bundle)
            predictor.replay(run.pipeline.serve.tolerance)
            plan = _plan(run, trained, request, keep, scoring.CHUNKS * predictor.most)
        say(f"  {trained.version}: {plan.total:,} rows of {plan.source} in {len(plan.blocks)} parts, to {folder}")
        with cluster.exclusive(folder):
            done = output.resume(folder, plan) if request.resume else output.begin(folder, plan)
            progress = _Progress(plan, most_failed, done, len(done), output.failed_rows(done))
            with stage.part("score"):
                _score(run, trained, folder, progress, workers)
            speed = {"all": progress.speed_since(progress.began), "after the start": progress.speed_since(progress.started)}
            manifest = output.commit(folder, plan, progress.parts)
    _summarize(run, trained, folder, manifest, progress.resumed, speed)
    return manifest


def _share(text: str) -> float:
    try:
        return TypeAdapter(Share).validate_python(text)
    except ValidationError:
        raise ConfigError(f"--max-failed {text:.40} is no share of the rows; write one such as 5% or 0.05.") from None


def _folder(run: Run, request: BatchRequest) -> Path:
    below = run.pipeline.storage.path() / "predictions"
    if request.resume:
        return output.find(request.resume, below)
    return Path(request.output).expanduser().resolve() if request.output else below / run.id


def _plan(run: Run, trained: Trained, request: BatchRequest, keep: list[str], rows: int) -> Plan:
    pipeline, model = run.pipeline, trained.bundle
    source, root, files = _files(request.pattern) if request.pattern else _dataset(pipeline, request.split)
    return Plan(
        model=trained.version.name,
        version=trained.version.version,
        bundle=hashlib.sha256((model.folder / bundle.MANIFEST).read_bytes()).hexdigest(),
        config=_config_hash(pipeline),
        source=source,
        root=str(root),
        keep=keep,
        missing=["", *(cell for cell in request.missing.split(",") if cell)],
        classes=model.state.classes,
        rows=rows,
        inputs=_survey(root, files, model.config.features, keep, rows),
    )


def _config_hash(pipeline: config.Pipeline) -> str:
    deciding: dict[str, Any] = pipeline.model_dump(mode="json", include={"name", "features"})
    deciding["etl"] = datasets.identify(pipeline, {}).config_hash
    return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()


def _dataset(pipeline: config.Pipeline, split: str) -> tuple[str, Path, list[str]]:
    """The newest version that this config has made: what it is called, its folder, and its files below that."""
    version = _newest(pipeline)
    splits = config.SPLITS if split == "all" else (split,)
    files = [file for name in splits for file in datasets.files(version.folder, name)]
    return (
        f"{split} of dataset {version.manifest.id}",
        version.folder,
        [str(file.relative_to(version.folder)) for file in files],
    )


def _newest(pipeline: config.Pipeline) -> Version:
    root, wanted = pipeline.storage.path(), datasets.identify(pipeline, {}).config_hash
    found, _ = versions.versions(root, pipeline.name)
    for version in found:
        if version.manifest.config_hash == wanted:
            return version
    others = f", and {len(found)} of other configs" if found else ""
    raise RegistryError(f"{root} has no dataset version of {pipeline.name} that this config makes{others}; run jobs.etl.")


def _files(pattern: str) -> tuple[str, Path, list[str]]:
    """What the files of a pattern are called together, the folder that holds them all, and their paths below it."""
    found = sorted(
        path for path in glob.glob(str(Path(pattern).expanduser().absolute()), recursive=True) if Path(path).is_file()
    )
    if not found:
        raise SourceError(f"--input {pattern}: there is no such file; write a path or a pattern such as 'data/*.parquet'.")
    strange = [path for path in found if not path.endswith(SUFFIXES)]
    if strange:
        raise SourceError(f"--input {pattern}: {strange[0]} is none of {', '.join(SUFFIXES)}; narrow the pattern.")
    root = Path(os.path.commonpath([str(Path(path).parent) for path in found]))
    return f"the files {pattern}", root, [str(Path(path).relative_to(root)) for path in found]


def _survey(root: Path, files: list[str], spec: config.Features, keep: list[str], rows: int) -> list[Input]:
    """All files, a Ray task each: each is read once, for its checksum."""
    look = ray.remote(inputs.survey)
    with _own_errors():
        return ray.get([look.remote(root, file, spec, keep, rows) for file in files])


@contextmanager
def _own_errors() -> Iterator[None]:
    """What our functions raise in Ray's processes, as it was raised; what befell the processes or a disk as a ResourceError."""
    try:
        yield
    except RayError as error:
        cause = getattr(error, "cause", error)
        if isinstance(cause, RayloomError):
            raise cause from None
        if isinstance(error, RayTaskError) and not isinstance(cause, OSError):
            raise  # a mistake of ours
        raise ResourceError(
            f"Predicting failed ({str(cause).strip().splitlines()[0]:.300}); what was written is kept: go on with --resume."
        ) from None


@dataclass
class _Progress:
    """The parts that are there, of which `resumed` were there before; says where the prediction is, and ends it where too many
    rows failed."""

    plan: Plan
    most_failed: float
    parts: dict[int, Part]
    resumed: int
    failed: int
    rows: int = 0
    said: float = 0.0
    began: float = field(default_factory=time.monotonic)
    started: float = 0.0

    def __post_init__(self) -> None:
        self.allowed, self.total = self.most_failed * self.plan.total, len(self.plan.blocks)

    def start(self) -> None:
        """The first actor has loaded the model."""
        self.started = self.started or time.monotonic()

    def require_few(self) -> None:
        if self.failed > self.allowed:
            output.require_few(self.failed, self.most_failed, self.plan, self.parts)

    def add(self, part: Part) -> None:
        self.parts[part.block] = part
        self.rows += part.rows + part.failed
        self.failed += part.failed
        self.require_few()
        now = time.monotonic()
        if now - self.said > SAY_SECONDS or len(self.parts) == self.total:
            self.said = now
            speed = self.speed_since(self.started)
            say(f"  part {len(self.parts)} of {self.total}: {speed:,.0f} rows/s, {self.failed:,} rows failed")

    def speed_since(self, moment: float) -> int:
        """Rows of this run a second."""
        return round(self.rows / (time.monotonic() - moment))


def _score(run: Run, trained: Trained, folder: Path, progress: _Progress, workers: int) -> None:
    """Predicts the blocks whose parts are not there yet. A worker, which has a CPU, gets a block when it has nothing to do."""
    progress.require_few()
    plan = progress.plan
    left = {number: block for number, block in enumerate(plan.blocks) if number not in progress.parts}
    given = {"folder": trained.bundle.folder, "tolerance": run.pipeline.serve.tolerance, "target": folder, "plan_id": plan.id}
    make = ray.remote(num_cpus=1, max_restarts=LIVES, max_task_retries=LIVES)(scoring.Worker)
    bare = plan.model_copy(update={"inputs": []})
    pool: list[Any] = [make.remote(plan=bare, **given) for _ in range(min(workers, len(left)))]
    waiting = iter(left.items())
    busy = {actor.start.remote(): actor for actor in pool}  # one that gets no CPU holds no block
    try:
        with _own_errors():
            while len(progress.parts) < progress.total:
                [ended], _ = ray.wait(list(busy))
                actor = busy.pop(ended)
                if (part := ray.get(ended)) is None:
                    progress.start()
                else:
                    progress.add(part)
                if (following := next(waiting, None)) is not None:
                    busy[actor.score.remote(*following)] = actor
    finally:
        for actor in pool:
            ray.kill(actor)


def _summarize(run: Run, trained: Trained, folder: Path, manifest: output.Manifest, found: int, speed: dict) -> None:
    run.summary["model"] = {"name": trained.version.name, "version": trained.version.version}
    run.summary["rows"] = output.figures(manifest)
    run.summary["parts"] = {"written": len(manifest.parts) - found, "found": found}
    run.summary["rows_per_s"] = speed
    run.summary["output"] = str(folder)
