"""The loop of a run, on one screen: fetch, step, record, evaluate, sample, save, decide.

Several ranks run it together (``crew.py``): what decides about a branch is the same on all of them.

Order matters. What belongs to a step (its evaluation, the last samples) comes before the save of that step; where a stop or
a crash left it out all the same, the next segment catches it up before it trains on. A stop is obeyed at the boundary of a
step, after a save. A save is a snapshot first; it is on record as saved when its writer has committed it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from headway.base import failpoints
from headway.base.errors import EnvironmentFault, RunError
from headway.checkpoint.saver import Outcome
from headway.evaluate.held_out import HeldOut, Share, held_out_loss, windows_at_once
from headway.evaluate.sample import greedy
from headway.monitor.spikes import reading_words
from headway.parallel.state import local_values
from headway.rundir.heartbeats import COMPILE, DATA, END, EVALUATION, SAVE, STEP
from headway.rundir.metrics import read_chain_rows
from headway.rundir.processes import peak_bytes
from headway.store.writer.outcomes import COMMITTED, FAILED
from headway.train.sample import prompt_ids
from headway.train.setup import TrainRun, cursor
from headway.train.step import StepResult, must_stop

DELIVERY_STEPS = 200
"""Between two records of how the input came."""


def train(run: TrainRun) -> str:
    """Train to the end, to a stop, a spike, or where another layout goes on: "complete", "stopped", "spike" or "relaid"."""
    run.stop.agree()
    finish_step(run)
    while run.step < run.until and not run.stop:
        run.heart.enter(DATA, run.step)
        if not run.groups.gather(run):
            break
        batch, waited_ns = run.batches().get(run.step)
        run.log.mark("data_stall")
        run.heart.enter(COMPILE if run.is_new_shape else STEP, run.step)
        result = run.groups.step(run, batch)
        if result is None:
            run.stop.agree()  # the wish of a step that does not count is not heard
            continue
        run.step += 1
        run.heart.stepped(run.step, waited_ns)
        run.stop.agreed(result.wish)
        spike = run.spikes.look(run.step, result)
        record(run, result, waited_ns, batch.targets, spike)
        run.cadence.step_done()
        run.sound.after(run.step, result.own)
        hear(run, run.saver.poll())
        if spike is not None and run.spikes.ends:
            return end(run, spike)
        run.skipped = 0 if result.applied or ends_soundly(run, result) else run.skipped + 1
        if must_stop(run.spec.stability, run.skipped) or (run.skipped and run.step == run.until):
            raise_left_out(run)
        finish_step(run)
        if save_due(run):
            save(run)
    conclude(run)
    return end(run)


def ends_soundly(run: TrainRun, result: StepResult) -> bool:
    """A last update that was left out for its size alone: the state is that of the step before, and a repeat would end alike."""
    last = run.step == run.until
    return last and math.isfinite(result.grad_norm) and not must_stop(run.spec.stability, run.skipped + 1)


def finish_step(run: TrainRun) -> None:
    """Evaluate and sample where the step that is done asks for it and no record of this history has it yet."""
    ends = run.step in (0, run.schedule.total_steps)
    if run.schedule.evaluation_due(run.step) and not on_record(run, "evaluation"):
        evaluate(run)
    if ends and run.spec.evaluation.prompts and not on_record(run, "sample"):
        sample(run)


def on_record(run: TrainRun, kind: str) -> bool:
    """Only the step that was restored can have such a row: every later one is new. The leader looks, and tells all."""
    if run.step != run.segment.restored_step:
        return False
    rows = read_chain_rows(run.directory, run.chain).kept if run.crew.leads else ()
    return bool(run.crew.told(any(row["kind"] == kind and row["step"] == run.step for row in rows)))


def save_due(run: TrainRun) -> bool:
    """The leader's clock counts, where one does."""
    if not run.cadence.by_the_clock:
        return run.cadence.is_due(run.step)
    return bool(run.crew.told(run.crew.leads and run.cadence.is_due(run.step)))


def end(run: TrainRun, spike: dict[str, Any] | None = None) -> str:
    """The last record. A run is complete when its last step is trained, evaluated and saved.

    At a ``spike`` nothing is saved any more: what is under way is finished, and the supervisor goes on from something older.
    """
    done = run.step == run.until and not run.owes
    state = "stopped" if not done else "complete" if run.step == run.schedule.total_steps else "relaid"
    run.heart.enter(END, run.step)
    told: dict[str, Any] = {"reason": run.stop.reason}
    if spike is not None:
        settled(run)
        words = reading_words(spike["loss"], spike["grad_norm"], spike["reading"])
        state, told = "spike", {"reason": f"step {run.step} is {words}", "spike": spike}
    if run.step > run.segment.restored_step:
        record_delivery(run)
    found = digest(run)
    told |= run.groups.end(run, found)
    run.log.write("end", step=run.step, state=state, digest=found, peak_bytes=peak_bytes(), **told)
    run.crew.leave()
    return state


