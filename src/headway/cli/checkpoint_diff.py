"""``headway checkpoint diff A B``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from cyclopts import Parameter

from headway.base.errors import EXIT_FINDINGS, EXIT_OK
from headway.cli.options import Json

PLACE_HELP = "A checkpoint: the path of its directory, or RUN:NAME."


def diff(
    a: Annotated[str, Parameter(help=PLACE_HELP)],
    b: Annotated[str, Parameter(help="The other one, named alike. The two may be of different layouts.")],
    /,
    *,
    json: Json = False,
) -> int:
    """Compare two checkpoints tensor by tensor: which differ, and how far.

    For each: how many elements differ (in a bit, where the dtype is the same), the largest difference, the length of the
    difference over the length of A's tensor, and how many NaN each side holds. Tensors whose recorded digests are equal are not
    read, and counted apart; headway checkpoint verify reads them. The exit code is 1 when a tensor differs.
    """
    from headway.cli.checkpoint_places import place_of
    from headway.cli.output import print_json, say
    from headway.store.compare import compare

    found = compare(place_of(a).directory, place_of(b).directory)
    if json:
        print_json(facts(found))
    else:
        for line in lines(found):
            say(line)
    return EXIT_OK if found.equal else EXIT_FINDINGS


def facts(found: Any) -> dict[str, Any]:
    """Plain values; a distance that is not finite is the word "inf"."""
    from dataclasses import asdict

    from headway.rundir.metrics import encode_row

    def side(checkpoint: Any) -> dict[str, Any]:
        manifest = checkpoint.manifest
        where = {"directory": str(checkpoint.directory), "segment": manifest.segment, "step": manifest.step}
        return where | {"world": manifest.world, "state_digest": manifest.state_digest}

    def entry(tensor: Any) -> dict[str, Any] | None:
        return {"dtype": tensor.dtype, "shape": list(tensor.shape)} if tensor is not None else None

    differences = [
        {
            "name": item.name,
            "what": item.what,
            "a": entry(item.a),
            "b": entry(item.b),
            "distance": encode_row(asdict(item.distance)) if item.distance else None,
        }
        for item in found.differences
    ]
    counts = {"equal": found.equal, "tensors": found.tensors, "equal_by_digest": found.by_digest, "bytes_read": found.bytes_read}
    known = {"kind": "checkpoint_difference", "schema_version": 1, "a": side(found.a), "b": side(found.b)}
    return known | counts | {"differences": differences}


def lines(found: Any) -> Iterator[str]:
    """Both sides, the table of what differs, and what was not read."""
    from headway.base.units import format_bytes
    from headway.cli.output import table

    for label, side in (("A", found.a), ("B", found.b)):
        manifest = side.manifest
        yield f"{label}  {side.directory}: step {manifest.step:,} of segment {manifest.segment}, ranks {manifest.world:,}"
    yield ""
    if found.differences:
        titles = ["tensor", "differs", "A", "B", "differing", "of", "largest", "relative", "NaN"]
        yield from table(titles, list(map(cells, found.differences)), left=(0, 1, 2, 3))
        yield ""
    yield f"{len(found.differences):,} of {found.tensors:,} tensors differ" if found.differences else "the tensors are the same"
    if found.by_digest:
        yield f"{found.by_digest:,} are equal by their recorded digests, and were not read"
    if found.bytes_read:
        yield f"{format_bytes(found.bytes_read)} were read and verified"


def cells(item: Any) -> list[str]:
    """One row of the table."""
    told = [f"{side.dtype} {'x'.join(map(str, side.shape)) or 'scalar'}" if side else "-" for side in (item.a, item.b)]
    far = item.distance
    if far is None:
        return [item.name, item.what, *told, "", "", "", "", ""]
    nans = f"{far.nan_a:,} / {far.nan_b:,}" if far.nan_a or far.nan_b else "0"
    numbers = [f"{far.differing:,}", f"{far.elements:,}", f"{far.max_abs:.3g}", f"{far.relative_l2:.3g}", nans]
    return [item.name, item.what, *told, *numbers]
