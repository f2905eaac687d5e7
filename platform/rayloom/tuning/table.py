"""What a terminal shows while a sweep runs: a live table, or a plain line for each trial where the output is no terminal."""

import logging
import math
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TextIO

from rayloom import page
from rayloom.axes import said
from rayloom.tuning.records import Trial

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.text import Text

logger = logging.getLogger(__name__)

MOST_RUNNING, MOST_ENDED, MOST_WARNINGS = 16, 5, 3
"""Lines of the live table at most: of running trials, of those that ended last, and of warnings."""

MOST_TEXT, MOST_WORD = 100, 24
"""Characters of a trial's settings at most, and of one of them."""

P = ParamSpec("P")


def _harmless(show: "Callable[Concatenate[Table, P], None]") -> "Callable[Concatenate[Table, P], None]":
    """What cannot be shown, for a closed pipe or a terminal of no width, is logged once: a sweep goes on without its table."""

    @wraps(show)
    def shown(table: "Table", *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            show(table, *args, **kwargs)
        except Exception:
            logger.log(
                logging.DEBUG if table.broken else logging.WARNING, "a line of the sweep's table was not shown", exc_info=True
            )
            table.broken = True

    return shown


@dataclass
class _Running:
    params: dict[str, Any]
    since: float
    epoch: int = 0
    value: float | None = None


@dataclass
class _State:
    """What was told of the sweep so far."""

    running: dict[int, _Running] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    best: Trial | None = None
    ended: deque[Trial] = field(default_factory=lambda: deque(maxlen=MOST_ENDED))
    warnings: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=MOST_WARNINGS))


