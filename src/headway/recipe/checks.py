"""Rules across fields: what no single field can know. Each check yields (key path, problem); none needs the others.

    one section        names that repeat, vocabulary and dtype; the model's own rules are in ``model_checks.py``
    one stage          batch or ramp, warm-up inside the stage, a rate curve that can be computed
    stages and data    mixtures name sources that exist, and take no more of them than there is
    model and stages   windows and positions against the sequences and the texts that are decoded
    any section        keys that change nothing, in ``idle_keys.py``

They run on whatever sections could be read, so that a typing error in one does not hide a contradiction in another.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from headway.base.errors import Problem
from headway.recipe.findings import Finding as Finding
from headway.recipe.findings import divisors as divisors
from headway.recipe.findings import found
from headway.recipe.held_out_checks import check_held_out
from headway.recipe.idle_keys import check_idle
from headway.recipe.inventory_checks import check_inventory
from headway.recipe.lines import KeyPath
from headway.recipe.mixture_checks import check_rule
from headway.recipe.model_checks import check_context, check_model, check_nominal, check_samples
from headway.recipe.preparation import Prepare
from headway.recipe.schedules import Steps, StepTokens, whole_batches
from headway.recipe.spike_checks import check_interventions
from headway.recipe.tokenizer_checks import check_tokenizer

if TYPE_CHECKING:
    from headway.recipe.schema import Data, Objective, Optimizer, Recipe, Source, Stage, Tokenizer

LARGEST_UINT16_VOCABULARY = 2**16
SMALLEST_CLIP_NORM = 1e-12
READ_FROM_A_PATH = ("text-tree", "code-tree", "jsonl", "parquet", "huggingface", "patches")
KINDS_WITH = {"revision": ("huggingface",), "repository_level": ("code-tree",), "exclude": READ_FROM_A_PATH}
"""Key of a source -> the kinds that read it."""
AXES_WITHOUT_RULE = ("correctness", "coherence", "authority", "difficulty", "harm")


def check_objective(objective: Objective) -> Iterator[Finding]:
    total = sum(capability.weight for capability in objective.capabilities)
    if objective.capabilities and not math.isclose(total, 1.0, abs_tol=1e-6):
        yield (
            ("objective", "capabilities"),
            Problem(f"the weights of the capabilities sum to {total:.12g}", "weights are shares of one", "make them sum to 1"),
        )
    yield from _repeated(("objective", "capabilities"), dict(enumerate(c.name for c in objective.capabilities)), "capabilities")


def check_optimizer(optimizer: Optimizer) -> Iterator[Finding]:
    if optimizer.beta1 > optimizer.beta2:
        yield (
            ("optimizer", "beta1"),
            Problem(
                f"beta1 {optimizer.beta1:g} is above beta2 {optimizer.beta2:g}",
                "the second moment must not forget faster than the first: single updates could grow without bound",
                "lower beta1 or raise beta2",
            ),
        )
    yield from check_idle(("optimizer",), optimizer)
    if 0 < optimizer.clip_norm < SMALLEST_CLIP_NORM:
        yield (
            ("optimizer", "clip_norm"),
            Problem(
                f"clip_norm is {optimizer.clip_norm:g}",
                f"gradients scaled to less than {SMALLEST_CLIP_NORM:g} vanish in float32",
                "raise it; 1.0 is usual, 0 means no clipping",
            ),
        )


def check_data(data: Data) -> Iterator[Finding]:
    yield from _repeated(("data", "sources"), dict(enumerate(source.name for source in data.sources)), "sources")
    if data.held_out == 0:
        yield (
            ("data", "held_out"),
            Problem(
                "no tokens are held out",
                "every run is judged on text that it never saw: its last step is always evaluated",
                'set apart at least one sequence of the longest stage, for example held_out = "100k"',
            ),
        )
    yield from check_held_out(data)
    axes = data.prepare.quality_axes if data.prepare else None
    for name in AXES_WITHOUT_RULE if axes else ():
        axis = getattr(axes, name)
        if axis is not None and axis.field is None:
            yield (
                ("data", "prepare", "quality_axes", name),
                Problem(
                    f"the axis {name} has no field",
                    "only density and parse_integrity can be told by a rule",
                    'name the number that documents carry: field = "..."',
                ),
            )
    asked = {name for name in Prepare.model_fields if data.prepare and getattr(data.prepare, name) is not None}
    for index, source in enumerate(data.sources):
        for step in sorted(set(source.without) - asked):
            yield (
                ("data", "sources", index, "without"),
                Problem(
                    f"source {source.name!r} does without {step}, and no source has that step",
                    "without names steps of data.prepare that this source is spared",
                    f"remove it, or add [data.prepare.{step}]",
                ),
            )
        yield from _check_origin(index, source)
        if source.kind in READ_FROM_A_PATH and source.path is None:
            yield (
                ("data", "sources", index, "kind"),
                Problem(
                    f"source {source.name!r} has no path", f"a source of kind {source.kind} is read from a path", "add path = ..."
                ),
            )
        for key, kinds in KINDS_WITH.items():
            if getattr(source, key) not in (None, ()) and source.kind not in kinds:
                yield found(
                    ("data", "sources", index, key),
                    f"{key} beside kind = {source.kind!r}",
                    f"it is read for {', '.join(kinds)}",
                    f"remove {key}",
                )


def _check_origin(index: int, source: Source) -> Iterator[Finding]:
    """What people wrote and what they did not are told apart, and nothing is synthetic without a generator."""
    if source.synthetic and source.generator is None:
        yield (
            ("data", "sources", index, "synthetic"),
            Problem(
                f"source {source.name!r} is synthetic and names no generator",
                "what wrote a text decides what can be learned from it, and whose terms it is under",
                'add generator = { program = "...", version = "...", recipe = "sha256:..." }',
            ),
        )
    if not source.synthetic and (source.generator or source.verifier):
        yield (
            ("data", "sources", index, "generator" if source.generator else "verifier"),
            Problem(
                f"source {source.name!r} has a generator or verifier and is not synthetic",
                "only synthetic sources have them",
                "set synthetic = true, or remove it",
            ),
        )


def check_stage(index: int, stage: Stage) -> Iterator[Finding]:
    at: KeyPath = ("stages", index)
    if (stage.batch is None) == (not stage.ramp):
        seen = "neither batch nor ramp" if stage.batch is None else "both batch and ramp"
        yield (
            (*at, "ramp" if stage.ramp else "name"),
            Problem(f"stage {stage.name!r} has {seen}", "a stage has one of the two", ""),
        )
    yield from _check_warmup(at, stage)
    yield from _check_ramp(at, stage)
    yield from _check_rate(at, stage)
    yield from check_rule(at, stage)
    if stage.mixture_rule is None and not sum(stage.mixture.values()) > 0:
        yield (
            (*at, "mixture"),
            Problem(f"the mixture of stage {stage.name!r} has no weight", "at least one weight is above zero", ""),
        )


def _check_warmup(at: KeyPath, stage: Stage) -> Iterator[Finding]:
    """The warm-up and the tail of a stage leave room for each other. Steps are whole batches, which may reach past its tokens."""
    sequences, steps = _steps_of(stage)
    counted = [isinstance(length, Steps) for length in (stage.rate.warmup, stage.rate.tail)]
    whole = max(stage.tokens, sequences * stage.sequence) if any(counted) else stage.tokens
    warmup, tail = _in_tokens(stage.rate.warmup, steps.first), _in_tokens(stage.rate.tail, steps.last)
    for key, what, length in (("warmup", "warm-up", warmup), ("tail", "tail", tail)):
        if length > whole:
            yield (
                (*at, "rate", key),
                Problem(
                    f"the {what} of {length:,} tokens is longer than stage {stage.name!r} with {stage.tokens:,}",
                    f"a {what} ends inside its stage" if key == "warmup" else "a tail begins inside its stage",
                    f"shorten the {what} or lengthen the stage",
                ),
            )
    if max(warmup, tail) <= whole < warmup + tail:
        yield (
            (*at, "rate", "tail"),
            Problem(
                f"a warm-up of {warmup:,} and a tail of {tail:,} tokens in stage {stage.name!r} with {stage.tokens:,}",
                "the tail begins after the warm-up",
                "shorten one of them or lengthen the stage",
            ),
        )


def _steps_of(stage: Stage) -> tuple[int, StepTokens]:
    ramp = [(phase.start, phase.batch) for phase in stage.ramp] or [(0, stage.batch or stage.sequence)]
    sequences, phases = whole_batches(stage.tokens, stage.sequence, ramp)
    return sequences, StepTokens(phases, sequences, stage.sequence)


def _in_tokens(length: int | Steps, tokens_of: Callable[[int], int]) -> int:
    return tokens_of(length.count) if isinstance(length, Steps) else length


def _check_ramp(at: KeyPath, stage: Stage) -> Iterator[Finding]:
    starts = [phase.start for phase in stage.ramp]
    if starts and starts[0] != 0:
        yield (
            (*at, "ramp", 0, "from"),
            Problem(f"the ramp begins at {starts[0]:,} tokens", "the first phase begins at 0", 'write from = "0"'),
        )
    for place in range(1, len(starts)):
        if starts[place] <= starts[place - 1]:
            yield (
                (*at, "ramp", place, "from"),
                Problem(
                    f"phase {place} begins at {starts[place]:,} tokens, after {starts[place - 1]:,}",
                    "phases begin one after another",
                    "put them in order",
                ),
            )
        elif starts[place] >= stage.tokens:
            yield (
                (*at, "ramp", place, "from"),
                Problem(
                    f"phase {place} begins at {starts[place]:,} tokens, stage {stage.name!r} ends at {stage.tokens:,}",
                    "a phase begins before its stage ends",
                    "remove the phase or lengthen the stage",
                ),
            )
    batches = [phase.batch for phase in stage.ramp] or ([stage.batch] if stage.batch else [])
    for place, batch in enumerate(batches):
        if batch < stage.sequence:
            path = (*at, "ramp", place, "batch") if stage.ramp else (*at, "batch")
            yield (
                path,
                Problem(
                    f"a batch of {batch:,} tokens is smaller than one sequence of {stage.sequence:,}",
                    "a batch holds whole sequences",
                    "raise the batch or shorten the sequence",
                ),
            )


def _check_rate(at: KeyPath, stage: Stage) -> Iterator[Finding]:
    rate = stage.rate
    end = rate.end
    if rate.shape == "inverse_sqrt" and not (end is not None and 0 < end <= rate.start):
        yield (
            (*at, "rate", "end" if end is not None else "shape"),
            Problem(
                f"inverse_sqrt has end = {end}, start = {rate.start:g}",
                "an inverse root never reaches zero: its end is above 0 and at most start",
                "give end, for example 0.1",
            ),
        )
    if rate.shape == "constant" and end not in (None, rate.start):
        yield (
            (*at, "rate", "end"),
            Problem(
                f"a constant rate has end = {end:g}, start = {rate.start:g}",
                "a constant ends where it starts",
                "remove end or choose a shape",
            ),
        )


def check_infill(index: int, stage: Stage, source_names: Sequence[str], tokenizer: Tokenizer | None) -> Iterator[Finding]:
    for name in stage.infill.sources if stage.infill else ():
        if name not in source_names:
            yield found(
                ("stages", index, "infill", "sources"),
                f"stage {stage.name!r} fills in the middle of {name!r}, which is no source",
                f"sources are {', '.join(source_names)}",
                nearest_hint(name, source_names) or "add the source or take the name out",
            )
    if stage.infill is not None and stage.infill.rate and tokenizer is not None and not tokenizer.fim_tokens:
        yield found(
            ("stages", index, "infill"),
            f"stage {stage.name!r} fills in the middle, and the tokenizer has no tokens for it",
            "prefix, suffix and middle stand behind control tokens of their own",
            'name them: tokenizer.fim_tokens = ["<|prefix|>", "<|suffix|>", "<|middle|>"]',
        )


def check_mixture(index: int, stage: Stage, source_names: Sequence[str]) -> Iterator[Finding]:
    rule = stage.mixture_rule
    named: list[tuple[KeyPath, str]] = [(("mixture", name), name) for name in stage.mixture]
    if rule is not None:
        named += [(("mixture_rule", "sources", place), name) for place, name in enumerate(rule.sources)]
        named += [(("mixture_rule", "scores", name), name) for name in rule.scores]
    for at, name in named:
        if name not in source_names:
            yield (
                ("stages", index, *at),
                Problem(
                    f"stage {stage.name!r} mixes {name!r}, which is no source",
                    f"sources are {', '.join(source_names)}",
                    nearest_hint(name, source_names) or "add the source or remove the weight",
                ),
            )


def check_vocabulary(tokenizer: Tokenizer, data: Data) -> Iterator[Finding]:
    if data.dtype == "uint16" and tokenizer.vocabulary > LARGEST_UINT16_VOCABULARY:
        yield (
            ("data", "dtype"),
            Problem(
                f"a vocabulary of {tokenizer.vocabulary:,} does not fit uint16",
                f"uint16 holds at most {LARGEST_UINT16_VOCABULARY:,} entries",
                'write dtype = "auto", or "uint32"',
            ),
        )


def nearest_hint(word: str, known: Sequence[str]) -> str:
    """``did you mean ...?`` or nothing."""
    import difflib

    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else ""


def _repeated(path: KeyPath, names: dict[int, str], what: str) -> Iterator[Finding]:
    """``names``: place in the list -> name; reported where a name stands for the second time."""
    for name, count in Counter(names.values()).items():
        if count > 1:
            second = [place for place, other in names.items() if other == name][1]
            yield (
                (*path, second, "name"),
                Problem(f"{count} {what} are named {name!r}", "every name is used once in its list", "rename one"),
            )


def run_checks(part: Callable[[str], Any], stages: dict[int, Any], source_names: Sequence[str]) -> list[Finding]:
    """All checks on the sections that could be read: ``part(name)`` is a section or None, ``stages`` those that are whole."""
    findings: list[Finding] = []
    for name, check in SECTION_CHECKS.items():
        if part(name) is not None:
            findings += check(part(name))
    tokenizer, data = part("tokenizer"), part("data")
    if tokenizer is not None and data is not None:
        findings += check_vocabulary(tokenizer, data)
    if tokenizer is not None and part("model") is not None:
        findings += check_nominal(part("model"), tokenizer.vocabulary)
    for index, stage in stages.items():
        findings += check_stage(index, stage)
        findings += check_mixture(index, stage, source_names)
        findings += check_infill(index, stage, source_names, tokenizer)
    if part("model") is not None:
        findings += check_context(part("model"), stages)
    if part("model") is not None and part("evaluation") is not None:
        findings += check_samples(part("model"), part("evaluation"))
    if data is not None:
        findings += check_inventory(data, stages)
    findings += _repeated(("stages",), {index: stage.name for index, stage in stages.items()}, "stages")
    return findings


def check_recipe(recipe: Recipe) -> list[Finding]:
    """All checks on a whole recipe."""
    names = [source.name for source in recipe.data.sources]
    return run_checks(lambda name: getattr(recipe, name), dict(enumerate(recipe.stages)), names)


SECTION_CHECKS: dict[str, Callable[[Any], Iterator[Finding]]] = {
    "objective": check_objective,
    "tokenizer": check_tokenizer,
    "model": check_model,
    "optimizer": check_optimizer,
    "data": check_data,
    "interventions": check_interventions,
}
