"""``headway data inventory WHAT [RECIPE]``: built data, a run or a recipe."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from headway.base.errors import EXIT_FINDINGS, EXIT_OK, ConfigError
from headway.cli.data_named import Built, DataArgument, Kind, Named, built, named
from headway.cli.options import CacheOption, Json, Overrides

EQUAL = ("duplicate", "duplicate_elsewhere")
"""Reasons of documents that are left out behind all steps; for others than these and the steps' own, no step saw them."""


def inventory(
    what: DataArgument,
    recipe: Annotated[
        str | None,
        Parameter(help="For data: a recipe file or preset whose stages train on it. A run and a recipe have their own."),
    ] = None,
    /,
    *,
    cache: CacheOption = None,
    overrides: Overrides = None,
    json: Json = False,
) -> int:
    """What became of each source: read, after each step, training tokens, different ones, and the passes of a run over them.

    The raw inventory, what is unique in it, and how often a run goes over it are three things. Of a run all stages count, with
    what its records skip or mix otherwise. All training tokens are read. The
    exit code is 1 when a document was left out without a reason.
    """
    from headway.cli.output import print_json, say

    of = named(what, overrides if recipe is None else None)
    data = built(of, cache)
    found = measured(data, coverage_of(of, data, recipe, overrides), show_progress=sys.stderr.isatty())
    if json:
        sources = [facts(source) for source in found]
        print_json({"kind": "data_inventory", "schema_version": 1, "directory": str(data.where), "sources": sources})
    else:
        for line in lines(found):
            say(line)
    return EXIT_FINDINGS if any(source.unaccounted for source in found) else EXIT_OK


def measured(data: Built, coverage: list[Any] | None, *, show_progress: bool) -> list[Any]:
    from headway.cli.data_progress import token_meter
    from headway.cli.describe import refuse_other_place
    from headway.data.inspect.inventory import inventory as measure
    from headway.data.place import open_place

    refuse_other_place(data.where)
    with token_meter(Path(data.where).name, show_progress) as tell:
        return measure(open_place(data.where, data.cache), coverage, tell)


def coverage_of(of: Named, data: Built, recipe: str | None, overrides: list[str] | None) -> list[Any] | None:
    """What a run, or the stages of a recipe, take of each source; None: neither is named."""
    from headway.cli.describe import describe
    from headway.data.place import manifest_at
    from headway.data.stream import Stream, stream_coverage
    from headway.rundir.segments import read_segments

    if recipe is not None and of.kind is not Kind.DATA:
        rule = f"{of.given} is {of.kind.value}, whose own stages are counted"
        raise ConfigError(f"{of.kind.value} and a recipe", rule, "name the data in its place, or leave the recipe out")
    if of.kind is Kind.RUN:
        segments, spec = read_segments(of.run), of.run.spec()
        return stream_coverage(Stream.of_segment(spec, segments[-1]) if segments else Stream(spec))
    description = describe(recipe, overrides, None, runnable=False) if recipe is not None else of.description
    return planned(description.loaded, manifest_at(data.where, data.cache)) if description else None


def planned(loaded: Any, manifest: Any) -> list[Any]:
    from headway.data.freeze import data_facts, rebalanced
    from headway.data.stream import source_coverage
    from headway.recipe.resolve import resolve

    spec = resolve(loaded, data_facts(manifest))
    if loaded.recipe.data.beyond_cap == "rebalance":
        with suppress(ConfigError):  # no mixture fits: the passes that were asked show which caps they break
            spec = rebalanced(spec)
    return source_coverage(spec)


def facts(source: Any) -> dict[str, Any]:
    """Plain values."""
    from dataclasses import asdict

    entry, unique = source.entry, source.unique
    return {
        "name": entry.name,
        "read": {"documents": source.raw_documents, "bytes": source.raw_bytes},
        "steps": [asdict(step) for step in source.steps],
        "left_out": entry.dropped,
        "without_reason": source.unaccounted,
        "kept_documents": source.kept_documents,
        "held_out_tokens": source.held_out_tokens,
        "training_tokens": entry.tokens,
        "unique": asdict(unique) | {"tokens_estimate": unique.tokens(entry.tokens)},
        "quality": entry.quality,
        "synthetic": asdict(entry.synthetic) if entry.synthetic else None,
        "passes": asdict(source.passes) | {"within_cap": source.passes.within_cap} if source.passes else None,
        "passes_over_unique": source.passes_over_unique,
    }


