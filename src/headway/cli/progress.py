"""Turns a run's records into what a person follows: one aligned row per so many steps, and what happens in between.

                                held-out loss
        step    tokens   loss     code   prose    grad      rate  tokens/s    wait  time left
      40/480      327k  6.132    6.201   6.418    1.21  9.88e-04     14.1k   0.1 %  4 min 32 s
      - saved step 40 (g0001-s00000040, 23.1 MiB; training waited 41 ms)
      - killed: the trainer of segment 1 ended by SIGKILL in step 58
      - segment 2 goes on from checkpoint g0001-s00000040: steps 41 to 57 are done again

Tokens per second are new tokens over the time since the last row: steps that are done again are no progress and show
"again". Everything here is a pure function of the records; only ``Screen`` writes.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headway.base.units import format_bytes, format_count, format_seconds
from headway.cli.output import rewrite, say
from headway.monitor.alarms import why_left_out
from headway.monitor.spikes import reading_words
from headway.recipe.schedules import Schedule

Record = dict[str, Any]
ROWS_PER_RUN = 40
ROWS_PER_HEADER = 20
FORCED = {
    "stop": "stopped by request",
    "pause": "stopped for a pause",
    "regroup": "stopped to take nodes back",
    "hang": "ended by the supervisor, a hang",
    "lease lost": "ended by the supervisor, its lease is lost",
}
"""By ``forced`` of an exit: why the supervisor ended a trainer."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one row shows. ``tokens_per_second`` None: nothing new since the last row, the steps are being done again."""

    step: int
    total_steps: int
    tokens: int
    loss: float  # may be NaN
    held_out: dict[str, float]  # nats per token, the latest of each source
    grad_norm: float
    clipped: bool
    rate: float
    tokens_per_second: float | None
    wait_share: float  # of the time since the last row, spent waiting for data
    seconds_left: float | None


