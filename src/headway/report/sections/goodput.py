"""Below the ledger of time: device time, goodput by each definition, MFU and HFU: what ``headway goodput`` prints."""

from __future__ import annotations

from headway.formulas.flops import flops_per_token
from headway.monitor.account import Account
from headway.monitor.capacity import MISSING, SLOWER, category_words, device_time
from headway.monitor.meanings import MEANINGS
from headway.recipe.spec import Spec
from headway.report.material import Material
from headway.report.page import Block, Figure, Inline, Notice, Prose, Table, Tone, swatch
from headway.report.plots import category_colour
from headway.report.words import NONE, exact, percent

_CAPACITY = {
    MISSING: "devices asked for that were not there",
    SLOWER: "what slow steps took beyond the good pace of their stage, batch and layout",
}


def goodput_blocks(material: Material) -> list[Block]:
    account = material.facts.account
    if account is None:
        return []
    figure = Figure(
        "goodput",
        "Waterfall from all time down to committed work",
        "Each bar is what one category took away; what is left at the end is in the newest checkpoint.",
    )
    return [figure, _device_time(account), _views(account), *_utilisation(material.facts.spec, account)]


def _device_time(account: Account) -> Table:
    capacity = account.capacity
    rows: list[tuple[Inline, ...]] = []
    for name, amount in capacity.categories.items():
        label: Inline = name if name in _CAPACITY else (swatch(category_colour(name)), category_words(name))
        words = _CAPACITY.get(name) or MEANINGS.get(name, "")
        rows.append((label, words, device_time(amount), percent(amount / capacity.total, 2), exact(amount)))
    rows.append(("sum", "", device_time(capacity.total), percent(1.0, 2), exact(capacity.total)))
    caption = "Slow is capacity, not time: a slow step is productive time, and part of what its devices could have done is lost."
    return Table(("category", "what it is", ">device time", ">share", ">device nanoseconds"), tuple(rows), caption, total=True)


def _views(account: Account) -> Table:
    rows: list[tuple[Inline, ...]] = [
        (view.name, percent(view.value, 2), view.formula, view.otherwise, view.source) for view in account.views
    ]
    caption = "One ledger, several definitions: they differ in what they leave out and in what they still call productive."
    return Table(("definition", ">value", "formula", "what it counts", "source"), tuple(rows), caption)


def _utilisation(spec: Spec | None, account: Account) -> list[Block]:
    """MFU and HFU under each convention where a dense peak is known; else the reason why not (G2, G3)."""
    used = account.utilisation
    if used is None or spec is None:
        return []
    if used.peak.flops is None:
        words = f"{used.peak.device}: {used.peak.words}"
        return [Prose(f"MFU is not shown: {words}; another device's peak is never borrowed.")]
    stage = max(spec.stages, key=lambda s: s.sequences * s.sequence_length)
    rows: list[tuple[Inline, ...]] = [
        (
            one.convention.value,
            one.formula,
            f"{flops_per_token(spec.model, stage.sequence_length, one.convention):.4g}",
            *(NONE if share is None else percent(share, 2) for share in (one.mfu, one.hfu, one.mfu_end_to_end)),
        )
        for one in used.shares
    ]
    caption = (
        f"Of {used.peak.flops:.4g} FLOP/s a device, {used.peak.words}. MFU and HFU: over kept steps and the devices that were "
        "there; HFU counts what layouts compute again too. End-to-end: committed tokens, over all time and all devices asked "
        f"for. FLOPs per token are those at {stage.sequence_length:,} tokens."
    )
    head = ("convention", "FLOPs per token", ">value", ">MFU", ">HFU", ">MFU, end-to-end")
    blocks: list[Block] = [Table(head, tuple(rows), caption)]
    if used.alarm:
        blocks.append(Notice(f"An MFU above 100 % is not possible: {used.alarm}.", Tone.BAD))
    return blocks
