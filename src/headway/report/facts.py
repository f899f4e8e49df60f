"""``RunFacts``: everything the page knows, read once from the run directory and never changed.

A run may be incomplete in any way; what is missing is None or empty, and ``missing`` says it in words.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.base.files import read_json
from headway.monitor.account import Account, account_of
from headway.monitor.alarms import Finding, find_alarms
from headway.monitor.ledger import Ledger, build_ledger
from headway.recipe.schedules import Schedule
from headway.recipe.spec import Spec
from headway.report.attempts import SegmentFacts, attempt, read_attempts
from headway.report.rows import (
    Evaluation,
    Sample,
    Save,
    Steps,
    gather_evaluations,
    gather_samples,
    gather_saves,
    gather_steps,
    whole,
)
from headway.report.stored import stored_parameters
from headway.rundir.events import EventChain, read_event_chain, with_open_pause
from headway.rundir.layout import RunDirectory
from headway.rundir.segments import deployment_of
from headway.store.admissible import refusals


@dataclass(frozen=True)
class RunFacts:
    """The run as its directory tells it."""

    root: Path
    info: dict[str, Any]
    spec: Spec | None
    plan: dict[str, Any] | None
    segments: tuple[SegmentFacts, ...]
    events: tuple[dict, ...]
    late: tuple[dict, ...]  # written by an owner after it had lost its lease: shown, no part of what happened
    steps: Steps
    evaluations: tuple[Evaluation, ...]
    saves: tuple[Save, ...]
    samples: tuple[Sample, ...]
    ledger: Ledger | None
    categories: dict[str, int]  # the ledger's sums, ns, largest first
    refused: tuple[dict, ...]  # {checkpoint, reason} of every checkpoint that was found damaged
    findings: tuple[Finding, ...] | None  # of the alarms over the history; None: they could not be worked out
    stored_parameters: int | None  # counted in the newest checkpoint that reads well
    missing: tuple[str, ...]
    account: Account | None = None  # of time and devices; None: there is no ledger, or no spec

    @property
    def schedule(self) -> Schedule | None:
        rates = self.segments[-1].segment.rates if self.segments else ()
        return Schedule(self.spec, rates) if self.spec is not None else None

    @property
    def name(self) -> str:
        return str(self.info.get("name") or (self.spec.name if self.spec else self.root.name))

    @property
    def kept(self) -> Steps:
        """The run's history: each step once, in order."""
        return self.steps.where(self.steps.kept)

    @property
    def discarded(self) -> Steps:
        """Steps that were executed and rolled back."""
        return self.steps.where(~self.steps.kept)

    @property
    def chain(self) -> tuple[SegmentFacts, ...]:
        return tuple(facts for facts in self.segments if facts.on_chain)

    @property
    def environment(self) -> dict[str, Any]:
        """As the newest trainer recorded it."""
        return next((env for attempt in reversed(self.segments) if (env := attempt.environment)), {})

    @property
    def state(self) -> str:
        """complete, stopped, failed; or unfinished: nobody recorded an end."""
        finishes = [e for e in self.events if e.get("kind") in ("finish", "open", "launch")]
        if finishes and finishes[-1]["kind"] == "finish":
            return str(finishes[-1].get("state", "unfinished"))
        end = self.segments[-1].last("end") if self.segments else None
        return str(end.get("state")) if end else "unfinished"

    @property
    def final_digest(self) -> str | None:
        """Of the state at the end, or after the newest kept step that has one."""
        end = self.segments[-1].last("end") if self.segments else None
        if end and end.get("digest"):
            return str(end["digest"])
        return next((digest for digest in reversed(self.kept.digest) if digest), None)


def gather(run: RunDirectory) -> RunFacts:
    """Read everything; nothing is written, nothing that is damaged stops the reading of the rest."""
    missing: list[str] = []
    spec = attempt(lambda: run.spec(), "spec.json", run.spec_file, missing)
    plan = (
        attempt(lambda: read_json(run.plan_file, "plan"), "plan.json", run.plan_file, missing) if run.plan_file.exists() else None
    )
    read = attempt(lambda: read_event_chain(run), "the record of events", run.events, missing) or EventChain([], [])
    events = tuple(read.chain)
    if read.damaged_lines:
        missing.append(f"{read.damaged_lines} torn or altered lines in the events were left out")
    segments = read_attempts(run, events, missing)
    ledger = attempt(
        lambda: _ledger(with_open_pause(run, list(events)), segments, spec, missing), "the ledger of time", run.root, missing
    )
    account = None
    if ledger is not None and spec is not None:
        account = attempt(lambda: _account(ledger, events, segments, spec, run), "the account of goodput", run.root, missing)
    rows = [(facts, record) for facts in segments for record in facts.records]
    kept = [record for facts, record in rows if facts.keeps(whole(record.get("step")))]
    rejected = [event for event in events if event.get("kind") == "checkpoint_rejected"]
    refused = (*rejected, *(attempt(lambda: refusals(run), "the record of refused checkpoints", run.root, missing) or ()))
    findings = attempt(lambda: tuple(find_alarms(kept, refused, events)), "the alarms", run.root, missing)
    saves = gather_saves(rows, run)
    return RunFacts(
        root=run.root,
        info=run.info(),
        spec=spec,
        plan=plan if isinstance(plan, dict) else None,
        segments=segments,
        events=events,
        late=tuple(read.late),
        steps=gather_steps(rows),
        evaluations=gather_evaluations(rows),
        saves=saves,
        samples=gather_samples(rows),
        ledger=ledger,
        categories=ledger.categories if ledger is not None else {},
        refused=refused,
        findings=findings,
        stored_parameters=stored_parameters(run, saves),
        missing=tuple(missing),
        account=account,
    )


def _account(
    ledger: Ledger, events: tuple[dict, ...], segments: tuple[SegmentFacts, ...], spec: Spec, run: RunDirectory
) -> Account:
    known = [facts.segment for facts in segments]
    return account_of(
        ledger,
        name=str(run.info().get("name", "")),
        events=events,
        steps={facts.segment.id: list(facts.records) for facts in segments},
        segments=known,
        spec=spec,
        stated=run.info()["deployment"],
        in_force=deployment_of(run, known),
    )


def _ledger(events: list[dict], segments: tuple[SegmentFacts, ...], spec: Spec | None, missing: list[str]) -> Ledger:
    """From the records that were read already; what is missing of them is a flag."""
    rows = {facts.segment.id: list(facts.records) for facts in segments}
    chain = [facts.segment for facts in segments if facts.on_chain]
    schedule = Schedule(spec) if spec is not None else None
    return build_ledger(events, rows, chain, schedule, tuple(missing), [facts.segment for facts in segments])
