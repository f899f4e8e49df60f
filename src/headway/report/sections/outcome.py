"""The head of the page: verdict, the numbers that everybody looks for, held-out losses, and the proof of the replay."""

from __future__ import annotations

from headway.base.units import format_count
from headway.report.material import Material
from headway.report.page import Block, Inline, Notice, Section, Span, Table, Tile, Tone, strong
from headway.report.replay import Replay
from headway.report.rows import Evaluation
from headway.report.sections.proof import changes, proof_blocks
from headway.report.words import NONE, duration, exact, listed, loss, percent, plural, signed

_STATES = {
    "complete": "Complete.",
    "stopped": "Stopped before the end, with a committed state.",
    "failed": "Failed.",
    "unfinished": "Unfinished: no end is recorded; the run is going on, or its owner is gone.",
}


def final_evaluation(material: Material) -> Evaluation | None:
    kept = [evaluation for evaluation in material.facts.evaluations if evaluation.kept]
    return kept[-1] if kept else None


def verdict(material: Material) -> tuple[Inline, Tone]:
    """One sentence for each question: what, how good, how long, how safe."""
    facts = material.facts
    pieces: list[str | Span] = [strong(_STATES.get(facts.state, facts.state)), " ", _what(material)]
    last = final_evaluation(material)
    if last and last.loss:
        pieces += [
            f" Held-out loss after step {last.step:,}: ",
            listed([f"{loss(v, 3)} nats/token on {k}" for k, v in last.loss.items()]),
            ".",
        ]
    pieces += [" ", _how_long(material), " ", _replayed(material)]
    return tuple(pieces), _tone(material)


def _tone(material: Material) -> Tone:
    if material.facts.state == "failed" or material.proof.identical is False:
        return Tone.BAD
    return Tone.GOOD if material.facts.state == "complete" else Tone.WARN


def _what(material: Material) -> str:
    spec = material.facts.spec
    if spec is None:
        return "What was trained is not known (no spec)."
    size = format_count(material.parameters or 0)
    inner = format_count(material.inner_parameters or 0)
    schedule = material.facts.schedule
    of = f" of {schedule.total_steps:,}" if schedule and material.steps_done < schedule.total_steps else ""
    if not material.steps_done:
        return f"A decoder of {size} parameters was to be trained; no step is recorded."
    return (
        f"A decoder of {size} parameters ({inner} without embeddings) was trained on "
        f"{format_count(material.tokens_done)} tokens in {material.steps_done:,}{of} steps."
    )


def _how_long(material: Material) -> str:
    ledger = material.facts.ledger
    took = f"It took {duration(ledger.total_ns)}" if ledger and ledger.total_ns else "How long it took is not recorded"
    return f"{took}, with {plural(material.restarts, 'restart')}." if material.restarts else f"{took}, without a restart."


def _replayed(material: Material) -> str:
    proof = material.proof
    count = len(proof.steps)
    if not count:
        return ""
    differ = sum(not step.match.equal for step in proof.steps)
    if differ:
        why = ": the code changed in between" if "code" in changes(material) else ""
        return f"Of {plural(count, 'replayed step')}, {differ:,} did NOT come out as before{why}."
    what = "states" if proof.proven else "losses and gradient norms (no state digests)"
    return f"{plural(count, 'step')} had to be repeated and came out with bit-identical {what}."


def tiles(material: Material) -> tuple[Tile, ...]:
    facts, ledger = material.facts, material.facts.ledger
    last = final_evaluation(material)
    first = next((evaluation for evaluation in facts.evaluations if evaluation.kept), None)
    result = [
        Tile(f"held-out, {name}", loss(value, 3), _before(first, last, name))
        for name, value in (last.loss if last else {}).items()
    ]
    result.append(_tokens_tile(material))
    if ledger:
        result.append(
            Tile(
                "wall time",
                duration(ledger.total_ns),
                f"{format_count(round(ledger.committed_tokens_per_second))} committed tokens/s",
            )
        )
        result.append(Tile("goodput", percent(ledger.goodput), "productive time of all time"))
    result.append(Tile("restarts", f"{material.restarts:,}", f"{plural(len(facts.discarded), 'step')} rolled back"))
    result.append(_replay_tile(material.proof))
    return tuple(result)


def _tokens_tile(material: Material) -> Tile:
    schedule, done = material.facts.schedule, material.tokens_done
    detail, tone = f"{done:,} in {plural(material.steps_done, 'step')}", Tone.PLAIN
    if schedule is not None and done < schedule.total_tokens:
        detail, tone = f"{percent(done / schedule.total_tokens)} of {format_count(schedule.total_tokens)}", Tone.WARN
    return Tile("tokens", format_count(done), detail, tone)


def _before(first: Evaluation | None, last: Evaluation | None, name: str) -> str:
    before = first.loss.get(name) if first and first is not last else None
    return f"nats/token; {loss(before, 3)} at step {first.step:,}" if first and before is not None else "nats/token"


def _replay_tile(proof: Replay) -> Tile:
    if not proof.steps:
        return Tile("replayed steps", "none", "nothing to compare")
    equal = sum(step.match.equal for step in proof.steps)
    tone = Tone.GOOD if proof.proven else Tone.PLAIN if proof.identical else Tone.BAD
    return Tile(
        "replay identical", f"{equal:,} / {len(proof.steps):,}", "states, to the bit" if proof.proven else "see the proof", tone
    )


def outcome(material: Material) -> Section:
    blocks: list[Block] = [*_held_out(material), *proof_blocks(material)]
    if material.facts.missing:
        blocks.append(Notice(f"Missing from this page: {'; '.join(material.facts.missing)}.", Tone.WARN))
    return Section("outcome", "Outcome", tuple(blocks))


def _held_out(material: Material) -> list[Block]:
    kept = [evaluation for evaluation in material.facts.evaluations if evaluation.kept]
    if not kept:
        return [Notice("No held-out evaluation is recorded.", Tone.WARN)]
    names = list(dict.fromkeys(name for evaluation in kept for name in evaluation.loss))
    rows = []
    for name in names:
        own = [evaluation for evaluation in kept if name in evaluation.loss]
        best = min(own, key=lambda e: e.loss[name])
        first, last = own[0], own[-1]
        change = NONE if first is last else signed(last.loss[name] - first.loss[name])
        rows.append(
            (
                name,
                f"{loss(first.loss[name])} (step {first.step:,})",
                f"{loss(best.loss[name])} (step {best.step:,})",
                strong(loss(last.loss[name])),
                change,
                loss(last.bits_per_byte[name]) if name in last.bits_per_byte else NONE,
                exact(last.targets.get(name)),
            )
        )
    columns = ("held-out source", ">first", ">best", ">final, nats/token", ">change", ">final, bits/byte", ">target tokens")
    return [
        Table(
            columns,
            tuple(rows),
            f"{plural(len(kept), 'evaluation')} of the run's history; mean over target tokens, nats per token; bits over "
            "the bytes that they stand for, whatever the tokenizer.",
        )
    ]
