"""Recipe + data manifest -> Spec. After this nothing may change: the Spec names the bytes it was made for.

Resolving fills in the sizes; what is checked here needs the stream itself: how far into each source the last sequence
reaches, in chunk slots, against floor(cap * slots) (CONTRACTS section 1). A run that would need more is refused before it
starts, with the tokens that would fit; or, where the recipe says so, its mixtures are rebalanced by the rule of ``rebalance.py``,
and the Spec says what was asked.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from headway.base.errors import ConfigError, Problem
from headway.base.units import format_count
from headway.data.manifest import DataManifest, TokenizerEntry
from headway.data.packing import packing_digest
from headway.data.stream import Coverage, Stream, source_coverage
from headway.recipe.digests import document_settings
from headway.recipe.load import LoadedRecipe
from headway.recipe.rebalance import Mixtures, NothingFits, rebalance
from headway.recipe.resolve import DataFacts, SourceFacts, resolve, with_mixtures
from headway.recipe.spec import PackedSpec, Spec

if TYPE_CHECKING:
    from headway.recipe.schema import Recipe


def data_facts(manifest: DataManifest) -> DataFacts:
    """What a Spec takes over from the manifest."""
    return DataFacts(
        manifest_digest=manifest.digest(),
        tokenizer_digest=manifest.tokenizer.digest,
        vocabulary=manifest.tokenizer.vocabulary,
        document_token=manifest.tokenizer.document_token,
        infill=manifest.tokenizer.fim,
        tokenizer=_tokenizer_keys(manifest.tokenizer),
        sources=tuple(
            SourceFacts(
                name=source.name,
                tokens=source.tokens,
                chunk_tokens=source.chunk_tokens,
                target_share=source.target_share,
                digest=source.digest,
                licence=source.licence,
                packed={
                    plan.sequence_length: PackedSpec(plan.bins, plan.target_share, packing_digest(plan))
                    for plan in source.packings
                },
                quality=dict(source.quality),
            )
            for source in manifest.sources
        ),
    )


def _tokenizer_keys(entry: TokenizerEntry) -> dict[str, Any]:
    """Keys of the recipe's [tokenizer] as the data was built with them; what the entry does not know is not there."""
    keys = {"kind": "file" if entry.brought else "bpe", "reserved": sorted(entry.reserved), "lossy": entry.lossy}
    keys |= {name: value for name in ("digits", "whitespace") if (value := getattr(entry, name))}
    return keys | ({"fim_tokens": list(entry.fim_tokens)} if entry.fim_tokens or not entry.fim else {})


def freeze(recipe: Recipe | LoadedRecipe, manifest: DataManifest, *, parent: dict | None = None) -> Spec:
    """The Spec of ``recipe`` on the data of ``manifest``.

    ConfigError: a cap exceeded, a sequence longer than a chunk or than what a source holds out.
    """
    spec = resolve(recipe, data_facts(manifest), parent=parent)
    whole = recipe.recipe if isinstance(recipe, LoadedRecipe) else recipe
    check_settings(whole, manifest, recipe.locate(("data",)) if isinstance(recipe, LoadedRecipe) else "")
    if whole.data.beyond_cap == "rebalance":
        spec = rebalanced(spec)
    check_caps(spec)
    where = recipe.locate(("data", "held_out")) if isinstance(recipe, LoadedRecipe) else ""
    check_held_out(spec, manifest, where)
    return spec


def check_settings(recipe: Recipe, manifest: DataManifest, where: str = "") -> None:
    """Refuse data that was built under other steps, held-out rules or patterns than the recipe now has: it would be on record as
    what it is not. Manifests of older builds do not say."""
    if not manifest.settings:
        return
    asked, built = document_settings(recipe), manifest.settings
    differs = [f"data.{key}" for key in ("prepare", "held_out_by") if asked.get(key) != built.get(key)]
    for name, own in asked["sources"].items():
        known = built["sources"].get(name, own)
        differs += [f"{key} of source {name}" for key in sorted({*own, *known}) if own.get(key) != known.get(key)]
    if differs:
        raise ConfigError(
            f"the data was built with other settings than the recipe has now: {', '.join(differs)}",
            "a run trains on the documents that its recipe describes",
            "build the data again in another directory (headway data build --out DIR, then --data DIR), or set them back",
            where,
        )


