"""Decode prompts with a run's checkpoint (the verb ``sample``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.base.errors import RunError
from headway.checkpoint.load import load_checkpoint
from headway.data.place import CacheOptions
from headway.data.reader import frozen_tokenizer
from headway.data.tokenizer import Tokenizer
from headway.evaluate.sample import greedy
from headway.recipe.schedules import Schedule
from headway.rundir.layout import RunDirectory
from headway.rundir.segments import current_chain, deployment_of, read_segments
from headway.store.admissible import choose
from headway.train.trainee import build_trainee


def prompt_ids(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """A prompt stands at the head of a document, as every text in training did."""
    return [tokenizer.document_token_id, *tokenizer.encode(prompt)]


def sample_run(run_root: Path, checkpoint: str | None, prompts: list[str], tokens: int) -> dict[str, Any]:
    """Greedy continuation of each prompt under the newest verified checkpoint, or exactly the named one."""
    directory = RunDirectory.open(run_root)
    choice = choose(directory, current_chain(read_segments(directory)), explicit=checkpoint)
    if choice.checkpoint is None:
        raise RunError("this run has no committed checkpoint yet", "sampling reads a checkpoint", "wait for the first save")
    spec = directory.spec()
    tokenizer = frozen_tokenizer(directory.info()["data"], spec, CacheOptions.of(deployment_of(directory)))
    trainee = build_trainee(spec)
    manifest = load_checkpoint(directory.checkpoints / choice.checkpoint, trainee.state())
    trainee.compute.refresh()
    rope = spec.stages[Schedule(spec).place(max(0, manifest.step - 1)).stage].rope
    outputs = greedy(trainee.compute, [prompt_ids(tokenizer, p) for p in prompts], tokens, rope, tokenizer.document_token_id)
    texts = [{"prompt": p, "text": tokenizer.decode(ids)} for p, ids in zip(prompts, outputs, strict=True)]
    return {"checkpoint": choice.checkpoint, "step": manifest.step, "texts": texts, "rejected": list(choice.rejected)}
