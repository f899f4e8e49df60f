"""Prompts continued before and after the training."""

from __future__ import annotations

from headway.report.material import Material
from headway.report.page import Block, Comparison, Prose, Section
from headway.report.rows import Sample
from headway.report.words import plural


def samples(material: Material) -> Section:
    kept = [sample for sample in material.facts.samples if sample.kept]
    if not kept:
        return Section(
            "samples", "Before and after", (Prose("No sample is recorded: no prompts are set, or the run did not get so far."),)
        )
    first, last = kept[0], kept[-1] if len(kept) > 1 else None
    spec = material.facts.spec
    length = f" by {plural(spec.evaluation.sample_tokens, 'token')}" if spec else ""
    intro = Prose(
        f"The same prompts, continued greedily{length}, decoded from the tokens the model chose. A bug "
        "that no loss shows is seen here."
    )
    prompts = list(dict.fromkeys(str(text.get("prompt", "")) for sample in (first, last) if sample for text in sample.texts))
    blocks: list[Block] = [intro]
    for prompt in prompts:
        labels = _label(first), _label(last) if last else "after training"
        blocks.append(Comparison(prompt, labels, (_text(first, prompt), _text(last, prompt) if last else None)))
    return Section("samples", "Before and after", tuple(blocks))


def _label(sample: Sample) -> str:
    return "initial weights" if sample.step == 0 else f"after step {sample.step:,}"


def _text(sample: Sample, prompt: str) -> str | None:
    return next((str(text.get("text", "")) for text in sample.texts if str(text.get("prompt", "")) == prompt), None)
