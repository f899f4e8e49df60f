"""Recipe -> Spec: every default filled in, every derived value computed, every contradiction refused (law 2).

Recipe  (+ DataFacts from the data manifest)  ->  Spec       can run
Recipe                                        ->  draft Spec can be planned: no source has a size yet
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headway.base.errors import ConfigError, Problem
from headway.recipe.checks import Finding, check_recipe, nearest_hint
from headway.recipe.digests import recipe_content, recipe_digest
from headway.recipe.lines import KeyPath
from headway.recipe.load import LoadedRecipe
from headway.recipe.mixture_rules import Known, mixture_quanta, sources_of, target_tokens, weights_of
from headway.recipe.rebalance import Mixtures, NothingFits, rebalance
from headway.recipe.resolved_model import default_ffn_width as default_ffn_width
from headway.recipe.resolved_model import optional_float, resolve_yarn
from headway.recipe.resolved_model import resolve_model as resolve_model
from headway.recipe.schedules import Steps, StepTokens, whole_batches
from headway.recipe.spec import (
    QUANTA,
    EvaluationSpec,
    InfillSpec,
    OptimizerSpec,
    PackedSpec,
    PrecisionSpec,
    RateSpec,
    RopeSpec,
    SourceSpec,
    Spec,
    StabilitySpec,
    StageSpec,
    TokenizerSpec,
)
from headway.recipe.trainable import refuse_names

if TYPE_CHECKING:
    from headway.recipe.schema import Optimizer, Precision, Rate, Recipe, Stage


@dataclass(frozen=True)
class SourceFacts:
    """What the data manifest knows of one source. ``tokens`` without what was held out."""

    name: str
    tokens: int
    chunk_tokens: int
    target_share: float  # target tokens per token
    digest: str
    licence: str
    quality: Mapping[str, float] = field(default_factory=dict)  # mean score by axis
    packed: Mapping[int, PackedSpec] = field(default_factory=dict)  # by sequence length


@dataclass(frozen=True)
class DataFacts:
    """What the data manifest knows, as far as a Spec depends on it."""

    manifest_digest: str
    tokenizer_digest: str
    vocabulary: int
    document_token: str
    sources: tuple[SourceFacts, ...]
    infill: tuple[int, ...] = ()  # ids of prefix, suffix and middle; none: the tokenizer has no such tokens
    tokenizer: Mapping[str, Any] = field(default_factory=dict)  # other keys of [tokenizer] that it was built with


def resolve(recipe: Recipe | LoadedRecipe, facts: DataFacts | None, *, parent: dict | None = None) -> Spec:
    """The Spec of ``recipe`` over the built data ``facts`` (None: a draft). ConfigError lists every contradiction."""
    locate: Callable[[KeyPath], str] = lambda path: ""  # noqa: E731
    if isinstance(recipe, LoadedRecipe):
        locate, recipe = recipe.locate, recipe.recipe
    whole = recipe
    findings = check_recipe(whole)
    if facts is not None and not findings:
        findings = facts_findings(whole, facts)
    _refuse(findings, locate)
    spec = _build(whole, facts, parent, locate)
    if spec.is_draft and whole.data.beyond_cap == "rebalance":
        spec = _rebalanced_draft(spec, locate)
    refuse_names(spec.model, spec.precision, locate)
    return spec


def _refuse(findings: Sequence[Finding], locate: Callable[[KeyPath], str]) -> None:
    if findings:
        raise ConfigError([Problem(p.seen, p.rule, p.way_out, locate(path)) for path, p in findings])


def _build(recipe: Recipe, facts: DataFacts | None, parent: dict | None, locate: Callable[[KeyPath], str]) -> Spec:
    sources = tuple(resolve_sources(recipe, facts))
    model = resolve_model(recipe.model, recipe.tokenizer.vocabulary)
    evaluation = recipe.evaluation
    data_seed = recipe.seed if recipe.data.seed is None else recipe.data.seed
    return Spec(
        name=recipe.name,
        seed=recipe.seed,
        data_seed=data_seed,
        objective=recipe.objective.model_dump(mode="json"),
        tokenizer=TokenizerSpec(
            kind=recipe.tokenizer.kind,
            vocabulary=recipe.tokenizer.vocabulary,
            document_token=recipe.tokenizer.document_token,
            digest=facts.tokenizer_digest if facts else None,
        ),
        model=model,
        sources=sources,
        stages=resolve_stages(recipe.stages, sources, model.rope, facts, data_seed, locate),
        optimizer=resolve_optimizer(recipe.optimizer),
        stability=StabilitySpec(
            z_loss=float(recipe.stability.z_loss),
            skip_above=optional_float(recipe.stability.skip_above),
            most_skips=recipe.stability.most_skips,
        ),
        precision=resolve_precision(recipe.precision),
        evaluation=EvaluationSpec(
            every_tokens=evaluation.every,
            tokens_per_source=evaluation.tokens_per_source,
            prompts=evaluation.prompts,
            sample_tokens=evaluation.sample_tokens,
        ),
        manifest_digest=facts.manifest_digest if facts else None,
        recipe_digest=recipe_digest(recipe),
        parent=parent,
        interventions=recipe_content(recipe)["interventions"],
    )


# --- parts --------------------------------------------------------------------------------------------------------------


def resolve_precision(precision: Precision) -> PrecisionSpec:
    return PrecisionSpec(compute=precision.compute, modules=dict(precision.modules))


def resolve_optimizer(optimizer: Optimizer) -> OptimizerSpec:
    return OptimizerSpec(
        kind=optimizer.kind,
        peak_rate=float(optimizer.peak_rate),
        beta1=float(optimizer.beta1),
        beta2=float(optimizer.beta2),
        epsilon=float(optimizer.epsilon),
        weight_decay=float(optimizer.weight_decay),
        clip_norm=float(optimizer.clip_norm) or None,
        matrix_rate=optional_float(optimizer.matrix_rate),
        momentum=float(optimizer.momentum),
        muon_scale=optimizer.muon_scale,
    )


def resolve_sources(recipe: Recipe, facts: DataFacts | None) -> list[SourceSpec]:
    """In the recipe's order. A draft's sources have the tokens that were declared, else none, and count as plain text."""
    known = {source.name: source for source in facts.sources} if facts else {}
    resolved = []
    for source in recipe.data.sources:
        fact = known.get(source.name)
        resolved.append(
            SourceSpec(
                name=source.name,
                tokens=fact.tokens if fact else source.inventory or 0,
                chunk_tokens=fact.chunk_tokens if fact else 0,
                target_share=float(fact.target_share) if fact else 1.0,
                digest=fact.digest if fact else None,
                cap_epochs=None if source.cap_epochs is None else float(source.cap_epochs),
                licence=fact.licence if fact else source.licence,
            )
        )
    return resolved


def resolve_stages(
    stages: Sequence[Stage],
    sources: Sequence[SourceSpec],
    rope: RopeSpec,
    facts: DataFacts | None = None,
    data_seed: int = 0,
    locate: Callable[[KeyPath], str] = lambda path: "",
) -> tuple[StageSpec, ...]:
    """In order, because a stage inherits the RoPE base and YaRN of the one before, and rules count what was read before."""
    resolved: list[StageSpec] = []
    quality = {source.name: source.quality for source in facts.sources} if facts else {}
    for index, stage in enumerate(stages):
        packed = _packed(stage, sources, facts)
        shares = [plan.target_share for plan in packed] or [s.target_share for s in sources]
        taken = [target_tokens(resolved, sources, place) for place in range(len(sources))]
        known = Known(sources=sources, shares=shares, taken=taken, quality=quality)
        weights, rule = weights_of(stage, known, locate(("stages", index, "mixture_rule")))
        yarn = rope.yarn if stage.yarn is None else resolve_yarn(stage.yarn)
        rope = RopeSpec(float(stage.rope_base or rope.base), yarn)
        ramp = [(phase.start, phase.batch) for phase in stage.ramp] or [(0, stage.batch or stage.sequence)]
        sequences, phases = whole_batches(stage.tokens, stage.sequence, ramp)
        resolved.append(
            StageSpec(
                name=stage.name,
                tokens=stage.tokens,
                sequence_length=stage.sequence,
                sequences=sequences,
                phases=phases,
                rate=resolve_rate(stage.rate, StepTokens(phases, sequences, stage.sequence)),
                quanta=mixture_quanta(weights, shares),
                rope_base=rope.base,
                yarn=rope.yarn,
                entry_gates=tuple(gate.model_dump(mode="json") for gate in stage.entry_gates),
                exit_gates=tuple(gate.model_dump(mode="json") for gate in stage.exit_gates),
                packing=stage.packing,
                packed=packed,
                infill=_infill(stage, facts, data_seed),
                mixture_rule=rule,
            )
        )
    return tuple(resolved)


def _packed(stage: Stage, sources: Sequence[SourceSpec], facts: DataFacts | None) -> tuple[PackedSpec, ...]:
    if stage.packing == "cut" or facts is None:
        return ()
    known, none = {source.name: source.packed for source in facts.sources}, PackedSpec((), 1.0, "")
    return tuple(known[source.name].get(stage.sequence, none) for source in sources)


def _infill(stage: Stage, facts: DataFacts | None, data_seed: int) -> InfillSpec | None:
    if stage.infill is None or not stage.infill.rate:
        return None
    asked = stage.infill
    return InfillSpec(float(asked.rate), float(asked.spm), asked.sources, facts.infill if facts else (), data_seed)


def resolve_rate(rate: Rate, of: StepTokens) -> RateSpec:
    end = rate.end if rate.end is not None else (rate.start if rate.shape == "constant" else 0.0)
    return RateSpec(
        warmup_tokens=of.first(rate.warmup.count) if isinstance(rate.warmup, Steps) else rate.warmup,
        shape=rate.shape,
        start=float(rate.start),
        end=float(end),
        tail_tokens=of.last(rate.tail.count) if isinstance(rate.tail, Steps) else rate.tail,
        batch_rule=rate.batch_rule,
    )


def with_mixtures(spec: Spec, mixtures: Mixtures) -> Spec:
    """``spec`` with stages mixed otherwise than they asked; those that change remember what was asked."""
    stages = [
        stage if quanta == stage.quanta else replace(stage, quanta=quanta, asked_quanta=stage.quanta)
        for stage, quanta in zip(spec.stages, mixtures, strict=True)
    ]
    return replace(spec, stages=tuple(stages))


def _rebalanced_draft(spec: Spec, locate: Callable[[KeyPath], str]) -> Spec:
    """By the tokens that the recipe declares; sources without an inventory or a cap have no bound here."""
    caps = {k: s.tokens * s.cap_epochs for k, s in enumerate(spec.sources) if s.tokens and s.cap_epochs is not None}
    sizes = [stage.sequences * stage.sequence_length for stage in spec.stages]

    def taken(mixtures: Mixtures, k: int) -> float:
        return sum(size * quanta[k] for size, quanta in zip(sizes, mixtures, strict=True)) / QUANTA

    def beyond(mixtures: Mixtures) -> frozenset[int]:
        return frozenset(k for k, allowed in caps.items() if taken(mixtures, k) > allowed)

    asked = tuple(stage.quanta for stage in spec.stages)
    try:
        return with_mixtures(spec, rebalance(asked, beyond))
    except NothingFits as error:
        k = error.source
        raise ConfigError(
            f"source {spec.sources[k].name}: the stages take {taken(asked, k):,.0f} tokens, its cap allows {caps[k]:,.0f}, and "
            "no mixture of the stages' sources keeps all within their caps",
            "what a source may not give is taken from the other sources of the same stage",
            "shorten the stages, raise cap_epochs, or add a source to the stages that have no other",
            locate(("data", "sources", k, "cap_epochs")),
        ) from None


# --- the recipe against the data ----------------------------------------------------------------------------------------


def facts_findings(recipe: Recipe, facts: DataFacts) -> list[Finding]:
    """Where the built data is not what the recipe describes."""
    rebuild = "build the data again with: headway data build"
    rule = "a run trains on the tokens it was described with"
    findings: list[Finding] = []
    asked_keys = recipe.tokenizer.model_dump(mode="json") | {"reserved": sorted(recipe.tokenizer.reserved_tokens)}
    built_keys = {"vocabulary": facts.vocabulary, "document_token": facts.document_token} | dict(facts.tokenizer)
    for key, built in built_keys.items():
        if built != (asked := asked_keys[key]):
            seen = f"the data was built with {key} {built!r}, the recipe has {asked!r}"
            findings.append((("tokenizer", key), Problem(seen, rule, rebuild)))
    known = {source.name: source for source in facts.sources}
    for index, source in enumerate(recipe.data.sources):
        at: KeyPath = ("data", "sources", index, "name")
        if source.name not in known:
            hint = nearest_hint(source.name, list(known)) or rebuild
            seen = f"source {source.name!r} is not in the built data"
            findings.append((at, Problem(seen, f"it holds {', '.join(known)}", hint)))
        elif known[source.name].tokens < 2:
            seen = f"source {source.name!r} is empty: {known[source.name].tokens} tokens"
            findings.append((at, Problem(seen, "a source holds text", "check its path and patterns")))
    for index, stage in enumerate(recipe.stages):
        findings += _stage_findings(("stages", index), stage, facts)
    return findings


def chunks_too_short(stage: str, sequence: int, source: str, chunk: int) -> Problem:
    """No window of a stage fits into a chunk."""
    return Problem(
        f"stage {stage}: sequence length {sequence} exceeds the chunks of source {source}",
        f"a window lies in one chunk; chunks have {chunk} tokens",
        f"shorten the sequence, or build the data with data.chunk >= {sequence} in another directory",
    )


def _stage_findings(at: KeyPath, stage: Stage, facts: DataFacts) -> list[Finding]:
    """What a stage needs of the build besides tokens."""
    findings: list[Finding] = []
    has_plan = {source.name: stage.sequence in source.packed for source in facts.sources}
    lacking = [name for name in sources_of(stage, list(has_plan)) if not has_plan.get(name, True)]
    too_short = [s for s in facts.sources if s.name in lacking and s.chunk_tokens < stage.sequence]
    if stage.packing == "best-fit" and too_short:
        for source in too_short:
            findings.append(((*at, "sequence"), chunks_too_short(stage.name, stage.sequence, source.name, source.chunk_tokens)))
    elif stage.packing == "best-fit" and lacking:
        seen = f"stage {stage.name}: the data has no plan that packs {', '.join(lacking)} into {stage.sequence} tokens"
        way_out = "add it with: headway data build RECIPE, into the same directory"
        findings.append(((*at, "packing"), Problem(seen, "best-fit plans are made when data is built", way_out)))
    if stage.infill is not None and stage.infill.rate and not facts.infill:
        seen = f"stage {stage.name}: fill-in-the-middle, and a tokenizer without its three control tokens"
        way_out = "name them in tokenizer.fim_tokens and build the data again, or take stages.infill out"
        findings.append(((*at, "infill"), Problem(seen, "prefix, suffix and middle stand behind tokens of their own", way_out)))
    return findings