def lines(found: list[Any]) -> Iterator[str]:
    """The way of the documents, then that of the tokens, then who wrote what no person did."""
    from headway.cli.output import table

    yield from table(["source", "", "documents", "text", "left out"], [row for s in found for row in way_rows(s)], left=(0, 1, 4))
    yield ""
    titles = [
        "source",
        "training tokens",
        "held out",
        "unique documents",
        "unique, estimated",
        "target tokens",
        "passes",
        "over unique",
        "epochs begun",
    ]
    yield from table(titles, [token_row(source) for source in found])
    yield ""
    yield "unique documents: tokens of those that no source before has; estimated: by the share of different runs of 13 tokens"
    if any(source.passes for source in found):
        yield "passes: target tokens by training tokens; over unique: by the estimate of unique ones"
        yield "epochs begun: chunks begun, of as many as an epoch has, which is what caps count"
    yield from (sample_line(source) for source in found if min(sampled(source)) < 1)
    yield from (cap_line(source) for source in found if source.passes and not source.passes.within_cap)
    yield from (made_up_line(source) for source in found if source.entry.synthetic)
    yield from (quality_line(source) for source in found if source.entry.quality)
    for source in found:
        if source.unaccounted:
            yield f"{source.entry.name}: {source.unaccounted:,} documents are missing without a reason"


def way_rows(source: Any) -> Iterator[list[str]]:
    """Each reason stands where documents became fewer: at the steps, before them (no text), or behind them (equal texts)."""
    from headway.base.terminal import one_line
    from headway.base.units import format_bytes

    def size(count: int | None) -> str:
        return "not counted" if count is None else format_bytes(count)

    def reasons(dropped: Mapping[str, int]) -> str:
        return ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in dropped.items())

    rest = Counter(source.entry.dropped) - sum((Counter(step.dropped) for step in source.steps), Counter())
    yield [one_line(source.entry.name), "read", f"{source.raw_documents:,}", size(source.raw_bytes), ""]
    if source.steps:
        before, first = Counter({reason: count for reason, count in rest.items() if reason not in EQUAL}), source.steps[0]
        rest -= before
        if before:
            yield ["", "to prepare", f"{first.documents_before:,}", size(first.bytes_before), reasons(before)]
    for step in source.steps:
        left_out = reasons(step.dropped) + (f"{step.joined:,} joined to others" if step.joined else "")
        yield ["", step.step.replace("_", " "), f"{step.documents_after:,}", size(step.bytes_after), left_out]
    held_out = source.entry.held_out.bytes if source.entry.held_out else 0
    yield ["", "kept", f"{source.kept_documents:,}", size(source.entry.bytes + held_out), reasons(rest)]


def token_row(source: Any) -> list[str]:
    from headway.base.terminal import one_line

    entry, unique, passes = source.entry, source.unique, source.passes
    over = source.passes_over_unique
    return [
        one_line(entry.name),
        f"{entry.tokens:,}",
        f"{source.held_out_tokens:,}",
        f"{unique.document_tokens:,}",
        f"{unique.tokens(entry.tokens):,}",
        f"{passes.target_tokens:,}" if passes else "-",
        f"{passes.target_tokens / entry.tokens:.3g}" if passes else "-",
        f"{over:.3g}" if over is not None else "-",
        f"{passes.epochs:.3g}" if passes else "-",
    ]


def sampled(source: Any) -> tuple[float, float]:
    """Shares of its documents and of its runs of tokens that were looked at."""
    return source.unique.documents_sampled, source.unique.grams_sampled


def sample_line(source: Any) -> str:
    from headway.base.terminal import one_line

    documents, grams = sampled(source)
    parts = [f"unique documents from {documents:.2%} of all"] if documents < 1 else []
    parts += [f"the estimate from {grams:.2%} of its runs"] if grams < 1 else []
    return f"{one_line(source.entry.name)}: {', '.join(parts)}, a sample by hash"


def cap_line(source: Any) -> str:
    from headway.base.terminal import one_line

    name, passes = one_line(source.entry.name), source.passes
    return f"{name}: {passes.epochs:.3g} epochs are beyond its cap of {passes.cap_epochs:g}, such a run is refused"


def made_up_line(source: Any) -> str:
    from headway.base.terminal import one_line

    def said(of: dict[str, str]) -> str:
        return ", ".join(f"{name} {one_line(value)}" for name, value in of.items() if value)

    synthetic = source.entry.synthetic
    verified = said(synthetic.verifier) or "nobody"
    return f"{one_line(source.entry.name)} is synthetic: generator {said(synthetic.generator)}; verified by {verified}"


def quality_line(source: Any) -> str:
    axes = ", ".join(f"{axis} {score:.3f}" for axis, score in source.entry.quality.items())
    return f"{source.entry.name}: quality by axis, mean over kept text: {axes}"