def nice_interval(total_steps: int, rows: int = ROWS_PER_RUN) -> int:
    """Steps per row: 1, 2 or 5 times a power of ten, for about ``rows`` rows in the run."""
    wanted, interval = max(1, total_steps // rows), 1
    for digit in (1, 2, 5, 10):
        while interval * 10 <= wanted:
            interval *= 10
        if digit * interval >= wanted:
            return digit * interval
    raise AssertionError(total_steps)


def header(sources: Sequence[str], total_steps: int) -> list[str]:
    """The two lines above the rows."""
    widths = [max(7, len(name)) for name in sources]
    names = " ".join(f"{name:>{width}}" for name, width in zip(sources, widths, strict=True))
    left = f"{'step':>{2 * len(str(total_steps)) + 1}}  {'tokens':>8}  {'loss':>6}"
    above = " " * len(left) + "  " + "held-out loss".rjust(len(names)) if names else ""
    return [above, f"{left}  {names}  {'grad':>6}  {'rate':>9}  {'tokens/s':>8}  {'wait':>6}  time left"]


def row_line(row: Row, sources: Sequence[str]) -> str:
    """One row, aligned under ``header``. A clipped gradient norm carries a ``c``."""
    width = len(str(row.total_steps))
    held = " ".join(
        f"{row.held_out[name]:>{max(7, len(name))}.3f}" if name in row.held_out else "-".rjust(max(7, len(name)))
        for name in sources
    )
    speed = "again" if row.tokens_per_second is None else format_count(row.tokens_per_second)
    left = "-" if row.seconds_left is None else format_seconds(row.seconds_left)
    return (
        f"{row.step:>{width}}/{row.total_steps}  {format_count(row.tokens):>8}  {row.loss:>6.3f}  {held}  "
        f"{row.grad_norm:>6.2f}{'c' if row.clipped else ' '} {row.rate:>9.2e}  {speed:>8}  {row.wait_share:>6.1%}  {left}"
    )


@dataclass
class _Window:
    """What has gathered since the last row."""

    nanoseconds: int = 0
    stall_nanoseconds: int = 0
    attempted_tokens: int = 0
    new_tokens: int = 0


@dataclass
class Progress:
    """Folds records into lines. ``feed`` returns the lines that a record calls for; ``current`` is the row of this moment."""

    schedule: Schedule
    sources: tuple[str, ...]
    steps_per_row: int
    high_water_tokens: int = 0
    last_step: int = 0
    segment: int | None = None
    held_out: dict[str, float] = field(default_factory=dict)
    rows_shown: int = 0
    current: str = ""
    _over_budget: bool = False
    _lost: tuple[str, str] = "", ""  # the node whose loss was told last with the end of a segment, and in which words
    _tokens: int = 0
    _all: _Window = field(default_factory=_Window)  # of this segment, saves and evaluations included, for the time left
    _window: _Window = field(default_factory=_Window)
    _step: Record | None = None
    _stage: int | None = None

    def feed(self, record: Record) -> list[str]:
        """The lines for one record of the trainer or the supervisor; kinds that say nothing to a person give none."""
        split = record.get("split") or {}
        self._window.nanoseconds += sum(split.values())
        self._window.stall_nanoseconds += split.get("data_stall", 0)
        self._all.nanoseconds += sum(split.values())
        handler: Callable[[Record], list[str]] | None = getattr(self, f"_on_{record.get('kind')}", None)
        return handler(record) if handler else []

    # -- the trainer's records

    def _on_restored(self, record: Record) -> list[str]:
        again, step = self.last_step, record["step"]
        self._tokens = self.schedule.tokens_before(step)
        self._window, self._all, self._step, self.rows_shown, self.last_step = _Window(), _Window(), None, 0, step
        if record.get("checkpoint") is None:
            return (
                []
                if again == 0
                else [f"- segment {self.segment} starts anew from the initial weights: no checkpoint had been committed"]
            )
        rest = f": {again_words(step + 1, again)}" if again > step else ""
        return [f"- segment {self.segment} goes on from checkpoint {record['checkpoint']}{rest}"]

    def _on_step(self, record: Record) -> list[str]:
        window, tokens = self._window, record["tokens"]
        window.attempted_tokens += tokens - self._tokens
        self._all.attempted_tokens += tokens - self._tokens
        window.new_tokens += max(0, tokens - max(self.high_water_tokens, self._tokens))
        self.high_water_tokens = max(self.high_water_tokens, tokens)
        self._tokens, self._step, self.last_step = tokens, record, record["step"]
        lines = self._stage_lines(record["stage"])
        self.current = row_line(self._row(record), self.sources)
        if record.get("applied") is False:
            lines.append(f"- ALARM: the update of step {record['step']} was not applied: {why_left_out(record)}")
        return lines + (self._show_row() if self._row_due(record["step"]) else [])

    def _row_due(self, step: int) -> bool:
        """A row that is followed by a held-out evaluation waits for it."""
        wanted = step % self.steps_per_row == 0 or step in (1, self.schedule.total_steps)
        return wanted and not self.schedule.evaluation_due(step)

    def _on_evaluation(self, record: Record) -> list[str]:
        self.held_out = {name: float(loss) for name, loss in record["loss"].items()}
        if self._step is None:
            return []
        self.current = row_line(self._row(self._step), self.sources)
        return self._show_row()

    def _on_save(self, record: Record) -> list[str]:
        """Told when it is committed, some steps later; training stood still for the copy alone."""
        text = f"- saved step {record['step']} ({record['checkpoint']}, {format_bytes(record['bytes'])}"
        blocked_ns, flush_ns = (record.get(part) or 0 for part in ("blocking_ns", "flush_ns"))
        waited = f"; training waited {format_seconds(blocked_ns / 1e9)}" if blocked_ns else ""
        return [f"{text}{waited}, written in {format_seconds(flush_ns / 1e9)})" if flush_ns else f"{text}{waited})"]

    def _on_save_failed(self, record: Record) -> list[str]:
        return [f"- ALARM: saving step {record['step']} failed, training goes on: {record['error']}"]

    def _on_save_skipped(self, record: Record) -> list[str]:
        return [f"- ALARM: the save of step {record['step']} was left out: {record['reason']}"]

    def _on_retention_failed(self, record: Record) -> list[str]:
        return [f"- ALARM: old checkpoints could not be deleted after step {record['step']}: {record['error']}"]

    def _on_over_budget(self, record: Record) -> list[str]:
        """Once in a while: it is true after every save from then on."""
        if self._over_budget:
            return []
        self._over_budget = True
        return [f"- ALARM: {record['error']}"]

    def _on_mirrored(self, record: Record) -> list[str]:
        return [f"- copied step {record['step']} to the mirror in {format_seconds((record.get('mirror_ns') or 0) / 1e9)}"]

    def _on_mirror_failed(self, record: Record) -> list[str]:
        return [f"- ALARM: copying step {record['step']} to the mirror failed, training goes on: {record['error']}"]

    def _on_repeated(self, record: Record) -> list[str]:
        return [f"- step {record['step']} is done again by the replica groups that are left: {record['reason']}"]

    def _on_interval(self, record: Record) -> list[str]:
        """Of a deployment with checkpoints.adaptive, when the trainer changes its mind."""
        why = f": {record['reason']}" if record.get("reason") else ""
        return [f"- saves every {format_seconds(record['seconds'])}{why}"]

    # -- the supervisor's records

    def _on_launch(self, record: Record) -> list[str]:
        self.segment, self._step = record["segment"], None
        layout = f", {record['layout']}" if record.get("layout") else ""
        return [f"- segment {self.segment}: trainer started (process {record['pid']}{layout})"]

    def _on_waiting(self, record: Record) -> list[str]:
        owner = record.get("owner") or {}
        who = (
            ", ".join(f"{key} {owner[key]}" for key in ("host", "pid") if key in owner) if isinstance(owner, dict) else str(owner)
        )
        return [f"- waiting up to {record['seconds']:.0f} s: an earlier supervisor ({who}) may still own this run"]

    def _on_hang(self, record: Record) -> list[str]:
        why = f": {record['verdict']}" if record.get("verdict") else ""
        return [f"- ALARM: no progress in segment {record['segment']}: its trainer is taken to hang and is stopped{why}"]

    def _on_straggler(self, record: Record) -> list[str]:
        return [f"- ALARM: {record['text']}"]

    _on_memory_growth = _on_slow_data = _on_straggler

    def _on_exit(self, record: Record) -> list[str]:
        trainer = f"the trainer of segment {record['segment']}"
        at = f"after step {self.last_step}" if self._step is not None else "before its first step"
        reason = f": {record['reason']}" if record.get("reason") else ""
        if record.get("lost_node"):
            self._lost = record["lost_node"], str(record.get("reason"))
            return [f"- ALARM: segment {record['segment']} ended {at}{reason}"]
        if record.get("signal"):
            if record.get("forced"):  # the run did that itself: nobody killed it
                return [f"- {FORCED.get(record['forced'], record['forced'])}: {trainer}, {at}{reason}"]
            name = signal_name(record["signal"])
            more = "" if f"ended by {name}".endswith(reason.removeprefix(": ")) else reason
            return [f"- killed: {trainer} ended by {name} {at}{more}"]
        return [f"- {trainer} failed with exit code {record['code']} {at}{reason}"] if record.get("code") else []

    def _on_checkpoint_rejected(self, record: Record) -> list[str]:
        return [f"- checkpoint {record['checkpoint']} is refused: {record['reason']}"]

    def _on_quarantine(self, record: Record) -> list[str]:
        where = f"{record['shard']}, block {record['block']}"
        return [f"- ALARM: {record['tokens']:,} tokens of {record['source']} ({where}) are damaged: the run goes on without them"]

    def _on_corruption(self, record: Record) -> list[str]:
        return [f"- ALARM: silent corruption: {record['reason']}"]

    def _on_mixture(self, record: Record) -> list[str]:
        weights = ", ".join(f"{name} {weight:g}" for name, weight in record["weights"].items())
        stage = self.schedule.spec.stages[record["stage"]].name
        return [f"- mixture of stage {stage} from sequence {record['first']:,} on: {weights}: {record['reason']}"]

    def _on_spike(self, record: Record) -> list[str]:
        words = reading_words(record["loss"], record["grad_norm"], record["reading"])
        seen = f"- ALARM: step {record['step']} is {words} (threshold {record['threshold']:g})"
        back = f"; the run goes back to step {record['restored']}" if "restored" in record else ""
        skipped = f" and skips {record['skipped_batches']:,} batches" if "skipped_batches" in record else ""
        slower = f", its rate times {record['rate_factor']:g} from there on" if "rate_factor" in record else ""
        return [f"{seen}{back}{skipped}{slower}"]

    def _on_node(self, record: Record) -> list[str]:
        if record["state"] == "lost" and record["host"] == self._lost[0] and record["reason"] in self._lost[1]:
            return []  # the end of its segment has told it
        alarm = "" if record["state"] == "back" else "ALARM: "
        return [f"- {alarm}node {record['host']} is {record['state']}: {record['reason']}"]

    def _on_group(self, record: Record) -> list[str]:
        alarm = "ALARM: " if record["state"] == "lost" else ""
        return [f"- {alarm}replica group {record['group']} {record['state']}: {record['reason']}"]

    def _on_pause(self, record: Record) -> list[str]:
        return [f"- paused: {record['reason']}; go on with headway resume"]

    def _on_resume(self, record: Record) -> list[str]:
        return [f"- {record['reason']}"] if record["reason"] else []

    def _on_finish(self, record: Record) -> list[str]:
        reason = f": {record['reason']}" if record.get("reason") else ""
        at = f" at step {self.last_step}/{self.schedule.total_steps}" if self.last_step else ""
        return [f"- run {record['state']}{at}{reason}"]

    def _on_note(self, record: Record) -> list[str]:
        return [f"- {record['text']}"]

    # -- rows

    def _stage_lines(self, name: str) -> list[str]:
        stage = [stage.name for stage in self.schedule.spec.stages].index(name)
        if self._stage is not None and stage <= self._stage:
            return []
        self._stage = stage
        first, steps = self.schedule.first_step(stage) + 1, self.schedule.stage_steps(stage)
        return [f"- stage {name}: steps {first} to {first + steps - 1}"]

    def _row(self, record: Record) -> Row:
        window = self._window
        seconds = window.nanoseconds / 1e9
        rest = self.schedule.total_tokens - record["tokens"]
        return Row(
            step=record["step"],
            total_steps=self.schedule.total_steps,
            tokens=record["tokens"],
            loss=float(record["loss"]),
            held_out=self.held_out,
            grad_norm=float(record["grad_norm"]),
            clipped=bool(record.get("clipped")),
            rate=record["rate"],
            tokens_per_second=window.new_tokens / seconds if seconds > 0 and window.new_tokens else None,
            wait_share=window.stall_nanoseconds / window.nanoseconds if window.nanoseconds else 0.0,
            seconds_left=rest / self._all.attempted_tokens * self._all.nanoseconds / 1e9
            if rest and self._all.attempted_tokens
            else None,
        )

    def _show_row(self) -> list[str]:
        lines = header(self.sources, self.schedule.total_steps) if self.rows_shown % ROWS_PER_HEADER == 0 else []
        self.rows_shown += 1
        self._window = _Window()
        return [*lines, self.current]


def again_words(first: int, last: int) -> str:
    return f"steps {first} to {last} are done again" if last > first else f"step {first} is done again"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def progress_of(spec: Any, steps_per_row: int | None = None) -> Progress:
    """Progress of a run with this Spec; without an interval it gets about ``ROWS_PER_RUN`` rows."""
    schedule = Schedule(spec)
    return Progress(schedule, tuple(source.name for source in spec.sources), steps_per_row or nice_interval(schedule.total_steps))


def is_terminal() -> bool:
    """Whether standard output is a terminal that can rewrite its line."""
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


class Screen:
    """Writes lines; on a terminal the row of the moment stands below them and is rewritten at every step."""

    def __init__(self, progress: Progress, live: bool):
        self.progress, self.live = progress, live

    def show(self, record: Record) -> None:
        lines = self.progress.feed(record)
        if lines and self.live:
            rewrite()
        for line in lines:
            say(line)
        if self.live and record.get("kind") == "step" and not lines:
            rewrite(self.progress.current)
