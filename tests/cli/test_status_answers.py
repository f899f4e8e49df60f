"""What a person asks ``headway status`` first: which run, how long still, how fast, whose."""

from __future__ import annotations

from types import SimpleNamespace

from headway.cli.goodput import interval_words, speed_words
from headway.cli.status import owner_words
from headway.monitor.summary import seconds_left

S = 10**9


class Line:
    """Of 100 tokens a step, ten steps."""

    total_tokens = 1000

    def tokens_before(self, step: int) -> int:
        return 100 * step


def row(kind: str, step: int, seconds: int) -> dict:
    return {"kind": kind, "step": step, "split": {"productive": seconds * S}}


def test_time_left_is_at_the_pace_since_the_start_with_saves():
    rows = [row("restored", 4, 50), row("step", 5, 2), row("step", 6, 2), row("save", 6, 4)]
    assert seconds_left(rows, Line()) == 16.0
    assert seconds_left(rows[:1], Line()) is None
    assert seconds_left([row("restored", 9, 1), row("step", 10, 2)], Line()) is None


def test_before_the_first_save_the_speed_is_that_of_what_was_attempted():
    progress = SimpleNamespace
    ledger = SimpleNamespace(
        committed=progress(tokens=0), attempted=progress(tokens=1000), total_ns=10 * S, committed_tokens_per_second=0.0
    )
    assert speed_words(ledger) == "none committed yet, the first save does that; 100 attempted tokens per second"
    ledger.committed, ledger.committed_tokens_per_second = progress(tokens=500), 50.0
    assert speed_words(ledger) == "50 committed tokens per second"


def test_an_owner_is_named_without_what_only_a_kernel_counts():
    owner = {"host": "vm", "pid": 7, "start_ticks": 5563915, "author": "anna"}
    assert owner_words(owner) == "process 7 on vm, started by anna"
    assert owner_words({}) == "an unknown process"


def test_what_an_interval_loses_is_said_of_what_and_at_which_rate():
    costs = [SimpleNamespace(what="in force", total=0.2979), SimpleNamespace(what="best", total=0.1408)]
    told = {"adaptive": False, "in_force_seconds": 10.0, "reason": "why", "changes": 0, "best_seconds": 0.639, "costs": costs}
    words = interval_words(SimpleNamespace(**told, between_seconds=3600.0, interruptions=0))
    assert "it loses 29.79% of the training time, 639 ms would lose 14.08%" in words
    assert "with an interruption every 1 h" in words
    assert "(assumed or as the deployment states, none seen yet)" in words
    assert "(as seen)" in interval_words(SimpleNamespace(**told, between_seconds=3600.0, interruptions=2))
