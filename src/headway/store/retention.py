"""Which checkpoints may go, and which stay.

    keep   newest verified (always), everything newer than it, the last ``keep_last`` down from it, every ``permanent_every``-th
           of the history, the ``keep_best`` with the lowest held-out loss, those that a person keeps by name, those that
           roll-backs of ``back_steps`` need, the newest from before the last step that was repeated and found sound, the
           current segment's unfinished saves; and evidence
    budget when what remains takes more than ``budget_bytes``: of the last ones too, oldest first, down to the newest verified
    delete see ``deletion``

Evidence is what was committed and is no part of the history: refused as damaged (by a restart, or when it was read back here:
a line in rejected.jsonl), unreadable, late, or rolled back. No policy deletes it. The healthy part of the chain stays bounded
by the policy; evidence grows by one checkpoint per refusal and per late commit, and by what a roll-back goes back behind
(``keep_last``, the permanent and the best ones of that stretch at most). A run on healthy storage has none. To free the space,
remove such a directory by hand: nothing goes on from it. ``headway checkpoint list`` shows all that lie there.

Decides by chain and step; modification times and clocks play no part. Whoever put a link into checkpoints/ looks after it:
links are neither counted nor deleted, and nothing is deleted through one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from headway.base.errors import HeadwayError
from headway.base.records import append_stamped
from headway.base.units import format_bytes
from headway.rundir.layout import RunDirectory
from headway.rundir.segments import Segment, current_chain, read_segments
from headway.store.admissible import judge
from headway.store.deletion import delete
from headway.store.names import REJECTED
from headway.store.policy import Retention
from headway.store.stock import NEVER_COMMITTED, Holding, held_out_losses, take_stock
from headway.store.verify import Pages, drop_cached, verify

__all__ = ["Retention", "RetentionPlan", "apply_retention", "carry_out", "plan_retention", "read_back"]

SUPERSEDED, OVER_BUDGET = "superseded", "superseded, and what remains is over the budget"
CUT_SHORT = "its deletion was cut short"
LEFTOVER = f"{NEVER_COMMITTED}: left over by an older save"
"""Why something goes."""
UNFINISHED = "unfinished: its segment may still be writing it"


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Why a checkpoint stays; there may be several reasons."""

    name: str
    reasons: tuple[str, ...]
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class Going:
    """Why a checkpoint goes."""

    name: str
    reason: str
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class RetentionPlan:
    """What ``apply_retention`` does. Nothing is in ``going`` beside half-deleted ones unless ``anchor`` was read back whole."""

    kept: tuple[Kept, ...] = ()
    going: tuple[Going, ...] = ()
    anchor: str | None = None  # the newest that was read back and verified; None: nothing had to be read, or none was whole
    refused: tuple[tuple[str, str], ...] = ()  # (name, reason): found damaged when they were read back, newest first
    note: str = ""  # what somebody should know, such as a budget that cannot be kept


def apply_retention(run: RunDirectory, chain: list[Segment], policy: Retention) -> list[str]:
    """Delete what the policy lets go; returns the names. Nothing goes unless a newer one was read back and verified."""
    return carry_out(run, plan_retention(run, chain, policy))


def carry_out(run: RunDirectory, plan: RetentionPlan) -> list[str]:
    """Note the evidence, then delete; returns the names of what went. What a person marked meanwhile stays."""
    for name, reason in plan.refused:
        with contextlib.suppress(HeadwayError):  # a full disk must not block its own cure; the next read-back says it again
            append_stamped(run.checkpoints / REJECTED, {"kind": "checkpoint_rejected", "checkpoint": name, "reason": reason})
    return [item.name for item in plan.going if delete(run, item.name, reason=item.reason, verified=plan.anchor)]


def plan_retention(
    run: RunDirectory, chain: list[Segment], policy: Retention, verify: Callable[[str], str] | None = None
) -> RetentionPlan:
    """What the policy keeps and lets go, and why. Changes nothing; reads one checkpoint back if something would go.

    ``verify``: by name, empty when the checkpoint is whole (None: all of it is read, from the storage).
    """
    if [s.id for s in chain] != [s.id for s in current_chain(read_segments(run))]:
        return RetentionPlan(note="a newer segment owns the checkpoints: whoever was replaced deletes nothing")
    stock = take_stock(run, chain)
    losses = held_out_losses(run, chain) if policy.keep_best else {}
    plan = _decide(stock, policy, losses, "the newest one")
    if all(item.reason == CUT_SHORT for item in plan.going):
        return plan
    whole = verify or read_back(run, chain)
    refused: list[tuple[str, str]] = []
    for holding in reversed(generations_of(stock)):
        reason = whole(holding.name)
        if not reason:
            break
        refused.append((holding.name, reason))
    known = dict(refused)
    stock = [replace(holding, refusal=holding.refusal or known.get(holding.name, "")) for holding in stock]
    anchor = next((holding.name for holding in reversed(generations_of(stock))), None)
    return replace(_decide(stock, policy, losses, "the newest verified one"), anchor=anchor, refused=tuple(refused))


def read_back(run: RunDirectory, chain: list[Segment]) -> Callable[[str], str]:
    """Verifies from the storage, not from the page cache that the save has just filled."""
    reason_of = judge(run, chain, lambda directory: verify(directory, pages=Pages.DROPPED))

    def read(name: str) -> str:
        with contextlib.suppress(HeadwayError, OSError):
            drop_cached(run.checkpoints / name)
        return reason_of(name)

    return read


