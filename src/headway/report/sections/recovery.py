"""Every interruption: when, why, what it cost, and what the run looked like around it."""

from __future__ import annotations

from headway.report.attempts import SegmentFacts
from headway.report.material import Material
from headway.report.page import Block, Figure, Inline, Notice, Prose, Section, Table, Tone, code, strong
from headway.report.replay import Interruption
from headway.report.timelines import ROWS, end_text, offset_seconds
from headway.report.words import NONE, duration, exact, plural

CLOSEUPS = 3
"""Most interruptions drawn close up; all are in the table."""


def closeups(material: Material) -> list[tuple[str, Interruption]]:
    """Plot name and interruption of every close-up: those with something executed on both sides."""
    seen = set(material.facts.steps.segment.tolist())
    drawn = [item for item in material.breaks if {item.before.segment.id, item.after.segment.id} <= seen]
    return [(f"closeup-{item.after.segment.id}", item) for item in drawn[:CLOSEUPS]]


def recovery(material: Material) -> Section:
    facts = material.facts
    if not facts.segments:
        return Section("recovery", "Interruptions", (Prose("No segment is recorded: the run has not started."),))
    title = "The kill and the recovery" if {item.word for item in material.breaks} == {"killed"} else "Interruptions"
    blocks: list[Block] = [_story(item) for item in material.breaks]
    if not material.breaks:
        so_far = "so far" if facts.state == "unfinished" else "from beginning to end"
        blocks.append(Prose(f"One segment {so_far}: nothing interrupted the run."))
    if facts.ledger and facts.ledger.total_ns:
        blocks.append(_timeline(material))
    blocks += [_segments(material), *_rejected(material), *_costs(material)]
    blocks += [_closeup(name, item) for name, item in closeups(material)]
    blocks += [*_determinism(material), *_errors(material), *_late(material)]
    return Section("recovery", title, tuple(blocks))


def _story(item: Interruption) -> Prose:
    when = f"after step {item.last_step:,}" if item.own_steps else "before it had done a step"
    text: tuple = (
        strong(f"Segment {item.before.segment.id} was {item.word} {when}"),
        f" ({_why(item.before)}). Segment {item.after.segment.id} restored ",
        code(item.after.segment.checkpoint) if item.after.segment.checkpoint else "the initial weights",
        f" and went on from step {item.restored_step:,}. ",
    )
    lost = (
        f"{plural(item.lost_steps, 'step')} with {item.lost_tokens:,} tokens had to be done again "
        f"({duration(item.lost_work_ns)} of work)."
    )
    behind = f" The run was back where it had been {duration(item.behind_ns)} later." if item.behind_ns is not None else ""
    return Prose((*text, lost if item.lost_steps else "No work was lost.", behind))


def _why(attempt: SegmentFacts) -> str:
    ended = attempt.exit or {}
    seen = ended.get("signal") is not None or ended.get("code") is not None
    is_told = bool(ended.get("lost_node")) or (not seen and bool(ended.get("reason")))  # the reason says it all
    parts = ["" if is_told else end_text(attempt), str(ended.get("reason") or "")]
    return ", ".join(part for part in parts if part)


def _timeline(material: Material) -> Figure:
    alt = f"Timeline of {plural(len(material.facts.segments), 'segment')} over wall-clock time, coloured by category"
    hidden = len(material.facts.segments) - ROWS
    tail = f" The newest {ROWS} segments are drawn, {hidden:,} older ones are in the table." if hidden > 0 else ""
    caption = (
        "One row per segment; colours as in the table of time below, hatched where the time bought nothing "
        "that was kept. Triangles: committed checkpoints. Cross: the end of a trainer that did not end by "
        f"itself. Arrow: the state that was restored.{tail}"
    )
    return Figure("segments", alt, caption)


def _segments(material: Material) -> Table:
    columns = (">segment", ">parent", "restored", "repeats", ">executed", ">kept", "reason", "ended", "author")
    rows = tuple(_segment_row(material, attempt) for attempt in material.facts.segments)
    return Table(
        columns,
        rows,
        "Parent: the segment whose checkpoint was restored. Repeats: how exactly the trainer promised to repeat what was done "
        "from there before. Steps are updates. Kept: part of the run's history; the rest was rolled back by a later restore and "
        "stays on record.",
    )


def _segment_row(material: Material, attempt: SegmentFacts) -> tuple[Inline, ...]:
    segment, rows = attempt.segment, material.facts.steps
    own = rows.where(rows.segment == segment.id)
    restored: Inline = (
        (f"step {segment.restored_step:,}, ", code(segment.checkpoint)) if segment.checkpoint else "initial weights"
    )
    executed = f"{int(own.step[0]):,} to {int(own.step[-1]):,}" if len(own) else "none"
    return (
        exact(segment.id),
        exact(segment.parent),
        restored,
        str((attempt.first("restored") or {}).get("determinism") or NONE),
        executed,
        exact(int(own.kept.sum())),
        segment.reason,
        _ended(attempt),
        segment.author,
    )


