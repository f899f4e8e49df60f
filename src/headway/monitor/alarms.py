"""Small rules over rows: what a person should look at. Pure functions; the trainer keeps its own policy.

A point that was flagged is left out of the statistics that judge the next one (L10): a spike does not raise the bar.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from statistics import fmean, median

from headway.base.units import format_seconds
from headway.monitor.spikes import reading_words
from headway.monitor.storage import slow_saves
from headway.rundir.categories import Category
from headway.store.names import parse_name

GRADIENT_FACTOR = 3.0
GRADIENT_WINDOW_STEPS, GRADIENT_FIRST_STEPS = 64, 16
THROUGHPUT_SHARE = 0.9
THROUGHPUT_WINDOW_NS = 600 * 10**9  # ten minutes: a machine that stumbles for a moment is no finding
RISES = 2
IDLE_SHARE, IDLE_STEPS = 0.5, 20


@dataclass(frozen=True)
class Finding:
    """``rule``: its short name. ``step``: where it was seen."""

    rule: str
    step: int
    message: str

    def to_json(self) -> dict:
        return asdict(self)


RANKS = ("straggler", "memory_growth", "slow_data")
"""Events of the supervisor about single ranks."""


def find_alarms(rows: list[dict], refused: Iterable[dict] = (), events: Iterable[dict] = ()) -> list[Finding]:
    """All findings, by step. ``rows``: the kept ones of a run (``read_chain_rows(...).kept``); ``refused``: {checkpoint, reason}
    of the checkpoints that were found damaged (``store.admissible.refusals``, or the events ``checkpoint_rejected``);
    ``events``: of the supervisor, for what it found of single ranks."""
    steps = [row for row in rows if row["kind"] == "step"]
    evaluations = [row for row in rows if row["kind"] == "evaluation"]
    found = non_finite(steps) + not_applied(steps) + gradient_spikes(steps) + held_out_rises(evaluations) + slow_end(steps)
    found += idle_experts(steps) + marked_spikes(steps)
    found += (
        failed_saves(rows)
        + skipped_saves(rows)
        + over_budget(rows)
        + failed_retention(rows)
        + failed_copies(rows)
        + stalled(rows)
        + rejected_checkpoints(refused)
        + [Finding(event["kind"], event["step"], event["text"]) for event in events if event["kind"] in RANKS]
        + [Finding("slow_saves", slow.step, slow.words()) for slow in slow_saves(rows)]
    )
    return sorted(found, key=lambda finding: finding.step)


def non_finite(steps: list[dict]) -> list[Finding]:
    """A loss or gradient norm that is NaN or infinite."""
    bad = [row for row in steps if not (math.isfinite(row["loss"]) and math.isfinite(row["grad_norm"]))]
    return [Finding("non_finite", row["step"], f"loss {row['loss']}, gradient norm {row['grad_norm']}") for row in bad]


def not_applied(steps: list[dict]) -> list[Finding]:
    """A step whose update never reached the weights: the step is counted, but nothing was learned from its batch (L9)."""
    skipped = [row for row in steps if row.get("applied") is False]
    return [Finding("not_applied", row["step"], f"the update was not applied: {why_left_out(row)}") for row in skipped]


def marked_spikes(steps: list[dict]) -> list[Finding]:
    """Steps that the trainer marked as spikes (``monitor.spikes``)."""
    found = [row for row in steps if isinstance(row.get("spike"), dict)]
    return [Finding("spike", row["step"], reading_words(row["loss"], row["grad_norm"], row["spike"])) for row in found]


def why_left_out(row: dict) -> str:
    """Of a step whose update was not applied: a gradient that was not finite or too high (``optim.guard``), or a spike."""
    if row.get("spike"):
        return "it is a spike, and the recipe says skip_update"
    norm = float(row["grad_norm"])  # as a record is read, a number that is not finite is a word
    if not math.isfinite(norm):
        return "its gradient was not finite"
    return f"its gradient norm, {norm:.3g}, was further above the recent ones than the recipe admits"


def idle_experts(steps: list[dict]) -> list[Finding]:
    """A layer most of whose experts had no token, ``IDLE_STEPS`` steps in a row: the router has collapsed. Once per stretch."""
    found, run = [], 0
    for row in steps:
        run = run + 1 if row.get("idle_experts", 0) > IDLE_SHARE else 0
        if run == IDLE_STEPS:
            message = f"in some layer {100 * row['idle_experts']:.0f} % of the experts had no token, {run} steps in a row"
            found.append(Finding("idle_experts", row["step"], message))
    return found


def gradient_spikes(steps: list[dict]) -> list[Finding]:
    """A gradient norm above ``GRADIENT_FACTOR`` times the mean of the last unflagged steps."""
    found, window = [], deque[float](maxlen=GRADIENT_WINDOW_STEPS)
    for row in steps:
        norm = row["grad_norm"]
        if not math.isfinite(norm):
            continue
        if len(window) >= GRADIENT_FIRST_STEPS and norm > GRADIENT_FACTOR * fmean(window):
            message = f"gradient norm {norm:.3g} is {norm / fmean(window):.1f} times its trailing mean"
            found.append(Finding("gradient_spike", row["step"], message))
        else:
            window.append(norm)
    return found


def held_out_rises(evaluations: list[dict]) -> list[Finding]:
    """The held-out loss of a source rose ``RISES`` times in a row."""
    found = []
    last: dict[str, float] = {}
    rises: dict[str, int] = {}
    for row in evaluations:
        for source, loss in row["loss"].items():
            rises[source] = rises.get(source, 0) + 1 if loss > last.get(source, math.inf) else 0
            last[source] = loss
            if rises[source] >= RISES:
                found.append(
                    Finding("held_out_rises", row["step"], f"held-out loss of {source} rose {rises[source]} times in a row")
                )
    return found


def slow_end(steps: list[dict]) -> list[Finding]:
    """The newest steps run below ``THROUGHPUT_SHARE`` of the run's median speed."""
    timed = [(row["targets"] / ns, ns) for row in steps if (ns := _working_ns(row))]
    passed, newest = 0, len(timed)
    while newest and passed < THROUGHPUT_WINDOW_NS:
        newest -= 1
        passed += timed[newest][1]
    before = timed[:newest]
    if passed < THROUGHPUT_WINDOW_NS or sum(ns for _, ns in before) < THROUGHPUT_WINDOW_NS:
        return []
    usual, now = median(speed for speed, _ in before), median(speed for speed, _ in timed[newest:])
    if now >= THROUGHPUT_SHARE * usual:
        return []
    message = f"the last ten minutes of steps ran at {now / usual:.0%} of the usual speed"
    return [Finding("slow", steps[-1]["step"], message)]


