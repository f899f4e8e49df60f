"""``headway data register DIR REGISTRY``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from headway.cli.options import Json


def register(
    directory: Annotated[Path, Parameter(help="A data directory, as headway data build writes it.")],
    registry: Annotated[Path, Parameter(help="The evaluation registry, a JSON file; made if it is not there.")],
    /,
    *,
    version: Annotated[str, Parameter(metavar="V", help="Of the sets. What was registered under a version never changes.")] = "1",
    name: Annotated[
        str | None, Parameter(metavar="NAME", help="Of the data: sets are named NAME.SOURCE. Default: the recipe's name.")
    ] = None,
    json: Json = False,
) -> None:
    """Register the held-out documents of built data, so that other builds leave out what repeats them.

    One set per source, one example per document, known by its content. A recipe names the registry as
    data.prepare.contamination.registry; what it leaves out is counted and reported.
    """
    from headway.base.digests import short
    from headway.base.terminal import one_line
    from headway.cli.output import print_json, say, table
    from headway.data.held_out_sets import register as add

    sets = add(directory, registry, version=version, name=name)
    if json:
        print_json(facts(registry, sets))
        return
    rows = [[one_line(s.name), one_line(s.version), f"{s.examples:,}", short(s.digest), one_line(s.licence)] for s in sets]
    for line in table(["set", "version", "documents", "digest", "licence"], rows, left=(0, 1, 3, 4)):
        say(line)
    say()
    say(f"registered in {registry}")


def facts(registry: Path, sets: list[Any]) -> dict[str, Any]:
    """Plain values."""
    from dataclasses import asdict

    from headway.data.registry import load_registry

    return {
        "kind": "data_registration",
        "schema_version": 1,
        "registry": str(registry),
        "digest": load_registry(registry).digest(),
        "sets": [asdict(one) for one in sets],
    }
