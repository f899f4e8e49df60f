"""Writes the reference pages from what they describe, so that they cannot rot: ``python -m headway.cli.reference DIRECTORY``.

    cli.md         the help text of every verb
    recipe.md      every key of a recipe, from the schema's descriptions
    deployment.md  every key of a deployment
    worksheet.md   every key of a worksheet
    chips.md       every chip of the table

``make docs`` runs it; a test compares the pages with what it would write.
"""

from __future__ import annotations

import contextlib
import io
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.recipe.chips import Chip

NOTE = "<!-- Written by `make docs`. Change the help texts or the schema instead. -->"


RECIPE_INTRODUCTION = """\
A recipe is one TOML file; [the README](../../README.md#your-own-recipe) has a short one that works.

- A **quantity** is a text with a unit, or a number. Counts: `"250M tokens"`, `"250M"`, `250_000_000`, with k = 10³, M = 10⁶,
  B or G = 10⁹, T = 10¹², P = 10¹⁵. Durations always carry their unit: `"90s"`, `"30min"`, `"2h"`, `"3days"`. Sizes:
  `"64MiB"`, `"80GB"`; a bare number is bytes. A unit of another dimension is refused.
- TOML has no None. Where a meaning says "None: ...", leave the key out; that is what the default `none` stands for.
- `[section]` is a table, `[[section]]` one entry of a list of tables. A table whose keys all have defaults may be given as
  `{}`; where the section has a default itself, such as `rate`, it may be left out.
- A relative `path` is relative to the working directory in which headway is started."""

CHIPS_INTRODUCTION = """\
What `--cluster 64xH100-SXM` and `accelerator.kind` of [a deployment](deployment.md) know. Peaks are dense, without sparsity;
bandwidths go one way, and the network's is per chip as usually built. A domain is as many chips as the fast links join; where it
is 1, the link is the bus to the host. Announced chips were not on sale when the table was written, and unverified figures were
not checked against a source: plans say so.

A chip that is not listed gets a `kind` of its own, with its `peak_flops` (dense, in the recipe's precision), its `memory` and the
`utilisation` to assume. Time follows from these; layouts, and step times by the model of a step, need a chip of the table. The
same keys, with `domain` and `network`, state what differs on a chip of the table.

```toml
[accelerator]
kind = "my chip"
peak_flops = "500T"
memory = "96GiB"
utilisation = 0.4
utilisation_convention = "6N"
```"""

WORKSHEET_INTRODUCTION = """\
A worksheet shares out a reservation and says what it buys. [The shipped one](../../recipes/256-gpu.worksheet.toml) is a start.
Every quantity carries its unit: shares `"8 %"`, rates `"180 TFLOP/s"`, durations `"90days"`; bare numbers are refused."""


SURVIVAL_EXAMPLE = """\
[failures]
every = "3h"
restart = "6min"
repair = "12h"                  # until a broken node is back

[failures.elastic]              # meanwhile the job goes on with the other nodes
reconfigure = "90s"             # pace left out: it falls with the nodes

[[failures.pauses]]
what = "firmware"
every = "30days"
length = "4h"

[checkpoints]                   # the storage: survives everything
every = "30min"

[[checkpoints.tiers]]
name = "host memory"            # outlives the process, not the node
every = "1min"
cost = "200ms"                  # blocks training
restore = "5s"
survives = ["process"]
keep = 2

[[checkpoints.tiers]]
name = "local disk"             # outlives a restart of the node that the network took away
every = "5min"
cost = "1s"
restore = "30s"
survives = ["process", "network"]"""

DEPLOYMENT_INTRODUCTION = f"""\
Every section may be left out: together the defaults are one process on this machine. What is said to be for plans is refused by
`run`, which does not act upon it. Devices that `accelerator.kind` knows are in [the table of chips](chips.md). This part of a
deployment says how a run survives its faults; `headway plan RECIPE --simulate` takes all of it into account:

```toml
{SURVIVAL_EXAMPLE}
```"""


def pages() -> dict[str, str]:
    """File name -> text of every reference page."""
    from headway.plan.worksheet.file import Worksheet
    from headway.recipe.deployment import Deployment
    from headway.recipe.schema import Recipe

    return {
        "cli.md": cli_page(),
        "recipe.md": schema_page("The recipe", Recipe, RECIPE_INTRODUCTION),
        "deployment.md": schema_page("The deployment", Deployment, DEPLOYMENT_INTRODUCTION),
        "worksheet.md": schema_page("The worksheet", Worksheet, WORKSHEET_INTRODUCTION),
        "chips.md": chips_page(),
    }


# --- command line


def help_text(*arguments: str) -> str:
    """What ``headway ARGUMENTS --help`` prints."""
    from headway.cli.main import invoke

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        invoke([*arguments, "--help"])
    return printed.getvalue().strip()


