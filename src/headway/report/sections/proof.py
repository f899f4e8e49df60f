"""The proof of the replay: steps that were executed twice, side by side, with every digit."""

from __future__ import annotations

from headway.base.digests import short
from headway.report.material import Material
from headway.report.page import Block, Inline, Notice, Prose, Table, Tone, code, strong
from headway.report.replay import Match, Replay, ReplayedStep
from headway.report.words import NONE, every_digit, exact, plural

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
    differ = [step.step for step in proof.steps if not step.match.equal]
    where = f"steps {min(steps):,} to {max(steps):,}" if len(set(steps)) > 1 else f"step {steps[0]:,}"
    if differ:
        return (
            strong("The replay is not identical."),
            f" Of {where}, executed twice, {plural(len(differ), 'step')} came out different, first step {min(differ):,}. ",
            _cause(material),
        )
    strength = "to the bit" if proof.proven else "in loss and gradient norm; no state digest was recorded for them"
    return (strong("Nothing was lost but time."), f" {where[0].upper()}{where[1:]} were executed twice and agree {strength}.")


def _cause(material: Material) -> str:
    """What the records can say about why two executions differ."""
    step = next(step for step in material.proof.steps if not step.match.equal)
    found = {attempt.segment.id: attempt.environment for attempt in material.facts.segments}
    then, now = (found[segment] for segment in step.segments)
    changed = [
        f"{key} ({then.get(key)}, then {now.get(key)})"
        for key in sorted(then.keys() | now.keys())
        if then.get(key) != now.get(key)
    ]
    if changed:
        return f"What changed between the segments: {', '.join(changed)}."
    return (
        "The recorded environments are the same, so the cause is not among what is recorded: "
        "changed code, or a machine that miscalculates."
    )


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
