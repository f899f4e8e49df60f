"""Where every nanosecond went, and what became of the work."""

from __future__ import annotations

from headway.monitor.delivery import delivery
from headway.monitor.ledger import Ledger
from headway.monitor.meanings import MEANINGS
from headway.report.facts import RunFacts
from headway.report.material import Material
from headway.report.page import Block, Figure, Inline, Notice, Prose, Section, Table, Tone, strong, swatch
from headway.report.planned_values import step_rate
from headway.report.plots import category_colour
from headway.report.sections.goodput import goodput_blocks
from headway.report.words import duration, exact, percent, plural


def time(material: Material) -> Section:
    ledger = material.facts.ledger
    if ledger is None or not ledger.total_ns:
        return Section("time", "Where every second went", (Prose("No time is recorded yet."),))
    blocks: list[Block] = [
        _figure(material.facts.categories),
        _table(material.facts.categories),
        _equality(material.facts, ledger),
        _progress(material, ledger),
        *_input(material),
        *goodput_blocks(material),
    ]
    blocks += [Notice(flag, Tone.WARN) for flag in ledger.flags[:12]]
    if len(ledger.flags) > 12:
        blocks.append(Notice(f"{plural(len(ledger.flags) - 12, 'more flag')} of the ledger are not shown.", Tone.WARN))
    return Section("time", "Where every second went", tuple(blocks))


def _figure(categories: dict[str, int]) -> Figure:
    total = sum(categories.values())
    largest = ", ".join(f"{name.replace('_', ' ')} {percent(ns / total)}" for name, ns in list(categories.items())[:3])
    caption = (
        "Above: all of the run's wall-clock time. Below: the part that was not productive, enlarged. Hatched: "
        "time that bought nothing that was kept, or whose use is not known."
    )
    return Figure("time", f"Stacked bars of wall-clock time by category: {largest}", caption)


def _table(categories: dict[str, int]) -> Table:
    total = sum(categories.values())
    rows: list[tuple[Inline, ...]] = []
    for name, ns in categories.items():
        label = (swatch(category_colour(name)), name.replace("_", " "))
        rows.append((label, MEANINGS.get(name, ""), duration(ns), percent(ns / total, 2), exact(ns)))
    rows.append(("sum", "", duration(total), percent(1.0, 2), exact(total)))
    return Table(("category", "what it is", ">time", ">share", ">nanoseconds"), tuple(rows), total=True)


def chain_ns(facts: RunFacts) -> int | None:
    """Length of the chain of records from its two ends alone, when all of it lies on one boot; else None."""
    closing = [event for event in facts.events if "closes" in event]
    stamps = [event["stamp"] for event in (*facts.events[:1], *closing)]
    stamps += [record["stamp"] for attempt in facts.segments for record in attempt.records if "stamp" in record]
    if not stamps or len({stamp["boot_id"] for stamp in stamps}) != 1:
        return None
    return max(stamp["boot_ns"] for stamp in stamps) - stamps[0]["boot_ns"]


def _equality(facts: RunFacts, ledger: Ledger) -> Notice:
    total, ends = sum(facts.categories.values()), chain_ns(facts)
    drift = (
        f" Realtime clocks saw {duration(abs(ledger.drift_ns))} {'more' if ledger.drift_ns > 0 else 'less'}; "
        "they are shown, never used."
    )
    if ends is None:
        return Notice(
            f"The categories sum to {total:,} ns, which is the length of the chain of records; it spans "
            f"more than one boot, so its ends alone cannot be compared.{drift}"
        )
    if ends == total:
        return Notice(
            (strong("The books close: "),
                f"the categories sum to {total:,} ns; the last record of the run was written {ends:,} ns after "
                f"the first. The difference is 0 ns.{drift if ledger.drift_ns else ''}"),
            Tone.GOOD,
        )  # fmt: skip
    return Notice(
        (
            strong("The books do not close: "),
            f"the categories sum to {total:,} ns, the ends of the chain are {ends:,} ns apart, a "
            f"difference of {ends - total:,} ns.",
        ),
        Tone.BAD,
    )


def _progress(material: Material, ledger: Ledger) -> Table:
    discarded = material.facts.discarded
    lost_tokens = sum(item.lost_tokens for item in material.breaks)
    pending_steps = ledger.attempted.steps - ledger.committed.steps - len(discarded)
    rows: list[tuple[Inline, ...]] = [
        (
            "committed: in the newest checkpoint of the run's history",
            exact(ledger.committed.steps),
            exact(ledger.committed.tokens),
        ),
        ("rolled back: executed, then restored behind", exact(len(discarded)), exact(lost_tokens)),
    ]
    if pending_steps:
        rows.append(
            (
                "done, not yet in a checkpoint",
                exact(pending_steps),
                exact(ledger.attempted.tokens - ledger.committed.tokens - lost_tokens),
            )
        )
    rows.append(("attempted: every update that was executed", exact(ledger.attempted.steps), exact(ledger.attempted.tokens)))
    rate = step_rate(material)
    speed = f" Steps alone, waiting for input included, ran at {rate:,.0f} tokens/s." if rate else ""
    caption = (
        f"Only committed tokens are progress: {ledger.committed_tokens_per_second:,.0f} committed tokens/s "
        f"over all wall-clock time, goodput {percent(ledger.goodput, 2)}.{speed}"
    )
    return Table(("work", ">steps", ">tokens"), tuple(rows), caption, total=True)


def _input(material: Material) -> list[Block]:
    """How the batches came to the steps; nothing for runs that did not record it."""
    facts = material.facts
    rows = [record | {"segment": part.segment.id} for part in facts.segments for record in part.records if part.on_chain]
    found = delivery([row for row in rows if "kind" in row])
    if found is None:
        return []
    lines: list[tuple[Inline, ...]] = [
        (
            s.name,
            duration(s.wait_ns),
            *(exact(n) for n in (s.blocks, s.hits, s.misses, s.ahead, s.evictions, s.refetches, s.fetched_bytes)),
        )
        for s in found.sources
    ]
    empty = percent(found.empty / max(1, found.steps), 2)
    caption = (
        f"Input: steps waited {duration(found.wait_ns)} for it, {percent(found.wait_share, 2)} of their time; "
        f"{found.mean_ready:.1f} of {found.depth} batches were ready when asked for, none in {empty} of the steps. The "
        f"loader's thread used {percent(found.saturation, 1)} of a core. Waiting of a source is for its storage: opening "
        "shards, fetching them, verifying blocks on first touch; most of it is hidden behind the steps."
    )
    head = (
        "source",
        ">waited",
        ">blocks verified",
        ">cache hits",
        ">misses",
        ">ahead",
        ">evicted",
        ">fetched again",
        ">bytes fetched",
    )
    return [Table(head, tuple(lines), caption)] if found.steps else []
