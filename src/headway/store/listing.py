"""All that lies under checkpoints/, each with what it is, why it stays, and which one a resume would go on from.

A glance, no proof: manifests, receipts, sizes and headers are checked, the data are not read. What was refused once, when all of
it was read, counts as refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from headway.rundir.layout import RunDirectory
from headway.rundir.segments import Segment, is_admissible
from headway.store.admissible import CheckpointInfo, deleted_names, judge, list_checkpoints, recorded_names
from headway.store.names import parse_name
from headway.store.policy import Retention
from headway.store.retention import best_of, for_roll_backs, generations_of
from headway.store.stock import Holding, directory_bytes, held_out_losses, take_stock
from headway.store.verify import outline

HISTORY, LATE, REFUSED = "history", "late or rolled back", "refused"
UNFINISHED, CUT_SHORT = "unfinished", "half deleted"
"""Standings. Refused: damaged, or not this run's own. Late, rolled back and refused ones are evidence: nothing deletes them."""


@dataclass(frozen=True, kw_only=True)
class Listed:
    """One directory under checkpoints/."""

    name: str
    segment: int
    step: int
    nbytes: int  # of its files
    committed: bool
    admissible: bool  # on the current chain, by segment and step
    standing: str
    reason: str  # why it is refused; empty: it is not
    marks: tuple[str, ...]  # permanent, best, roll-back, kept by name, link
    ordinal: int | None  # the how many-th committed save of the history it is
    loss: float | None  # held-out loss on record at its step
    chosen: bool  # a resume would go on from it, as far as a glance tells


@dataclass(frozen=True, kw_only=True)
class Listing:
    """``missing``: on record as saved in this history, gone, and not deleted by retention."""

    checkpoints: tuple[Listed, ...]
    missing: tuple[str, ...]

    @property
    def chosen(self) -> Listed | None:
        return next((listed for listed in self.checkpoints if listed.chosen), None)

    def to_json(self) -> dict[str, Any]:
        chosen = self.chosen.name if self.chosen else None
        return {"chosen": chosen, "checkpoints": list(map(asdict, self.checkpoints)), "missing": list(self.missing)}


def list_all(run: RunDirectory, chain: list[Segment], policy: Retention) -> Listing:
    """Every directory under checkpoints/ that is named like a checkpoint, by segment and step."""
    stock = {holding.name: holding for holding in take_stock(run, chain)}
    infos = list_checkpoints(run, chain)
    holdings = [stock.get(info.name) or _behind_link(run, info) for info in infos]
    glance, losses = judge(run, chain, outline), held_out_losses(run, chain)
    reasons = {h.name: h.refusal or h.damage or (glance(h.name) if h.info.committed else "") for h in holdings}
    best = {holding.name for holding in best_of(generations_of(list(stock.values())), losses, policy.keep_best)}
    back = {holding.name for holding in for_roll_backs(generations_of(list(stock.values())), policy.back_steps)}
    fit = [holding for holding in holdings if holding.in_history and not reasons[holding.name]]
    rows = [
        Listed(
            name=holding.name,
            segment=holding.info.segment,
            step=holding.info.step,
            nbytes=holding.nbytes,
            committed=holding.info.committed,
            admissible=holding.info.admissible,
            standing=_standing(holding, reasons[holding.name]),
            reason=reasons[holding.name],
            marks=tuple(_marks(holding, policy, holding.name in best, holding.name in back)),
            ordinal=holding.ordinal,
            loss=losses.get(holding.info.step) if holding.in_history else None,
            chosen=holding in fit[-1:],
        )
        for holding in holdings
    ]
    return Listing(checkpoints=tuple(rows), missing=_missing(run, chain, {info.name for info in infos}))


def _behind_link(run: RunDirectory, info: CheckpointInfo) -> Holding:
    """Retention takes no stock of links; a resume follows them."""
    return Holding(info=info, nbytes=directory_bytes(run.checkpoints / info.name))


def _standing(holding: Holding, reason: str) -> str:
    if holding.halfway:
        return CUT_SHORT
    if reason:
        return REFUSED
    if not holding.info.committed:
        return UNFINISHED
    return HISTORY if holding.in_history else LATE


def _marks(holding: Holding, policy: Retention, best: bool, back: bool) -> Iterator[str]:
    if policy.is_permanent(holding.ordinal):
        yield "permanent"
    if best:
        yield "best"
    if back:
        yield "roll-back"
    if holding.label is not None:
        yield f"kept: {holding.label}" if holding.label else "kept"
    if holding.info.is_link:
        yield "link"


def _missing(run: RunDirectory, chain: list[Segment], present: set[str]) -> tuple[str, ...]:
    parsed = (parse_name(name) for name in recorded_names(run, chain) - present - deleted_names(run))
    return tuple(str(name) for name in sorted(filter(None, parsed)) if is_admissible(chain, name.segment, name.step))