def digest(run: TrainRun) -> str:
    """Of the state as it lies on all ranks."""
    assert run.place is not None
    return run.crew.digest(run.trainee.saved_state(), run.place)


def record(run: TrainRun, result: StepResult, waited_ns: int, targets: int, spike: dict[str, Any] | None) -> None:
    """One row per update: the loss is the global one of the whole batch (L3)."""
    told = {"spike": spike["reading"]} if spike is not None else {}
    done = run.schedule.place(run.step - 1)
    every = run.policy.state_digest_every
    found = digest(run) if every and run.step % every == 0 else None
    run.log.mark("productive")
    run.log.write(
        "step",
        step=run.step,
        stage=run.spec.stages[done.stage].name,
        u=done.end_sequence,
        sequences=done.batch_sequences,
        targets=targets,
        tokens=run.schedule.tokens_before(run.step),
        loss=result.loss,
        z_loss=result.z_loss,
        grad_norm=result.grad_norm,
        clipped=result.clipped,
        applied=result.applied,
        rate=run.schedule.rate(run.step - 1),
        digest=found,
        input_wait_ns=waited_ns,
        input_ready=run.batches().ready,
        **(result.extra | replaced(run) | told),
    )
    failpoints.hit("step.recorded", run.step)
    if run.step % DELIVERY_STEPS == 0:
        record_delivery(run)


def record_delivery(run: TrainRun) -> None:
    """How this rank's input came since the segment started; the other ranks' loaders do the same work."""
    run.log.write("delivery", step=run.step, loader=run.batches().counts(), sources=run.reader.traffic())


def replaced(run: TrainRun) -> dict[str, int]:
    """Sequences of the step just done that stood in for damaged ones."""
    if not run.segment.quarantines:
        return {}
    place = run.schedule.place(run.step - 1)
    u = np.arange(place.first_sequence, place.first_sequence + place.batch_sequences)
    return {"replaced": run.feed.stream.replaced(place.stage, u)}


def evaluate(run: TrainRun) -> None:
    """Held-out loss of every source with the current weights: nats per token, bits per byte, by position."""
    run.heart.enter(EVALUATION, run.step)
    failpoints.hit("evaluation.begin", run.step)
    stage = run.spec.stages[run.schedule.place(run.step - 1).stage]
    T, tokens = stage.sequence_length, run.spec.evaluation.tokens_per_source
    replica, found = run.crew.replica, dict[str, HeldOut]()
    share = Share(index=replica.index, count=replica.count, total=run.crew.over_tokens, goes_on=lambda: goes_on(run))
    for source in run.spec.sources:
        batches = run.reader.held_out_batches(source.name, T, windows_at_once(T), tokens)
        found[source.name] = held_out_loss(run.trainee.compute, batches, stage.rope, share, run.token_bytes)
        if run.stop:
            run.owes = True  # half an evaluation is none: the stop goes first, the next segment catches it up
            return run.log.mark("evaluation")
    run.log.mark("evaluation")
    run.log.write(
        "evaluation",
        step=run.step,
        tokens=run.schedule.tokens_before(run.step),
        loss={name: result.loss for name, result in found.items()},
        targets={name: result.targets for name, result in found.items()},
        bytes={name: result.bytes for name, result in found.items()},
        bits_per_byte={name: result.bits_per_byte for name, result in found.items() if result.bytes},
        by_position={name: result.by_position() for name, result in found.items()},
    )


def goes_on(run: TrainRun) -> bool:
    """Between two batches of an evaluation."""
    run.heart.tick()
    return not run.stop.agree()


def sample(run: TrainRun) -> None:
    """Decode the fixed prompts greedily: bugs that a loss cannot show are seen here."""
    if run.stop.agree():
        run.owes = True
        return
    run.heart.enter(EVALUATION, run.step)
    evaluation = run.spec.evaluation
    rope = run.spec.stages[run.schedule.place(max(0, run.step - 1)).stage].rope
    prompts = [prompt_ids(run.tokenizer, prompt) for prompt in evaluation.prompts]
    outputs = greedy(run.trainee.compute, prompts, evaluation.sample_tokens, rope, run.tokenizer.document_token_id)
    texts = [{"prompt": p, "text": run.tokenizer.decode(ids)} for p, ids in zip(evaluation.prompts, outputs, strict=True)]
    run.log.mark("evaluation")
    run.log.write("sample", step=run.step, texts=texts)


