"""``headway checkpoint list | show | keep``."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

from cyclopts import Parameter

from headway.base.errors import ConfigError
from headway.cli.options import Json, RunArgument

NameArgument = Annotated[str, Parameter(help="The checkpoint's directory under checkpoints/, such as g0001-s00000040.")]


def list_(run: RunArgument, /, *, json: Json = False) -> None:
    """List the checkpoints of a run: what each is, why it stays, and which one a resume would go on from.

    The standing is one of: history (a resume could go on from it), refused (damaged, or not this run's own), late or rolled
    back (committed, and no part of the history that the run goes on with), unfinished (never committed), half deleted.
    Names, manifests, sizes and headers are looked at; the data are read by headway checkpoint verify.
    """
    from headway.cli.output import print_json, say
    from headway.rundir.layout import RunDirectory
    from headway.rundir.segments import current_chain, read_segments
    from headway.store.listing import list_all
    from headway.store.policy import policy_of

    directory = RunDirectory.open(run)
    listing = list_all(directory, current_chain(read_segments(directory)), policy_of(directory))
    if json:
        print_json({"kind": "checkpoint_list", "schema_version": 1, "run": str(run), **listing.to_json()})
    else:
        for line in list_lines(listing):
            say(line)


def list_lines(listing: Any) -> Iterator[str]:
    """The table, then what needs a sentence."""
    from headway.base.units import format_bytes
    from headway.cli.output import table

    if not listing.checkpoints and not listing.missing:
        yield "no checkpoints yet"
        return
    rows = [
        [
            listed.name,
            f"{listed.step:,}",
            format_bytes(listed.nbytes),
            listed.standing,
            f"{listed.loss:.4f}" if listed.loss is not None else "",
            ", ".join(listed.marks),
            "<- resume" if listed.chosen else "",
        ]
        for listed in listing.checkpoints
    ]
    yield from table(["checkpoint", "step", "size", "standing", "held-out loss", "marks", ""], rows, left=(0, 3, 5, 6))
    total_bytes = sum(listed.nbytes for listed in listing.checkpoints)
    yield ""
    yield f"{len(rows)} director{'y' if len(rows) == 1 else 'ies'}, {format_bytes(total_bytes)}"
    yield from (f"{listed.name}: {listed.reason}" for listed in listing.checkpoints if listed.reason)
    yield from (f"{name}: on record as saved, gone, and not deleted by retention" for name in listing.missing)
    if listing.chosen is None:
        yield "a resume finds nothing here that it could go on from"


def show(
    run: Annotated[str, Parameter(help="A run directory, and NAME; or alone the path of a checkpoint, or RUN:NAME.")],
    name: Annotated[str | None, Parameter(help="The checkpoint's directory under checkpoints/.")] = None,
    /,
    *,
    tensors: Annotated[bool, Parameter(negative="", help="Also list every tensor: dtype, shape, chunks, bytes.")] = False,
    json: Json = False,
) -> None:
    """Show what a checkpoint says about itself: step, ranks, mesh, digests, the small state, the tensors.

    Manifest and receipts are proven by their digests; the data are not read.
    """
    from headway.cli.checkpoint_places import place_in
    from headway.cli.output import print_json, say
    from headway.store.verify import open_checkpoint

    checkpoint = open_checkpoint(place_in(run, name).directory)
    facts = facts_of(checkpoint)
    listed = tensor_facts(checkpoint) if tensors else None
    if json:
        print_json({**facts, **({"tensors": listed} if listed is not None else {})})
    else:
        for line in show_lines(facts, listed):
            say(line)


def facts_of(checkpoint: Any) -> dict[str, Any]:
    """Plain values, without the tensors."""
    manifest, receipts = checkpoint.manifest, checkpoint.receipts
    return {
        "kind": "checkpoint",
        "schema_version": 1,
        "directory": str(checkpoint.directory),
        "segment": manifest.segment,
        "step": manifest.step,
        "world": manifest.world,
        "mesh": manifest.mesh,
        "placements": manifest.placements,
        "created": manifest.created,
        "digest": manifest.digest,
        "state_digest": manifest.state_digest,
        "bytes": sum(receipt.file_bytes for receipt in receipts),
        "tensor_count": len(checkpoint.tensors),
        "groups": groups_of(checkpoint),
        "files": [
            {"file": receipt.file, "bytes": receipt.file_bytes, "receipt_digest": ref.digest}
            for receipt, ref in zip(receipts, manifest.receipts, strict=True)
        ],
        "state": manifest.state,
    }


def groups_of(checkpoint: Any) -> dict[str, dict[str, int]]:
    """By the first part of the tensors' names: how many tensors, elements and bytes."""
    import math

    from headway.store.manifest import tensor_bytes

    groups: dict[str, dict[str, int]] = {}
    for name, entry in sorted(checkpoint.tensors.items()):
        group = groups.setdefault(name.partition("/")[0], {"tensors": 0, "elements": 0, "bytes": 0})
        group["tensors"] += 1
        group["elements"] += math.prod(entry.shape)
        group["bytes"] += tensor_bytes(entry.dtype, entry.shape)
    return groups


def tensor_facts(checkpoint: Any) -> list[dict[str, Any]]:
    from headway.store.manifest import tensor_bytes

    return [
        {
            "name": name,
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "chunks": len(entry.chunks),
            "bytes": tensor_bytes(entry.dtype, entry.shape),
        }
        for name, entry in sorted(checkpoint.tensors.items())
    ]


def show_lines(facts: dict[str, Any], tensors: list[dict[str, Any]] | None) -> Iterator[str]:
    """The facts for people."""
    import json

    from headway.base.units import format_bytes, format_count
    from headway.cli.output import table

    yield f"checkpoint  {facts['directory']}"
    yield f"step        {facts['step']:,}, of segment {facts['segment']}"
    yield f"saved       {saved_at(facts['created'])}"
    mesh = ", ".join(f"{axis} {size}" for axis, size in facts["mesh"].items())
    yield f"ranks       {facts['world']:,}{f', mesh: {mesh}' if mesh else ''}"
    yield f"size        {format_bytes(facts['bytes'])}, data files: {len(facts['files']):,}"
    yield f"digest      {facts['digest']}"
    yield f"state       {facts['state_digest']}"
    yield ""
    rows = [
        [name, f"{group['tensors']:,}", format_count(group["elements"]), format_bytes(group["bytes"])]
        for name, group in facts["groups"].items()
    ]
    yield from table(["tensors", "count", "elements", "size"], rows)
    yield ""
    yield "beside the tensors"
    leaves = dict(flat(facts["state"]))
    width = max(map(len, leaves), default=0)
    yield from (f"  {name:<{width}}  {json.dumps(value, ensure_ascii=False)}" for name, value in leaves.items())
    if tensors is not None:
        yield ""
        cells = [
            [t["name"], t["dtype"], " x ".join(map(str, t["shape"])) or "scalar", f"{t['chunks']:,}", format_bytes(t["bytes"])]
            for t in tensors
        ]
        yield from table(["tensor", "dtype", "shape", "chunks", "size"], cells, left=(0, 1, 2))


def flat(value: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Nested objects as dotted names: what is compared by eye stands on lines of its own."""
    for key, item in value.items():
        if isinstance(item, dict) and item:
            yield from flat(item, f"{before}{key}.")
        else:
            yield f"{before}{key}", item


def saved_at(stamp: dict[str, Any]) -> str:
    """The realtime of a stamp, as the clock of the machine that saved stood."""
    real_ns = stamp.get("real_ns")
    if type(real_ns) is not int:
        return "unknown"
    return datetime.fromtimestamp(real_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def keep(
    run: RunArgument,
    name: NameArgument,
    /,
    *,
    label: Annotated[
        str | None, Parameter(name="--as", metavar="LABEL", help="A word on why, shown by headway checkpoint list.")
    ] = None,
    release: Annotated[bool, Parameter(negative="", help="Leave it to the run's own policy again.")] = False,
) -> None:
    """Keep a checkpoint for good: no policy and no budget deletes it until it is released.

    Also while the run is going. The mark is a line in checkpoints/kept.jsonl, with the name of the account.
    """
    from headway.cli.output import say
    from headway.cli.run import author
    from headway.rundir.layout import RunDirectory
    from headway.store import kept

    directory = RunDirectory.open(run)
    if release and label is not None:
        raise ConfigError("--as and --release", "a label is given to what is kept", "leave one of them out")
    if release:
        kept.release(directory, name, author=author())
        say(f"{name} is left to the run's policy again")
    else:
        kept.keep(directory, name, author=author(), label=label or "")
        say(f"{name} is kept{f' as {label}' if label else ''}; release it with: headway checkpoint keep {run} {name} --release")