def generations_of(stock: list[Holding]) -> list[Holding]:
    """What a run could go on from, oldest first."""
    return [holding for holding in stock if holding.in_history and not holding.is_evidence]


def _decide(stock: list[Holding], policy: Retention, losses: dict[int, float], newest: str) -> RetentionPlan:
    """The plan, given that the newest generation is whole. ``newest``: what that one is called."""
    generations = generations_of(stock)
    reasons = _lasting_reasons(stock, policy, losses, newest)
    going = {holding.name: CUT_SHORT for holding in stock if holding.halfway}
    if generations:
        done = (generations[-1].info.segment, generations[-1].info.step)  # every rank was done with what it began before that
        older = [h for h in stock if not h.info.committed and (h.info.segment, h.info.step) < done]
        going |= {h.name: LEFTOVER for h in older if h.name not in going and not reasons[h.name]}
        going |= {h.name: SUPERSEDED for h in generations[: -policy.keep_last] if not reasons[h.name]}
    remaining_bytes = sum(holding.nbytes for holding in stock if holding.name not in going)
    for holding in generations[-policy.keep_last :]:
        if reasons[holding.name] or not policy.budget_bytes or remaining_bytes <= policy.budget_bytes:
            reasons[holding.name].append(f"among the last {policy.keep_last}")
        else:
            going[holding.name] = OVER_BUDGET
            remaining_bytes -= holding.nbytes
    staying = [holding for holding in stock if holding.name not in going]
    return RetentionPlan(
        kept=tuple(Kept(name=h.name, reasons=tuple(reasons[h.name]) or (UNFINISHED,), nbytes=h.nbytes) for h in staying),
        going=tuple(Going(name=h.name, reason=going[h.name], nbytes=h.nbytes) for h in stock if h.name in going),
        note=_budget_note(policy.budget_bytes, remaining_bytes),
    )


def _lasting_reasons(stock: list[Holding], policy: Retention, losses: dict[int, float], newest: str) -> dict[str, list[str]]:
    """By name: what keeps it whatever the budget, and however many newer ones there are."""
    generations = generations_of(stock)
    reasons = {holding.name: _own_reasons(holding, policy) for holding in stock}
    for holding in best_of(generations, losses, policy.keep_best):
        reasons[holding.name].append(f"held-out loss {losses[holding.info.step]:.4f}, among the best {policy.keep_best}")
    if generations:
        reasons[generations[-1].name].append(newest)
    for holding in for_roll_backs(generations, policy.back_steps):
        reasons[holding.name].append(f"for roll-backs of {policy.back_steps} steps")
    if sound := newest_sound(generations):
        reasons[sound.name].append(f"the newest from before step {sound_until(generations)}, which was repeated and found sound")
    return reasons


def sound_until(generations: list[Holding]) -> int:
    """The last step that was repeated and found sound, as the newest manifest says; 0: none was, or none are repeated now."""
    return generations[-1].checked if generations else 0


def newest_sound(generations: list[Holding]) -> Holding | None:
    """What a run goes on from when silent corruption is found next; None: from initial weights."""
    return next((holding for holding in reversed(generations) if holding.info.step <= sound_until(generations)), None)


def for_roll_backs(generations: list[Holding], back_steps: int) -> list[Holding]:
    """The newest that a spike right after the newest of all could go back to; and of what is newer the first in every
    ``back_steps`` steps, one of which takes its place: so there is always one, at most three times as old."""
    if not back_steps or not generations:
        return []
    enough = [holding for holding in generations if holding.info.step <= generations[-1].info.step - back_steps][-1:]
    firsts: dict[int, Holding] = {}
    for holding in generations:
        firsts.setdefault(holding.info.step // back_steps, holding)
    reached = enough[0].info.step if enough else 0
    return [*enough, *(holding for holding in firsts.values() if holding.info.step > reached)]


def best_of(generations: list[Holding], losses: dict[int, float], keep: int) -> list[Holding]:
    """The ``keep`` ones with the lowest loss at their step, of equal ones the newest."""
    measured = [holding for holding in reversed(generations) if holding.info.step in losses]
    return sorted(measured, key=lambda holding: losses[holding.info.step])[:keep]


def _own_reasons(holding: Holding, policy: Retention) -> list[str]:
    """What keeps it whatever else lies there."""
    reasons = []
    if holding.label is not None:
        reasons.append("kept by name" + (f": {holding.label}" if holding.label else ""))
    if holding.is_evidence:
        reasons.append(f"evidence: {holding.refusal or holding.damage}")
    elif holding.info.committed and not holding.in_history:
        reasons.append("evidence: late, or rolled back")
    elif policy.is_permanent(holding.ordinal):
        reasons.append(f"permanent: save {holding.ordinal}, one in {policy.permanent_every} is kept for good")
    return reasons


def _budget_note(budget_bytes: int | None, remaining_bytes: int) -> str:
    if not budget_bytes or remaining_bytes <= budget_bytes:
        return ""
    never = "the newest verified one, permanent and best ones, those kept by name, evidence, unfinished saves"
    taken = f"{format_bytes(remaining_bytes)} of a budget of {format_bytes(budget_bytes)}"
    return f"the checkpoints take {taken}, and nothing more goes by itself: {never} stay"
