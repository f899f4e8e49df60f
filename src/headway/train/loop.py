"""The loop of a run, on one screen: fetch, step, record, evaluate, save, decide.

Order matters. Evaluation comes before the save of the same step, so a checkpoint never stands before the evaluation of
its own step is on record. A stop is obeyed at the boundary of a step, after a save.
"""

from __future__ import annotations

from itertools import takewhile

from headway.base import failpoints
from headway.base.errors import EnvironmentFault, HeadwayError, RunError
from headway.checkpoint.digest import state_digest
from headway.checkpoint.save import save_checkpoint
from headway.evaluate.held_out import held_out_loss
from headway.evaluate.sample import greedy
from headway.rundir.segments import current_chain, read_segments
from headway.store.retention import Retention, apply_retention
from headway.train.environment import peak_bytes
from headway.train.sample import prompt_ids
from headway.train.setup import TrainRun, cursor
from headway.train.step import StepResult, train_step

MAX_SKIPPED_IN_A_ROW = 3


def train(run: TrainRun) -> str:
    """Train to the end or to a stop; returns "complete" or "stopped"."""
    if run.step == 0:
        sample(run)
    skipped = 0
    saved_step = run.step
    while run.step < run.schedule.total_steps and not run.stop:
        batch, _waited_ns = run.batches().get(run.step)
        run.log.mark("data_stall")
        result = train_step(run.trainee, batch, run.schedule.rate(run.step))
        run.step += 1
        record(run, result)
        skipped = 0 if result.applied else skipped + 1
        if skipped >= MAX_SKIPPED_IN_A_ROW:
            raise_not_finite(run)
        if run.schedule.evaluation_due(run.step):
            evaluate(run)
        if run.step % run.policy.checkpoint_every_steps == 0 and save(run):
            saved_step = run.step
    complete = run.step == run.schedule.total_steps
    if complete and run.segment.restored_step < run.step:
        sample(run)
    if saved_step != run.step:
        save(run, must=True)
    run.log.mark("productive")
    state = "complete" if complete else "stopped"
    digest = state_digest(run.trainee.state())
    run.log.write("end", step=run.step, state=state, reason=run.stop.reason, digest=digest, peak_bytes=peak_bytes())
    return state


def record(run: TrainRun, result: StepResult) -> None:
    """One row per update: the loss is the global one of the whole batch (L3)."""
    done = run.schedule.place(run.step - 1)
    every = run.policy.state_digest_every
    digest = state_digest(run.trainee.state()) if every and run.step % every == 0 else None
    run.log.mark("productive")
    run.log.write(
        "step",
        step=run.step,
        stage=run.spec.stages[done.stage].name,
        u=done.end_sequence,
        sequences=done.batch_sequences,
        targets=done.batch_sequences * run.spec.stages[done.stage].sequence_length,
        tokens=run.schedule.tokens_before(run.step),
        loss=result.loss,
        z_loss=result.z_loss,
        grad_norm=result.grad_norm,
        clipped=result.clipped,
        applied=result.applied,
        rate=run.schedule.rate(run.step - 1),
        digest=digest,
    )
    failpoints.hit("step.recorded", run.step)


def evaluate(run: TrainRun) -> None:
    """Held-out loss of every source, in nats per token, with the current weights."""
    stage = run.spec.stages[run.schedule.place(run.step - 1).stage]
    T, tokens = stage.sequence_length, run.spec.evaluation.tokens_per_source
    losses, targets = {}, {}
    for source in run.spec.sources:
        batches = run.reader.held_out_batches(source.name, T, run.feed.micro_sequences(T), tokens)
        result = held_out_loss(run.trainee.compute, takewhile(lambda _: not run.stop, batches), stage.rope_base)
        if run.stop:
            return run.log.mark("evaluation")  # half an evaluation is none: the stop goes first
        losses[source.name], targets[source.name] = result.loss, result.targets
    run.log.mark("evaluation")
    run.log.write("evaluation", step=run.step, tokens=run.schedule.tokens_before(run.step), loss=losses, targets=targets)


def sample(run: TrainRun) -> None:
    """Decode the fixed prompts greedily: bugs that a loss cannot show are seen here."""
    evaluation = run.spec.evaluation
    if not evaluation.prompts or not evaluation.sample_tokens:
        return
    rope_base = run.spec.stages[run.schedule.place(max(0, run.step - 1)).stage].rope_base
    prompts = [prompt_ids(run.tokenizer, prompt) for prompt in evaluation.prompts]
    outputs = greedy(run.trainee.compute, prompts, evaluation.sample_tokens, rope_base, run.tokenizer.document_token_id)
    texts = [{"prompt": p, "text": run.tokenizer.decode(ids)} for p, ids in zip(evaluation.prompts, outputs, strict=True)]
    run.log.mark("evaluation")
    run.log.write("sample", step=run.step, texts=texts)


def save(run: TrainRun, must: bool = False) -> bool:
    """Commit a checkpoint of the current step; a failure is recorded and training goes on, unless it ``must`` (C3)."""
    state = {
        "cursor": cursor(run, run.step),
        "tokens": run.schedule.tokens_before(run.step),
        "updates": run.trainee.updates,
        "environment": run.environment,
        "spec_digest": run.spec.digest(),
    }
    try:
        result = save_checkpoint(run.directory, run.segment.id, run.step, run.trainee.state(), state)
    except EnvironmentFault as error:
        run.log.mark("blocking_save")
        run.log.write("save_failed", step=run.step, error=str(error))
        if must:
            raise
        return False
    run.log.mark("blocking_save")
    run.log.write(
        "save", step=run.step, checkpoint=result.name, bytes=result.nbytes, blocking_ns=result.blocking_ns, digest=result.digest
    )
    prune(run)
    return True


def prune(run: TrainRun) -> None:
    """Delete what retention no longer keeps, after the newest was read back. Failing to delete never stops training."""
    policy = Retention(keep_last=run.policy.keep_last, permanent_every=run.policy.permanent_every)
    try:
        apply_retention(run.directory, current_chain(read_segments(run.directory)), policy, protected=frozenset())
    except HeadwayError as error:
        run.log.write("retention_failed", step=run.step, error=str(error), rest="blocking_save")
    run.log.mark("blocking_save")


def raise_not_finite(run: TrainRun) -> None:
    raise RunError(
        f"the gradient was not finite in {MAX_SKIPPED_IN_A_ROW} steps in a row, the last is step {run.step}",
        "no such gradient reaches weights or moments; after that many the run stops",
        "look at the loss before it (headway report), lower the rate or the initial scale, or resume from an older checkpoint",
    )