def cli_page() -> str:
    from headway.cli.main import GROUPS, VERBS

    verbs: list[tuple[str, ...]] = [()]
    for top in [*VERBS, *(group for group in GROUPS if group not in VERBS)]:
        verbs += [(top,), *((top, verb) for verb in GROUPS.get(top, ()))]
    parts = ["# The command line", NOTE]
    for verb in verbs:
        parts += [f"## {' '.join(('headway', *verb))}", f"```text\n{help_text(*verb)}\n```"]
    return "\n\n".join(parts) + "\n"


# --- chips

PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float8": "fp8", "float4": "fp4"}


def chips_page() -> str:
    from headway.recipe.chips import CHIPS

    peaks = [f"{short}, TFLOP/s" for short in PRECISIONS.values()]
    links = ["link, GB/s", "domain", "network, GB/s"]
    columns = ["chip", *peaks, "memory, GiB", "memory bandwidth, GB/s", *links, "figures", "note"]
    rows = ["| " + " | ".join(cells) + " |" for cells in (columns, ["---"] * len(columns), *map(chip_row, CHIPS.values()))]
    return "\n\n".join(["# Chips", NOTE, CHIPS_INTRODUCTION, "\n".join(rows)]) + "\n"


def chip_row(chip: Chip) -> list[str]:
    figures = "verified" if chip.verified else "unverified"
    return [
        f"`{chip.name}`",
        *(in_units(chip.peaks.get(precision), 1e12) for precision in PRECISIONS),
        in_units(chip.memory_bytes, 2**30),
        in_units(chip.memory_bandwidth, 1e9),
        in_units(chip.link_bandwidth, 1e9),
        f"{chip.domain:,}" + (f", {chip.topology}" if chip.topology != "switch" else ""),
        in_units(chip.network_bandwidth, 1e9),
        f"announced, {figures}" if chip.announced else figures,
        chip.note.replace("|", "\\|"),
    ]


def in_units(value: float | None, unit: float) -> str:
    return "-" if value is None else f"{round(value / unit, 3):,.10g}"


# --- schemas


def schema_page(title: str, root: Any, introduction: str = "") -> str:
    """A table per section, in the order of the file."""
    parts = [f"# {title}", NOTE, *([introduction] if introduction else [])]
    for path, section in sections(root, ""):
        rows = [row(name, field) for name, field in section.model_fields.items() if not inner(field.annotation)]
        parts += [f"## {path or 'At the top'}", " ".join((section.__doc__ or "").split())]
        if rows:
            parts.append("\n".join(["| key | value | default | meaning |", "|---|---|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def sections(section: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The section and those inside it, each with its TOML heading."""
    yield path, section
    for name, field in section.model_fields.items():
        found = inner(field.annotation)
        if found:
            inside = f"{path.strip('[]')}.{name}".strip(".")
            heading = f"[{inside}.NAME]" if is_a(field.annotation, dict) else f"[{inside}]"
            yield from sections(found, f"[{heading}]" if is_a(field.annotation, tuple) else heading)


def inner(annotation: Any) -> Any:
    """The section class inside an annotation, if there is one."""
    from headway.recipe.fields import Section

    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((found for found in map(inner, typing.get_args(annotation)) if found), None)


def is_a(annotation: Any, kind: type) -> bool:
    return typing.get_origin(annotation) is kind


def row(name: str, field: Any) -> str:
    meaning = " ".join((field.description or "").split()).replace("|", "\\|")
    default = "required" if field.is_required() else shown(field.default)
    return f"| `{field.alias or name}` | {value_of(field.annotation, field.metadata)} | {default} | {meaning} |"


def shown(default: Any) -> str:
    if default is None:
        return "none"
    if default in ((), {}, ""):
        return "empty"
    text = str(default).lower() if isinstance(default, bool) else str(default)
    return f"`{text}`".replace("|", "\\|")


WORDS = {int: "integer", float: "number", str: "text", bool: "true or false"}


def value_of(annotation: Any, metadata: Any = ()) -> str:
    """What may stand there, in a word or two."""
    if any("_quantity" in getattr(getattr(item, "func", None), "__qualname__", "") for item in metadata):
        return "quantity"
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return value_of(arguments[0], arguments[1:])
    if origin in (typing.Union, types.UnionType):
        return value_of(next(item for item in arguments if item is not type(None)))
    if origin is typing.Literal:
        return ", ".join(f"`{item}`" for item in arguments)
    if origin is tuple:
        return f"list of {value_of(arguments[0])}"
    if origin is dict:
        return f"table of {value_of(arguments[1])}"
    return WORDS.get(annotation, getattr(annotation, "__name__", str(annotation)))


def main(directory: str) -> None:
    """Write the pages."""
    from headway.base.files import make_directory, write_atomic

    root = make_directory(Path(directory))
    for name, text in pages().items():
        write_atomic(root / name, text.encode())
        print(root / name)


if __name__ == "__main__":
    main(sys.argv[1])