class Table:
    """Shows a sweep's trials as they begin, get on and end. No method ever raises.

    Only searched keys and what they are tried with is shown, in one line without control characters.

    Args:
        metric: its name.
        total: trials of the whole sweep, those of an earlier start included.
        stream: default: standard output, as it is when the table begins.
        sign: 1 where a higher value is better, -1 where a lower one is.
        console: rich's, for a live table; default: one on `stream`, where that is a terminal.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        metric: str,
        total: int,
        stream: TextIO | None = None,
        sign: int = 1,
        console: "Console | None" = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.metric, self.total, self.sign, self.clock = metric, total, sign, clock
        self.broken = False
        self.state = _State()
        self.start = clock()
        self._stream, self._console = stream, console
        self._live: Live | None = None
        self._lock = threading.RLock()  # rich draws from a thread of its own

    def __enter__(self) -> "Table":
        self._open()
        return self

    @_harmless
    def _open(self) -> None:
        self.start = self.clock()
        stream = self._stream if self._stream is not None else sys.stdout
        self._stream = stream  # rich puts a stream of its own in standard output's place
        if self._console is None and not stream.isatty():
            return
        from rich.console import Console
        from rich.live import Live

        live = Live(console=self._console or Console(file=stream), get_renderable=self._drawn, refresh_per_second=2)
        live.start()
        self._live = live

    def __exit__(self, *error: object) -> None:
        self._close()

    @_harmless
    def _close(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    @_harmless
    def begin(self, number: int, params: dict[str, Any]) -> None:
        """A trial starts."""
        with self._lock:
            self.state.running[number] = _Running(dict(params), self.clock())

    @_harmless
    def epoch(self, number: int, epoch: int, value: float, metrics: dict[str, float] = {}) -> None:
        """A trial has trained an epoch, counted from 1, and has this value."""
        with self._lock:
            if number in self.state.running:
                self.state.running[number].epoch, self.state.running[number].value = epoch, value

    @_harmless
    def end(self, trial: Trial) -> None:
        """A trial is over."""
        with self._lock:
            self.recall(trial)
            line = f"{_ended(trial, self.metric)}  {_settings(trial.params)}  {self._best()}"
        self._print(line)

    @_harmless
    def recall(self, trial: Trial) -> None:
        """Counts a trial without a line of its own: one that was over before the sweep was resumed."""
        with self._lock:
            state = self.state
            state.running.pop(trial.number, None)
            state.counts[trial.state] += 1
            state.ended.append(trial)
            state.best = trial if self._better(trial) else state.best

    def _better(self, trial: Trial) -> bool:
        """As `Sweep.best` judges: a trial that was trained to its end is better than any that was stopped."""
        if trial.state not in ("complete", "stopped") or trial.value is None or not math.isfinite(trial.value):
            return False
        best = self.state.best
        return best is None or self._rank(trial) > self._rank(best)

    def _rank(self, trial: Trial) -> tuple[bool, float]:
        return trial.state == "complete", self.sign * (trial.value or 0.0)

    def _best(self) -> str:
        best = self.state.best
        return f"best so far {page.figure(best.value)} (trial {best.number})" if best else "none has a value so far"

    @_harmless
    def warn(self, text: str) -> None:
        """Something is amiss, such as a trial that waits."""
        with self._lock:
            self.state.warnings.append((self.clock() - self.start, _plain(text)))
        self._print(f"warning: {_plain(text)}")

    def _print(self, line: str) -> None:
        """A line, where there is no live table that shows the same."""
        if self._live is None:
            print(line.rstrip(), file=self._stream if self._stream is not None else sys.stdout, flush=True)

    def _drawn(self) -> "RenderableType":
        """The live table. It is drawn in rich's thread, which an error would end."""
        from rich.text import Text

        try:
            with self._lock:
                return self._view()
        except Exception:
            logger.debug("the sweep's table was not drawn", exc_info=True)
            return Text("")

    def _view(self) -> "RenderableType":
        from rich.console import Group
        from rich.text import Text

        late = [
            Text(f"{page.seconds(at)}: {text}", style="yellow", no_wrap=True, overflow="ellipsis")
            for at, text in self.state.warnings
        ]
        return Group(self._head(), self._rows(), *late)

    def _head(self) -> "Text":
        from rich.text import Text

        counts, running = self.state.counts, len(self.state.running)
        told = [f"{count} {state}" for state, count in sorted(counts.items())] + ([f"{running} running"] if running else [])
        elapsed = page.seconds(self.clock() - self.start)
        head = f"{sum(counts.values())} of {self.total} trials in {elapsed}: {', '.join(told) or 'none has started'}. "
        return Text.assemble(head, (self._best(), "bold"), no_wrap=True, overflow="ellipsis")

    def _rows(self) -> "RenderableType":
        from rich import box
        from rich.table import Table as Grid
        from rich.text import Text

        grid = Grid(box=box.SIMPLE_HEAD, expand=True, padding=(0, 1))
        for name, side in (
            ("trial", "right"),
            ("state", "left"),
            (_plain(self.metric), "right"),
            ("epochs", "right"),
            ("time", "right"),
        ):
            grid.add_column(Text(name), justify=side, no_wrap=True)  # type: ignore[arg-type]
        grid.add_column("settings", ratio=1, no_wrap=True, overflow="ellipsis")
        rows = [*map(self._row_ended, self.state.ended), *map(self._row_running, self.state.running)]
        best = str(self.state.best.number) if self.state.best else None
        for cells in rows[: MOST_ENDED + MOST_RUNNING]:
            grid.add_row(*map(Text, cells), style="bold" if cells[0] == best else "")
        if len(rows) > MOST_ENDED + MOST_RUNNING:
            grid.add_row("", f"and {len(rows) - MOST_ENDED - MOST_RUNNING} more")
        return grid

    def _row_ended(self, trial: Trial) -> list[str]:
        last = _plain(trial.reason) if trial.state == "failed" else _settings(trial.params)
        spent = page.seconds(trial.seconds)
        return [str(trial.number), trial.state, page.figure(trial.value), str(max(trial.values, default=0)), spent, last]

    def _row_running(self, number: int) -> list[str]:
        trial = self.state.running[number]
        spent = page.seconds(self.clock() - trial.since)
        state = "running" if trial.epoch else "starting"
        return [str(number), state, page.figure(trial.value), str(trial.epoch), spent, _settings(trial.params)]


def _ended(trial: Trial, metric: str) -> str:
    """What became of a trial, for a line."""
    spent, epochs = page.seconds(trial.seconds), max(trial.values, default=0)
    value = f"{_plain(metric)} {page.figure(trial.value)}"
    counted = f"{epochs} epoch{'' if epochs == 1 else 's'}"
    told = {
        "complete": f"{value} (best of {counted}, {spent})",
        "stopped": f"{value} (stopped after {counted}, {spent})",
        "failed": f"failed after {counted}, {spent}: {_plain(trial.reason) or 'no reason known'}",
        "repeat": f"has the settings of trial {trial.repeats}",
    }
    return f"trial {trial.number:3d}  {told.get(trial.state, trial.state)}"


def _settings(params: dict[str, Any]) -> str:
    return page.cut(
        " ".join(f"{_plain(key)}={page.cut(_plain(said(value)), MOST_WORD)}" for key, value in params.items()), MOST_TEXT
    )


def _plain(text: str) -> str:
    """Text in one line, without control characters, which could rewrite the terminal."""
    return "".join(c if c.isprintable() else " " for c in text)