def rebalanced(spec: Spec) -> Spec:
    """``spec`` with every source within its cap; ConfigError with the numbers where no mixture of the stages does that."""
    asked = tuple(stage.quanta for stage in spec.stages)

    def beyond(mixtures: Mixtures) -> frozenset[int]:
        return frozenset(k for k, c in enumerate(source_coverage(with_mixtures(spec, mixtures))) if not c.within_cap)

    try:
        return with_mixtures(spec, rebalance(asked, beyond))
    except NothingFits as error:
        stream, coverage = Stream(spec), source_coverage(spec)
        over = sorted({error.source} | beyond(asked))
        problems = [_problem(spec, stream, k, coverage[k]) for k in over if not coverage[k].within_cap]
        seen = f"rebalancing finds no mixture in which source {spec.sources[error.source].name} is within its cap"
        rule = "what a source may not give is taken from the others of the same stage, within their caps"
        way_out = "shorten the stages, raise caps, or add sources to stages that have no other"
        raise ConfigError([Problem(seen, rule, way_out), *problems]) from None


def check_held_out(spec: Spec, manifest: DataManifest, where: str = "") -> None:
    """Every source is evaluated at the sequence length of every stage: refuse what would fail there, all of it at once."""
    problems = []
    for stage in spec.stages:
        needed = stage.sequence_length + 1
        found = {s.name: s.held_out.tokens if s.held_out else 0 for s in manifest.sources}
        short = {source.name: found[source.name] for source in spec.sources if found[source.name] < needed}
        problems += [
            Problem(
                f"stage {stage.name}: source {name} has {tokens:,} held-out tokens, none of its evaluations has a whole window",
                f"a window of {stage.sequence_length:,} tokens needs {needed:,}",
                f"build the data again with data.held_out = {needed} or more, or shorten the sequence",
                where,
            )
            for name, tokens in short.items()
        ]
    if problems:
        raise ConfigError(problems)


def check_caps(spec: Spec) -> None:
    """Refuse a Spec whose stages reach beyond a source's cap; all such sources at once."""
    stream = Stream(spec)
    beyond = [(k, c) for k, c in enumerate(source_coverage(spec)) if not c.within_cap]
    if beyond:
        raise ConfigError([_problem(spec, stream, k, coverage) for k, coverage in beyond])


def _problem(spec: Spec, stream: Stream, k: int, coverage: Coverage) -> Problem:
    assert coverage.allowed_slots is not None
    stage = next(s for s in range(len(spec.stages)) if stream.slots_at_end(s)[k] > coverage.allowed_slots)
    fits = _greatest_tokens(spec, stream, k, stage, coverage.allowed_slots)
    needed = math.ceil(coverage.final_slot / coverage.slots * 1000) / 1000
    name, asked = spec.stages[stage].name, spec.stages[stage].tokens
    return Problem(
        seen=(
            f"source {coverage.source}: the stages need {needed:g} epochs, the cap is {coverage.cap_epochs:g} "
            f"(chunks: {coverage.final_slot} needed, {coverage.allowed_slots} allowed, {coverage.slots} in an epoch)"
        ),
        rule="a source is not read beyond its cap; a chunk that was begun counts as read",
        way_out=(
            f"stage {name} fits with at most {fits:,} tokens ({format_count(fits)}) instead of {asked:,}; "
            f"or cap_epochs = {needed:g}; "
            f"or about {coverage.allowed_slots / coverage.final_slot:.2g} of the weight of {coverage.source}; "
            'or data.beyond_cap = "rebalance", which gives the rest to the other sources'
        ),
    )


def _greatest_tokens(spec: Spec, stream: Stream, k: int, stage: int, allowed_slots: int) -> int:
    """The most tokens, in whole batches, that ``stage`` can have with the stages before it as they are."""
    low, high = 0, spec.stages[stage].sequences
    while low < high:
        middle = (low + high + 1) // 2
        if stream.slots_at_end(stage, middle)[k] <= allowed_slots:
            low = middle
        else:
            high = middle - 1
    phase = next(p for p in reversed(spec.stages[stage].phases) if p.first_sequence <= low)
    whole = phase.first_sequence + (low - phase.first_sequence) // phase.batch_sequences * phase.batch_sequences
    return whole * spec.stages[stage].sequence_length