def failed_saves(rows: list[dict]) -> list[Finding]:
    """A save that failed, unless a later one succeeded (C3)."""
    saved = max((row["step"] for row in rows if row["kind"] == "save"), default=-1)
    failed = [row for row in rows if row["kind"] == "save_failed" and row["step"] > saved]
    return [Finding("save_failed", row["step"], f"the save of step {row['step']} failed: {row['error']}") for row in failed]


def skipped_saves(rows: list[dict]) -> list[Finding]:
    """The newest save that came due was left out: the one before it was still being written, and failures now cost more."""
    saves = [row for row in rows if row["kind"] in ("snapshot", "save_skipped")]
    if not saves or saves[-1]["kind"] == "snapshot":
        return []
    row = saves[-1]
    left_out = sum(row["kind"] == "save_skipped" for row in saves)
    return [
        Finding("save_skipped", row["step"], f"the save of step {row['step']} was left out ({left_out} in all): {row['reason']}")
    ]


def over_budget(rows: list[dict]) -> list[Finding]:
    """What must stay takes more than the budget, as the last word of retention says."""
    saved = [row["step"] for row in rows if row["kind"] == "save"][-2:]
    said = [row for row in rows if row["kind"] == "over_budget" and row["step"] >= min(saved, default=0)]
    return [Finding("over_budget", row["step"], row["error"]) for row in said[-1:]]


def failed_retention(rows: list[dict]) -> list[Finding]:
    """Old checkpoints that could not be deleted, unless it worked after a later save: the disk fills up meanwhile."""
    saved = max((row["step"] for row in rows if row["kind"] == "save"), default=-1)
    failed = [row for row in rows if row["kind"] == "retention_failed" and row["step"] >= saved]
    return [Finding("retention_failed", row["step"], f"deleting old checkpoints failed: {row['error']}") for row in failed]


def failed_copies(rows: list[dict]) -> list[Finding]:
    """A copy to the mirror that failed, unless a later one worked."""
    copied = max((row["step"] for row in rows if row["kind"] == "mirrored"), default=-1)
    failed = [row for row in rows if row["kind"] == "mirror_failed" and row["step"] > copied]
    return [
        Finding("mirror_failed", row["step"], f"copying step {row['step']} to the mirror failed: {row['error']}")
        for row in failed
    ]


def stalled(rows: list[dict]) -> list[Finding]:
    """The last word is that the trainer waits for data; which shard it is reading (D12)."""
    if not rows or rows[-1]["kind"] != "stall":
        return []
    row = rows[-1]
    waited = format_seconds(row["waited_ns"] / 1e9)
    return [Finding("stalled", row["step"], f"step {row['step'] + 1} has waited {waited} for its data, reading {row['shard']}")]


def rejected_checkpoints(refused: Iterable[dict]) -> list[Finding]:
    """Each checkpoint that was found damaged, once: no later save mends the storage that did it."""
    reasons: dict[str, str] = {}
    for entry in refused:
        reasons.setdefault(entry["checkpoint"], entry["reason"])
    named = ((parse_name(name.partition(".")[0]), name, reason) for name, reason in reasons.items())  # NAME.damaged-1 too
    return [
        Finding("checkpoint_rejected", parsed.step if parsed else 0, f"checkpoint {name} was refused: {reason}")
        for parsed, name, reason in named
    ]


def _working_ns(row: dict) -> int:
    split = row.get("split", {})
    return split.get(Category.PRODUCTIVE, 0) + split.get(Category.DATA_STALL, 0)
