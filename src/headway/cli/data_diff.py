"""``headway data diff A B``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from headway.base.errors import EXIT_FINDINGS, EXIT_OK
from headway.cli.options import Json


def diff(
    a: Annotated[Path, Parameter(help="A data directory, or a manifest as a file.")],
    b: Annotated[Path, Parameter(help="The other one.")],
    /,
    *,
    json: Json = False,
) -> int:
    """Compare two builds of data: tokenizer, sources, shards, licences, and what follows for runs.

    Manifests are compared, and no token is read; shards are the same where their content is, under whatever name. Times, versions
    and names of builds are told and do not count. The exit code is 1 when anything else differs.
    """
    from headway.cli.output import print_json, say
    from headway.data.inspect.diff import compare, open_side

    found = compare(open_side(a), open_side(b))
    if json:
        print_json(facts(found))
    else:
        for line in lines(found):
            say(line)
    return EXIT_OK if found.equal else EXIT_FINDINGS


def facts(found: Any) -> dict[str, Any]:
    """Plain values."""
    from dataclasses import asdict

    from headway.data.inspect.diff import consequences

    def side(of: Any) -> dict[str, Any]:
        return {"path": str(of.path), "name": of.manifest.name, "digest": of.manifest.digest(), "created": of.manifest.created}

    def entry(of: Any) -> dict[str, Any] | None:
        return None if of is None else {key: getattr(of, key) for key in ("documents", "bytes", "tokens", "licence", "digest")}

    sources = [
        {
            "name": source.name,
            "verdict": str(source.verdict),
            "a": entry(source.a),
            "b": entry(source.b),
            "changes": [asdict(change) for change in source.changes],
            "shards": asdict(source.shards),
        }
        for source in found.sources
    ]
    return {
        "kind": "data_difference",
        "schema_version": 1,
        "equal": found.equal,
        "same_stream": found.same_content,
        "a": side(found.a),
        "b": side(found.b),
        "content": [asdict(change) for change in found.content],
        "history": [asdict(change) for change in found.history],
        "sources": sources,
        "consequences": consequences(found),
    }


def lines(found: Any) -> Iterator[str]:
    """Both sides, the sources, every value that differs, what follows."""
    from headway.base.digests import short
    from headway.cli.output import table
    from headway.data.inspect.diff import consequences

    for label, side in (("A", found.a), ("B", found.b)):
        manifest = side.manifest
        yield f"{label}  {side.path}: {manifest.name}, built {manifest.created}, digest {short(manifest.digest())}"
    yield ""
    titles = ["source", "", "documents", "text bytes", "tokens", "shards in both", "only A", "only B"]
    yield from table(titles, [source_row(source) for source in found.sources], left=(0, 1))
    changes = [*found.content, *(change for source in found.sources for change in source.changes)]
    for head, listed in (("what differs", changes), ("told only", found.history)):
        if listed:
            yield ""
            yield from table([head, "", "A", "B"], [change_row(change) for change in listed], left=(0, 1, 2, 3))
    yield ""
    yield from consequences(found)
    yield "as the two manifests say: headway data verify reads the bytes themselves"


def source_row(source: Any) -> list[str]:
    from headway.base.terminal import one_line

    def both(name: str) -> str:
        a, b = (getattr(side, name) if side else 0 for side in (source.a, source.b))
        return f"{a:,}" if a == b else f"{a:,} -> {b:,}"

    shards = source.shards
    counts = [f"{shards.both:,}", f"{shards.only_a:,}", f"{shards.only_b:,}"]
    return [one_line(source.name), str(source.verdict), both("documents"), both("bytes"), both("tokens"), *counts]


def change_row(change: Any) -> list[str]:
    return [change.part or "all", change.what, *map(cell, (change.a, change.b))]


def cell(value: Any) -> str:
    from headway.base.digests import short
    from headway.base.terminal import one_line

    if value is None:
        return "-"
    if isinstance(value, str):
        return short(value) if value.startswith("sha256:") else one_line(value)
    return f"{value:,}" if isinstance(value, int | float) else str(value)
