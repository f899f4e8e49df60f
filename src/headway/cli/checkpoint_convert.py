"""``headway checkpoint convert SOURCE DESTINATION --to FORMAT``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from headway.cli.options import Json

FormatName = Literal["headway", "safetensors", "dcp", "huggingface"]
FORMAT_HELP = (
    "headway: a checkpoint directory; safetensors: one file, where DESTINATION ends with .safetensors, or a directory of them; "
    "dcp: PyTorch Distributed Checkpoint; huggingface: weights alone, as transformers loads them."
)

MOST_LINES = 12
"""Of what was left out: other programs' optimizers have thousands of entries."""


def convert(
    source: Annotated[
        str, Parameter(help="A run (its newest checkpoint that verifies), RUN:NAME, or the path of a checkpoint in any format.")
    ],
    destination: Annotated[Path, Parameter(help="What to write. It must not exist; it appears when it is whole.")],
    /,
    *,
    to: Annotated[FormatName, Parameter(metavar="FORMAT", help=FORMAT_HELP)],
    from_: Annotated[
        FormatName | None, Parameter(name="--from", metavar="FORMAT", help="Format of the source. Default: by its files.")
    ] = None,
    shard_bytes: Annotated[
        str,
        Parameter(
            metavar="SIZE",
            help="Most bytes of tensors in a file, such as 512MiB. A larger tensor has a file of its own, in dcp several.",
        ),
    ] = "4GiB",
    step: Annotated[
        int | None, Parameter(metavar="N", help="To headway: step of the checkpoint where the source does not tell. Default: 0.")
    ] = None,
    dtype: Annotated[
        Literal["bf16", "fp32"] | None,
        Parameter(metavar="DTYPE", help="To huggingface: bf16 or fp32 weights. Default: as they are."),
    ] = None,
    json: Json = False,
) -> None:
    """Write a checkpoint in another format, and back.

    Values stay bit for bit. What is read from a checkpoint of Headway is verified; nothing from other files is unpickled or
    run. What the other format has no place for is named.
    """
    from headway.base.units import parse_bytes
    from headway.cli.engine import ask_engine
    from headway.cli.output import print_json

    given = {"--to": to, "--from": from_, "--shard-bytes": parse_bytes(shard_bytes), "--step": step, "--dtype": dtype}
    options = [f"{name}={value}" for name, value in given.items() if value is not None]
    facts = ask_engine("convert", [*options, "--", source, str(destination)])
    if json:
        print_json(facts)
    else:
        show(facts)


def show(facts: dict[str, Any]) -> None:
    """What was written, and what was not."""
    from headway.base.units import format_bytes
    from headway.cli.output import say

    for refused in facts["rejected"]:
        say(f"checkpoint {refused['checkpoint']} is refused: {refused['reason']}")
    say(f"source       {facts['source']} ({facts['from']}, {place(facts)})")
    say(f"destination  {facts['destination']} ({facts['to']})")
    say(f"read         {facts['tensors']:,} tensors, {format_bytes(facts['bytes'])}")
    for item in facts["left_out"][:MOST_LINES]:
        count = f" ({item['tensors']:,} tensor{'' if item['tensors'] == 1 else 's'})" if item["tensors"] else ""
        say(f"left out     {item['what']}{count}: {item['why']}")
    if len(facts["left_out"]) > MOST_LINES:
        say(f"left out     {len(facts['left_out']) - MOST_LINES:,} more, which --json lists")
    for note in facts["notes"]:
        say(f"note         {note}")


def place(facts: dict[str, Any]) -> str:
    """Segment and step, where they are known."""
    if facts["step"] is None:
        return "step not known"
    return f"step {facts['step']:,}" + ("" if facts["segment"] is None else f", segment {facts['segment']}")