def save(run: TrainRun) -> None:
    """Hand a snapshot of the current step to the writer; what becomes of it is heard later (C3).

    A step that was skipped is no progress and is not saved: the last good checkpoint must stay the newest.
    """
    if run.skipped:
        return run.cadence.left_out()
    run.sound.compare(run.step)
    run.heart.enter(SAVE, run.step)
    refuse_sick_state(run)
    state = {
        "run_id": run.directory.info()["run_id"],
        "cursor": cursor(run, run.step),
        "tokens": run.schedule.tokens_before(run.step),
        "updates": run.trainee.updates,
        "ordinal": run.ordinal + 1,
        "environment": run.environment,
        "spec_digest": run.spec.digest(),
        "spikes": run.spikes.state(),
        "checked": run.sound.stated(),
    }
    try:
        snapshot = run.saver.save(run.step, run.trainee.saved_state(), state)
    except EnvironmentFault as error:  # no writer, or no memory for it: a later save may find them
        run.save_error = str(error)
        run.log.write("save_failed", step=run.step, error=run.save_error)
        return run.cadence.left_out()
    if snapshot is None:
        run.log.write("save_skipped", step=run.step, reason="the save before it is still being written")
        return run.cadence.left_out()
    run.ordinal += 1
    run.log.write("snapshot", step=run.step, checkpoint=snapshot.name, bytes=state_bytes(run), blocking_ns=snapshot.blocking_ns)
    run.cadence.snapshot_taken(run.step, snapshot.blocking_ns)


def state_bytes(run: TrainRun) -> int:
    """Of the whole state, on all ranks together."""
    return sum(tensor.numel() * tensor.element_size() for tensor in run.trainee.state().values())


def hear(run: TrainRun, outcomes: list[Outcome]) -> None:
    """Put on record what became of earlier saves; training goes on, whatever it is."""
    for outcome in outcomes:
        if outcome.kind == COMMITTED:
            run.committed_step = outcome.step
            slowed_ns = run.cadence.slowed_ns()
            told = {**outcome.fields, "bytes": state_bytes(run), "slowed_ns": slowed_ns}
            run.log.write("save", step=outcome.step, checkpoint=outcome.checkpoint, **told)
            run.cadence.committed(outcome.step, outcome.fields["flush_ns"], slowed_ns)
        elif outcome.kind == FAILED:
            run.save_error = str(outcome.fields["error"])
            run.ordinal -= not run.saver.under_way  # else the number after it is given already
            run.log.write("save_failed", step=outcome.step, error=run.save_error)
            run.cadence.left_out()
        elif outcome.kind in ("retention_failed", "over_budget", "mirror_failed"):
            run.log.write(outcome.kind, step=outcome.step, error=str(outcome.fields["error"]))
        elif outcome.kind == "mirrored":
            run.log.write("mirrored", step=outcome.step, checkpoint=outcome.checkpoint, **outcome.fields)


def conclude(run: TrainRun) -> None:
    """The last state is committed before anybody says that the run has ended (C14); a save that failed is tried once more."""
    run.heart.enter(SAVE, run.step)
    for _ in range(2):
        if settled(run) == run.step or run.skipped:
            return
        save(run)
    if settled(run) != run.step:
        raise EnvironmentFault(f"the last state, of step {run.step}, could not be saved: {run.save_error}")


def settled(run: TrainRun) -> int:
    """The step of the newest checkpoint once nothing is under way: the leader's writer commits, and tells the leader."""
    hear(run, run.saver.settle())
    run.committed_step = run.crew.told(run.committed_step)
    return run.committed_step


def refuse_sick_state(run: TrainRun) -> None:
    """A finite gradient can still give weights or moments that are not (a quotient of zeros): never save those."""
    if sick := run.crew.words(sick_tensor(local_values(run.trainee.state()))):
        raise RunError(
            f"after step {run.step} the state is not finite: {'; '.join(sick)}",
            "such a state is never saved: the last good checkpoint stays the newest",
            "look at the steps before it (headway report), lower the rate or raise the optimizer's epsilon in a new run",
        )


def sick_tensor(tensors: dict[str, torch.Tensor]) -> str:
    """The first that holds a value that is not finite; empty: none does."""
    largest = torch.stack(torch._foreach_norm(list(tensors.values()), ord=math.inf))
    if bool(torch.isfinite(largest).all()):
        return ""
    return next(name for name, value in zip(tensors, largest.tolist(), strict=True) if not math.isfinite(value))


def raise_left_out(run: TrainRun) -> None:
    stability = run.spec.stability
    bad = "not finite"
    if stability.skip_above is not None:
        bad += f", or of a norm above {stability.skip_above:g} times the recent"
    if run.spikes.skips_updates:
        bad += ", or a spike"
    raise RunError(
        f"the gradient was {bad}, in {run.skipped} steps in a row, the last is step {run.step}",
        f"no such gradient reaches weights or moments; after {stability.most_skips} in a row, or in the last step, the run stops",
        "look at the loss before it (headway report), and lower the rate or the initial scale in a new run",
    )
