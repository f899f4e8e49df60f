"""The whole account of a run, read once: time, capacity, progress, definitions, attempts, the interval between checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway.monitor.capacity import Capacity, build_capacity, kinds_of_steps
from headway.monitor.goodput import AttemptTime, Fall, View, by_attempt, views, waterfall
from headway.monitor.interval_view import IntervalReport, interval_report
from headway.monitor.ledger import Ledger, build_ledger
from headway.monitor.summary import damaged_words
from headway.monitor.utilisation import Utilisation, utilisation
from headway.recipe.schedules import Schedule
from headway.recipe.spec import Spec
from headway.rundir.events import read_event_chain, with_open_pause
from headway.rundir.layout import RunDirectory
from headway.rundir.metrics import read_step_rows
from headway.rundir.segments import Segment, current_chain, deployment_of, read_segments


@dataclass(frozen=True, kw_only=True)
class Account:
    """``utilisation`` None: the spec cannot be read. ``interval`` None: no step is on record."""

    name: str
    ledger: Ledger
    capacity: Capacity
    utilisation: Utilisation | None
    views: tuple[View, ...]
    waterfall: tuple[Fall, ...]
    attempts: tuple[AttemptTime, ...]
    interval: IntervalReport | None

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "ledger": self.ledger.to_json(),
            "capacity": self.capacity.to_json(),
            "utilisation": self.utilisation.to_json() if self.utilisation else None,
            "views": [vars(view) for view in self.views],
            "waterfall": [vars(fall) for fall in self.waterfall],
            "attempts": [vars(attempt) for attempt in self.attempts],
            "interval": self.interval.to_json() if self.interval else None,
        }


def read_account(run: RunDirectory) -> Account:
    """Reads every record; changes nothing."""
    history, segments, spec = read_event_chain(run), read_segments(run), run.spec()
    read = {segment.id: read_step_rows(run, segment.id) for segment in segments}
    steps = {number: lines.rows for number, lines in read.items()}
    chain, damaged = current_chain(segments), damaged_words(history, read)
    ledger = build_ledger(with_open_pause(run, history.chain), steps, chain, Schedule(spec), damaged, segments)
    return account_of(
        ledger,
        name=run.info()["name"],
        events=history.chain,
        steps=steps,
        segments=segments,
        spec=spec,
        stated=run.info()["deployment"],
        in_force=deployment_of(run, segments),
    )


def account_of(
    ledger: Ledger,
    *,
    name: str,
    events: Sequence[dict],
    steps: dict[int, list[dict]],
    segments: Sequence[Segment],
    spec: Spec | None,
    stated: Mapping[str, Any],
    in_force: Mapping[str, Any],
) -> Account:
    """``stated``, ``in_force``: resolved deployments, that the run was created with and that of its newest segment."""
    capacity = build_capacity(ledger, steps, segments, stated)
    used = (
        utilisation(ledger, capacity=capacity, steps=steps, segments=segments, deployment=stated, spec=spec)
        if spec is not None
        else None
    )
    return Account(
        name=name,
        ledger=ledger,
        capacity=capacity,
        utilisation=used,
        views=views(ledger, capacity=capacity, kinds=kinds_of_steps(steps, segments), utilisation=used),
        waterfall=waterfall(ledger),
        attempts=by_attempt(ledger, events, segments),
        interval=interval_report(list(events), steps, in_force),
    )
