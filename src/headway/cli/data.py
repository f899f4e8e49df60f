"""``headway data build RECIPE``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter, validators

from headway.cli.options import Json, Overrides, RecipeArgument


def build(
    recipe: RecipeArgument,
    /,
    *,
    out: Annotated[
        Path | None, Parameter(metavar="DIR", help="Where to write. Default: data/NAME, with the recipe's name.")
    ] = None,
    workers: Annotated[
        int | None,
        Parameter(
            metavar="N",
            help="Processes that prepare and tokenise. The result is the same whatever their number. Default: one per core for "
            "much text, this one alone for little.",
            validator=validators.Number(gte=1, lte=1024),
        ),
    ] = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Train the tokenizer and write the token shards that a recipe names.

    A build that was killed or stopped goes on where it was when it is started again: what it had finished is verified and used.
    Only the steps of [data.prepare] begin anew, since what they keep depends on what was read before. What was built is described
    by a manifest; its digest becomes part of the run's identity.
    """
    import sys

    from headway.base.errors import ConfigError
    from headway.cli.data_progress import progress_of
    from headway.cli.describe import default_data, describe
    from headway.cli.output import print_json
    from headway.data.build import build_data

    description = describe(recipe, overrides, None, runnable=False)
    directory = out or default_data(description)
    if isinstance(directory, str) or ":/" in str(directory):
        raise ConfigError(
            f"data is built in a directory of this machine, not at {directory}",
            "a build that was killed goes on from what it has on the disk",
            "give --out DIR, then copy that directory to where it is to lie",
        )
    progress = None if json else progress_of(live=sys.stdout.isatty())
    manifest = build_data(description.loaded, directory, progress, workers=workers)
    if json:
        print_json(facts(manifest, directory))
    else:
        show(manifest, directory)


def tell(what: str, facts: dict[str, Any]) -> None:
    """One line per stage of the build; progress within a stage is left out."""
    from headway.cli.output import say

    if line := stage_line(what, facts):
        say(line)


def stage_line(what: str, facts: dict[str, Any]) -> str:
    """What is told of a stage that has ended; empty: nothing."""
    from headway.base.digests import short
    from headway.base.units import format_bytes

    lines = {
        "prepared": lambda: prepared_line(facts),
        "documents": lambda: f"- {facts['source']}: {facts['documents']:,} documents{left_out(facts)}",
        "packed": lambda: f"- {facts['source']}: packed for sequences of {facts['sequence']:,}, {facts['padding']:.3%} padding",
        "training": lambda: f"- tokenizer: training on {format_bytes(facts['bytes'])} of text",
        "tokenizer": lambda: f"- tokenizer: {facts['vocabulary']:,} entries, digest {short(facts['digest'])}{kept_words(facts)}",
        "encoder": lambda: f"- slower than it could be, by tokenizers alone: {facts['why']}",
        "reused": lambda: "- the same data was built here before: verified and used again" + other_facts(facts),
    }
    return lines[what]() if what in lines else ""


def kept_words(facts: dict[str, Any]) -> str:
    return ", taken over from a build that did not end" if facts.get("kept") else ""


def other_facts(facts: dict[str, Any]) -> str:
    """Where texts are the same and what is known of their documents is not what the build recorded."""
    names = facts.get("other_facts", ())
    return f"; facts of documents stand there as they were then, not as they are now: {', '.join(names)}" if names else ""


def left_out(facts: dict[str, Any]) -> str:
    """What no step left out, whose line says it else: equal documents count once, always."""
    from collections import Counter

    rest = Counter(facts.get("dropped", {})) - Counter(facts.get("by_steps", {}))
    reasons = [f"{count:,} {reason.replace('_', ' ')}" for reason, count in rest.items()]
    return f"; left out: {', '.join(reasons)}" if reasons else ""


def prepared_line(facts: dict[str, Any]) -> str:
    """What preparing a source left of it, and why the rest is out."""
    from headway.base.units import format_bytes

    reasons = [f"{count:,} {reason.replace('_', ' ')}" for reason, count in facts["dropped"].items()]
    changed = [f"{step.replace('_', ' ')} {count:,}" for step, count in facts["changed"].items()]
    reasons += [f"changed by {', '.join(changed)}"] if changed else []
    reasons += [f"{facts['joined']:,} joined to others"] if facts["joined"] else []
    reasons += [f"no document has the field {field} of its quality axis" for field in facts["silent"]]
    left = f"{facts['documents']:,} of {facts['documents_read']:,} documents"
    size = f"{format_bytes(facts['bytes'])} of {format_bytes(facts['bytes_read'])}"
    return f"- {facts['source']}: prepared, {left}, {size}; {', '.join(reasons) or 'nothing left out'}"


def facts(manifest: Any, directory: Path) -> dict[str, Any]:
    """The manifest without its long lists, with the digests."""
    sources = [
        {
            "name": source.name,
            "documents": source.documents,
            "bytes": source.bytes,
            "tokens": source.tokens,
            "held_out_tokens": source.held_out.tokens if source.held_out else 0,
            "held_out_documents": source.held_out.documents if source.held_out else 0,
            "held_out_rule": dataclasses.asdict(source.held_out_rule) if source.held_out_rule else None,
            "target_share": source.target_share,
            "chunk_tokens": source.chunk_tokens,
            "dropped": source.dropped,
            "preparation": [dataclasses.asdict(step) for step in source.preparation],
            "licence": source.licence,
            "provenance": source.provenance,
            "quality": source.quality,
            "synthetic": dataclasses.asdict(source.synthetic) if source.synthetic else None,
            "registered": dataclasses.asdict(source.registered) if source.registered else None,
            "digest": source.digest,
        }
        for source in manifest.sources
    ]
    tokenizer = {"vocabulary": manifest.tokenizer.vocabulary, "digest": manifest.tokenizer.digest}
    known = {
        "kind": "data",
        "schema_version": 1,
        "directory": str(directory),
        "digest": manifest.digest(),
        "dtype": manifest.dtype,
    }
    return known | {"tokenizer": tokenizer, "sources": sources}


def held_out_line(source: Any) -> str:
    """The rule that holds a source's documents out; empty: the first of the shuffled order are."""
    rule = source.held_out_rule
    if rule is None or source.held_out is None:
        return ""
    what = {"time": "times", "repository": "repositories", "content": "texts"}[rule.by]
    side = "from it on" if rule.by == "time" else "below it"
    told = f'held out   {source.name}: by {rule.by}, held_out_at = "{rule.at}", {side} {rule.groups:,} {what}'
    return told + (f"; {rule.unknown:,} documents without {rule.by} are trained on" if rule.unknown else "")


def show(manifest: Any, directory: Path) -> None:
    """What was built, as a table with its digests."""
    from headway.base.digests import short
    from headway.base.units import format_bytes
    from headway.cli.output import say, table

    rows = [
        [
            s.name,
            f"{s.documents:,}",
            format_bytes(s.bytes),
            f"{s.tokens:,}",
            f"{s.held_out.tokens if s.held_out else 0:,}",
            short(s.digest),
            s.licence,
        ]
        for s in manifest.sources
    ]
    say()
    for line in table(["source", "documents", "text", "tokens", "held out", "digest", "licence"], rows, left=(0, 5, 6)):
        say(line)
    say()
    for source in manifest.sources:
        if line := held_out_line(source):
            say(line)
    say(f"tokenizer  {manifest.tokenizer.vocabulary:,} entries, digest {short(manifest.tokenizer.digest)}")
    say(f"data       {directory}, digest {short(manifest.digest())}")
