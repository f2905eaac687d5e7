"""A run: its id and folder, its stages with their seconds, and the summary that it ends with.

<root>/runs/<id>/summary.json    written last and at once: a run without it did not end well
<root>/runs/latest               points to the newest run that has one
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rayloom import config
from rayloom.etl.sources import Opened


@dataclass
class Stage:
    """A part of a run: how long it and its parts took, and whether an earlier run's result was found instead of made again."""

    name: str
    seconds: float = 0.0
    cached: bool = False
    parts: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Times a part of the stage, for the summary."""
        began = time.perf_counter()
        yield
        self.parts[name] = round(time.perf_counter() - began, 2)


@dataclass
class Run:
    """One command at work.

    Attributes:
        id: start time and the pipeline's name; unique in the workspace.
        pipeline: the checked pipeline file.
        files: its checked sources.
        local: whether this command started the cluster and will stop it.
        stages: what has ended so far.
        summary: figures by section, filled by the stages.
        cleanup: what to undo before the command lets go of the cluster.
    """

    id: str
    pipeline: config.Pipeline
    files: dict[str, Opened]
    local: bool = True
    stages: list[Stage] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    cleanup: ExitStack = field(default_factory=ExitStack)

    @property
    def folder(self) -> Path:
        return self.pipeline.storage.path() / "runs" / self.id

    @contextmanager
    def stage(self, name: str) -> Iterator[Stage]:
        """Times a stage and says where the run is; a stage that fails is not recorded."""
        say(f"▸ {name}")
        stage, began = Stage(name), time.perf_counter()
        yield stage
        stage.seconds = round(time.perf_counter() - began, 1)
        self.stages.append(stage)
        say(f"✓ {name}: {stage.seconds:.1f} s{' (cached)' if stage.cached else ''}")

    def write_summary(self) -> Path:
        """Writes the summary in one rename and points `latest` at this run."""
        stages = [vars(stage) for stage in self.stages]
        path = self.folder / "summary.json"
        staged = path.with_suffix(f".{os.getpid()}")
        staged.write_text(json.dumps({"run": self.id, **self.summary, "stages": stages}, indent=2))
        staged.rename(path)
        link = self.folder.with_name(f".latest-{os.getpid()}")
        link.symlink_to(self.id)
        link.rename(self.folder.with_name("latest"))
        return path


def start(pipeline: config.Pipeline, files: dict[str, Opened]) -> Run:
    """A run with a folder of its own."""
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{pipeline.name}"
    runs = pipeline.storage.path() / "runs"
    for suffix in ["", *(f"-{number}" for number in range(2, 1000))]:
        try:
            (runs / (stem + suffix)).mkdir(parents=True)
            return Run(stem + suffix, pipeline, files)
        except FileExistsError:
            continue
    raise FileExistsError(f"{runs / stem} and its 998 successors exist")


def say(line: str) -> None:
    """A line of progress for whoever watches."""
    print(line, flush=True)


def screen(run: Run, path: Path) -> str:
    """The summary as text for one screen."""
    lines = ["", f"Run {run.id}", ""]
    lines += [text for key, section in run.summary.items() if (text := _section(key, section))]
    lines += ["", "  stage        seconds"]
    lines += [f"  {stage.name:<12} {stage.seconds:7.1f}{_remark(stage)}" for stage in run.stages]
    lines += [f"  {'total':<12} {sum(stage.seconds for stage in run.stages):7.1f}", "", f"  {path}"]
    return "\n".join(lines)


def _remark(stage: Stage) -> str:
    if stage.cached:
        return "  cached"
    parts = [f"{name} {seconds:.1f}" for name, seconds in stage.parts.items() if seconds >= 0.05]
    return f"  ({', '.join(parts)})" if parts else ""


def _section(key: str, section: Any) -> str:
    if not isinstance(section, dict):
        return f"  {key:<12} {_text(section)}"
    return f"  {key:<12} " + "  ".join(f"{name} {_text(value)}" for name, value in section.items())


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e-3 else f"{value:.4f}"
    if isinstance(value, dict):
        return "(" + ", ".join(f"{name} {_text(inner)}" for name, inner in value.items()) + ")"
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "none"
    return str(value)
