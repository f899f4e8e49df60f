"""The proof of the replay: steps that were executed twice, side by side, with every digit."""

from __future__ import annotations

from headway.base.digests import short
from headway.report.material import Material
from headway.report.page import Block, Inline, Notice, Prose, Table, Tone, code, strong
from headway.report.replay import Match, Replay, ReplayedStep
from headway.report.words import NONE, every_digit, exact, listed, plural

PROOF_ROWS = 6


def proof_blocks(material: Material) -> list[Block]:
    """A statement and a small table: the first differences, the first steps and the last ones."""
    proof = material.proof
    if not proof.steps:
        text = "No step was executed twice, so there is no replay to compare."
        return [Prose(text)] if not proof.not_comparable else [Prose(f"{text} {_apart(proof)}")]
    rows = tuple(_proof_row(step) for step in _chosen(proof))
    hidden = len(proof.steps) - len(rows)
    caption = _evidence(proof) + _hidden(proof, hidden) + _apart(proof)
    columns = (">step", "segments", ">loss, every digit", "state digest, first", "state digest, second", "verdict")
    lead = Notice(_lead(material), Tone.GOOD if proof.proven else Tone.PLAIN if proof.identical else Tone.BAD)
    return [lead, Table(columns, rows, caption)]


def _hidden(proof: Replay, count: int) -> str:
    if not count:
        return ""
    return f" {plural(count, 'more step')} compared alike." if proof.identical else f" {plural(count, 'more step')} not shown."


def _lead(material: Material) -> Inline:
    proof = material.proof
    steps = [step.step for step in proof.steps]
    differ = sorted({step.step for step in proof.steps if not step.match.equal})
    where, twice = _places(steps), "twice" if len(set(steps)) == len(steps) else "more than once"
    if differ:
        return (
            strong("The replay is not identical."),
            f" Of {where}, executed {twice}, {plural(len(differ), 'step')} came out different, first step {differ[0]:,}. ",
            _cause(material),
        )
    strength = "to the bit" if proof.proven else "in loss and gradient norm; no state digest was recorded for them"
    verb, agree = ("was", "agrees") if len(set(steps)) == 1 else ("were", "agree")
    return (
        strong("Nothing was lost but time."),
        f" {where[0].upper()}{where[1:]} {verb} executed {twice} and {agree} {strength}.",
    )


def _places(steps: list[int]) -> str:
    """``step 7``, ``steps 1, 2 and 41 to 57``; many separate ones by their number and ends."""
    ordered = sorted(set(steps))
    heads = [step for step in ordered if step - 1 not in steps]
    tails = [step for step in ordered if step + 1 not in steps]
    if len(heads) > PROOF_ROWS:
        return f"{plural(len(ordered), 'step')} between {ordered[0]:,} and {ordered[-1]:,}"
    runs = [f"{a:,}" if a == b else f"{a:,} to {b:,}" for a, b in zip(heads, tails, strict=True)]
    return f"{'step' if len(ordered) == 1 else 'steps'} {listed(runs)}"


def _cause(material: Material) -> str:
    """What the records can say about why two executions differ."""
    changed = changes(material)
    if not changed:
        return (
            "The recorded environments are the same, so the cause is not among what is recorded: "
            "a machine that miscalculates, or something that the environment does not name."
        )
    code_change = changed.pop("code", None)
    others = ", ".join(f"{key} ({then}, then {now})" for key, (then, now) in changed.items())
    if code_change is None:
        return f"What changed between the segments: {others}."
    also = f" Also changed: {others}." if others else ""
    return (
        f"The cause named by the records: the code changed between the segments ({code_change[0]}, then {code_change[1]}).{also}"
    )


def changes(material: Material) -> dict[str, tuple[str, str]]:
    """By name, then and now: what changed before the first replayed step that differs. Empty: nothing that is recorded."""
    step = next((step for step in material.proof.steps if not step.match.equal), None)
    if step is None:
        return {}
    attempts = {attempt.segment.id: attempt for attempt in material.facts.segments}
    then, now = (attempts[segment].environment for segment in step.segments)
    restored = attempts[step.segments[1]].first("restored") or {}
    found = {
        key: (str(then.get(key)), str(now.get(key))) for key in sorted(then.keys() | now.keys()) if then.get(key) != now.get(key)
    }
    for entry in restored.get("differences") or []:  # as the trainer compared itself with the checkpoint: "key: then -> now"
        key, _, values = str(entry).partition(": ")
        before, _, after = values.partition(" -> ")
        found.setdefault(key, (before, after))
    return found


def _chosen(proof: Replay) -> list[ReplayedStep]:
    """The first differences, the first steps and the last ones."""
    differ = [step for step in proof.steps if not step.match.equal][: PROOF_ROWS // 2]
    half = (PROOF_ROWS - len(differ)) // 2
    with_digest = [step for step in proof.steps if step.match is Match.DIGEST_EQUAL] or list(proof.steps)
    chosen = {id(step): step for step in [*differ, *with_digest[:half], *with_digest[-half:]]}
    return sorted(chosen.values(), key=lambda step: (step.step, step.segments))


def _proof_row(step: ReplayedStep) -> tuple[Inline, ...]:
    same = every_digit(step.loss[0]) == every_digit(step.loss[1])
    losses = every_digit(step.loss[0]) if same else f"{every_digit(step.loss[0])} then {every_digit(step.loss[1])}"
    digests = tuple(code(short(digest)) if digest else NONE for digest in step.digests)
    mark = "=" if step.match.equal else "≠"
    return (exact(step.step), f"{step.segments[0]} and {step.segments[1]}", losses, *digests, f"{mark} {step.match.value}")


def _evidence(proof: Replay) -> str:
    by_digest, by_numbers = proof.count(Match.DIGEST_EQUAL), proof.count(Match.NUMBERS_EQUAL)
    text = f"{plural(by_digest, 'pair')} equal by the digest of all weights and moments"
    return text + (f", {by_numbers:,} by loss and gradient norm where no digest is due." if by_numbers else ".")


def _apart(proof: Replay) -> str:
    if not proof.not_comparable:
        return ""
    return f" {plural(proof.not_comparable, 'repeated step')} came after an intervention that changed the data, and may differ."