def _ended(attempt: SegmentFacts) -> str:
    end = attempt.last("end")
    said = str(end.get("state")) if end else ""
    return ", ".join(part for part in (said, end_text(attempt)) if part)


def _rejected(material: Material) -> list[Block]:
    recorded = {(str(entry.get("checkpoint")), str(entry.get("reason"))) for entry in material.facts.refused}
    if not recorded:
        return []
    return [Table(("refused checkpoint", "why"), tuple((code(name), why) for name, why in sorted(recorded)))]


def _costs(material: Material) -> list[Block]:
    if not material.breaks:
        return []
    columns = (
        ">after step",
        ">back to",
        ">steps lost",
        ">tokens lost",
        ">work lost",
        ">detection to stop",
        ">restart",
        ">behind by",
    )
    rows = tuple(_cost_row(material, item) for item in material.breaks)
    caption = (
        "Work lost: time of the steps that were rolled back. Restart: from the stop to the first new step "
        "(reconfigure, start-up, restore). Behind by: from the first to the second time that the last step "
        "was done."
    )
    return [Table(columns, rows, caption)]


def _cost_row(material: Material, item: Interruption) -> tuple[Inline, ...]:
    spent = segment_ns(material, item.after.segment.id, ("reconfigure", "provision", "init", "restore", "compile"))
    stop = segment_ns(material, item.before.segment.id, ("detection_to_stop", "hang"))
    return (
        exact(item.last_step),
        exact(item.restored_step),
        exact(item.lost_steps),
        exact(item.lost_tokens),
        duration(item.lost_work_ns),
        duration(stop),
        duration(spent),
        duration(item.behind_ns),
    )


def segment_ns(material: Material, segment: int, categories: tuple[str, ...]) -> int | None:
    """Nanoseconds of a segment in some categories; None without a ledger. Its own orderly end is not a restart."""
    ledger = material.facts.ledger
    if ledger is None:
        return None
    first = next(
        (
            i.start_ns
            for i in ledger.intervals
            if i.segment == segment and i.category.value in ("productive", "rolled_back", "data_stall")
        ),
        None,
    )
    before = [i for i in ledger.intervals if i.segment == segment and i.category.value in categories]
    if "init" in categories and first is not None:
        before = [i for i in before if i.start_ns < first]
    return sum(i.ns for i in before)


def _closeup(name: str, item: Interruption) -> Figure:
    first, second = item.before.segment.id, item.after.segment.id
    alt = (
        f"Loss around step {item.last_step:,} with both executions, segment {first} as open circles and segment {second} as dots"
    )
    caption = (
        f"Both executions around the end of segment {first}. A dot inside its circle is the same loss; the "
        "strip below compares the state after each repeated step."
    )
    return Figure(name, alt, caption)


def _determinism(material: Material) -> list[Block]:
    """Resumes under another environment can only be equal within a tolerance: say it where it happened."""
    notices: list[Block] = []
    for attempt in material.facts.segments:
        restored = attempt.first("restored") or {}
        changed = restored.get("differences") or []
        if changed:
            only_code = all(str(entry).startswith("code:") for entry in changed)
            text = (
                f"Segment {attempt.segment.id} went on {'with other code' if only_code else 'in another environment'} "
                f"({'; '.join(map(str, changed))}): equal within tolerance, not to the bit."
            )
            notices.append(Notice(text, Tone.WARN))
    return notices


def _errors(material: Material) -> list[Block]:
    notices: list[Block] = []
    for attempt in material.facts.segments:
        problems = (attempt.error or {}).get("problems") or []
        for problem in problems:
            seen = str(problem.get("seen") if isinstance(problem, dict) else problem)
            if attempt.error_is_secondary:
                seen = f"{(attempt.exit or {}).get('reason')}. Rank {(attempt.error or {}).get('rank')} noticed it as: {seen}"
            notices.append(Notice((strong(f"Segment {attempt.segment.id} failed: "), seen), Tone.BAD))
    for attempt in material.facts.segments:
        for record in attempt.records:
            if record.get("kind") == "save_failed":
                notices.append(
                    Notice(f"A save failed after step {record.get('step')}: {record.get('error')}. Training went on.", Tone.WARN)
                )
    return notices


def _late(material: Material) -> list[Block]:
    """What an owner wrote after another one had taken the run over."""
    if not material.facts.late:
        return []
    rows = tuple(_late_row(material, record) for record in material.facts.late)
    caption = (
        "Late records: written by an owner after it had lost its lease and another had taken over. They are no part of the "
        "history, and no time is booked for them."
    )
    return [Table(("late record", ">segment", ">after the start", "what it says"), rows, caption)]


def _late_row(material: Material, record: dict) -> tuple[Inline, ...]:
    at = offset_seconds(material.facts, record)
    segment = record.get("segment")
    said = ", ".join(str(record[key]) for key in ("state", "checkpoint", "reason", "text") if record.get(key))
    return (
        str(record.get("kind")),
        exact(segment) if isinstance(segment, int) else NONE,
        NONE if at is None else duration(at * 1e9),
        said or NONE,
    )
