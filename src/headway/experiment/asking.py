"""How an experiment asks the engine, and what it tells of trials while the engine trains them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

from headway.base.errors import HeadwayError
from headway.experiment.records import TrialRecord, read_record

Ask = Callable[[str, Sequence[str]], Any]
"""Runs an engine verb with its arguments to its end, and returns the JSON value that it answers."""
POLL_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Tell:
    """Who hears of the course of things; by default nobody."""

    phase: Callable[[str, int, int], None] = lambda name, trials, ended: None  # of them, those that had ended before
    trial: Callable[[TrialRecord, int, int], None] = lambda record, ended, trials: None  # one that has ended; of its phase


@contextmanager
def watched(root: Path, ids: Collection[str], before: int, tell: Tell) -> Iterator[None]:
    """While it lasts, ``tell`` hears of each of the trials ``ids`` that ends; ``before`` of the same phase had ended already.

    The asking stays in the caller's thread, so that an interrupt reaches the engine; records are whole or absent.
    """
    stop, waiting = Event(), list(ids)

    def look() -> None:
        for trial_id in list(waiting):
            if (record := _read(root, trial_id)) is not None:
                waiting.remove(trial_id)
                tell.trial(record, before + len(ids) - len(waiting), before + len(ids))

    def poll() -> None:
        with suppress(BrokenPipeError):  # the caller's own thread meets it at the end
            while not stop.wait(POLL_SECONDS):
                look()

    thread = Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        look()


def _read(root: Path, trial_id: str) -> TrialRecord | None:
    """A record that cannot be read is no progress; judging it comes later, and says what is wrong."""
    try:
        return read_record(root, trial_id)
    except HeadwayError:
        return None
