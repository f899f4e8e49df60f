"""``headway data mixture RECIPE`` and ``headway data mixture RUN``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from headway.base.errors import ConfigError
from headway.cli.data_named import Kind, kind_of
from headway.cli.options import CacheOption, DataOption, Json, Overrides

SAME = 5e-6
"""Shares that differ by less are printed alike."""


def mixture(
    what: Annotated[str, Parameter(help="A run directory; or a recipe file, or the name of a preset.")],
    /,
    *,
    steps: Annotated[
        str | None,
        Parameter(
            metavar="A-B", help="Only these steps, from 1, as records count them. Default: of a run those so far, else all."
        ),
    ] = None,
    documents: Annotated[
        bool,
        Parameter(
            negative="", help="Count the documents that begin in what is read, too: needs the data, and walks every position."
        ),
    ] = False,
    data: DataOption = None,
    cache: CacheOption = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Show what the stages ask of each source and what they get: shares, epochs, caps, unread chunks, what repeats are worth.

    Shares are of target tokens. Realised ones are exact, from the stream's own arithmetic, for a run so far, for a recipe over
    built data, or for any steps. A recipe whose data is not built is shown by the inventory that it declares.
    """
    from headway.cli.output import print_json, say

    opened = opened_what(what, overrides, data, cache)
    found = reported(opened, steps, documents)
    if json:
        print_json(facts(opened, found))
    else:
        for line in lines(opened, found):
            say(line)


@dataclass(frozen=True)
class Opened:
    """``stream`` None: the data is not built. ``done``: steps of a run so far; None: no run. ``cache``: place.CacheOptions."""

    where: str
    spec: Any
    stream: Any
    data: str | None  # a directory or a URL
    done: int | None
    cache: Any


def opened_what(what: str, overrides: list[str] | None, data: str | None, cache: Path | None) -> Opened:
    kind = kind_of(what)
    if kind is Kind.DATA:
        rule = f"{what} is data, and stages are of a recipe or a run"
        raise ConfigError("data has no mixture", rule, f"headway data mixture RECIPE --data {what}")
    if kind is Kind.RECIPE:
        return opened_recipe(what, overrides, data, cache)
    if overrides or data is not None:
        raise ConfigError("--set or --data with a run", "a run has its own spec and data, which nothing changes", "leave it out")
    return opened_run(Path(what), cache)


def opened_run(place: Path, cache: Path | None = None) -> Opened:
    """The newest segment's records: they leave what came before them as it was."""
    from headway.data.place import CacheOptions
    from headway.data.stream import Stream
    from headway.rundir.layout import RunDirectory
    from headway.rundir.segments import deployment_of, read_segments

    run = RunDirectory.open(place)
    spec, segments = run.spec(), read_segments(run)
    stream = Stream.of_segment(spec, segments[-1]) if segments else Stream(spec)
    options = CacheOptions(cache) if cache else CacheOptions.of(deployment_of(run))
    return Opened(f"run {place}", spec, stream, run.info()["data"], steps_done(run), options)


def steps_done(run: Any) -> int:
    """Of the history that counts."""
    from headway.recipe.schedules import Schedule
    from headway.rundir.metrics import read_chain_rows
    from headway.rundir.segments import current_chain, read_segments

    chain = current_chain(read_segments(run))
    done = (row["step"] for row in read_chain_rows(run, chain).kept if row["kind"] == "step")
    return min(max(done, default=chain[-1].restored_step if chain else 0), Schedule(run.spec()).total_steps)


def opened_recipe(recipe: str, overrides: list[str] | None, data: str | None, cache: Path | None = None) -> Opened:
    from headway.cli.describe import cache_of, default_data, describe, spec_of
    from headway.data.stream import Stream

    description = describe(recipe, overrides, None, runnable=False)
    spec = spec_of(description, data, cache)
    where = None if spec.is_draft else str(data or default_data(description))
    stream = None if spec.is_draft else Stream(spec)
    return Opened(f"recipe {description.recipe.name}", spec, stream, where, None, cache_of(description, cache))


def reported(opened: Opened, steps: str | None, documents: bool) -> Any:
    from headway.data.inspect.mixture import report
    from headway.data.place import open_place
    from headway.data.reader import TokenReader
    from headway.recipe.schedules import Schedule

    total = Schedule(opened.spec).total_steps
    wanted = steps_of(steps) if steps is not None else (0, total if opened.done is None else opened.done)
    if documents and opened.data is None:
        raise ConfigError(
            "--documents without data", "documents are counted in built data", "build it: headway data build RECIPE"
        )
    if opened.data is None and steps is not None:
        raise ConfigError(
            "--steps without data", "what steps read follows from built data", "build it: headway data build RECIPE"
        )
    count = None
    if documents and opened.data is not None:
        count = TokenReader.open(open_place(opened.data, opened.cache), opened.spec).documents_begun
    return report(opened.spec, opened.stream, wanted, count, opened.done)


def steps_of(text: str) -> tuple[int, int]:
    """``A-B``, from 1, both included -> [first, end) from 0."""
    match = re.fullmatch(r"(\d{1,15})-(\d{1,15})", text, re.ASCII)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise ConfigError(f"--steps {text}", "A-B: from step A to step B, from 1, both included", "such as --steps 1-100")
    return int(match[1]) - 1, int(match[2])


# --- JSON -------------------------------------------------------------------------------------------------------------------


def facts(opened: Opened, found: Any) -> dict[str, Any]:
    """Plain values."""
    from dataclasses import asdict

    from headway.formulas.repetition import SOURCE, WEAKNESS

    spec = found.spec
    return {
        "kind": "data_mixture",
        "schema_version": 1,
        "of": opened.where,
        "built": not spec.is_draft,
        "steps_done": opened.done,
        "steps": [found.steps[0] + 1, found.steps[1]],
        "stages": [stage_facts(spec, stage) for stage in found.stages],
        "together": [asdict(row) for row in found.whole],
        "sources": [asdict(source) for source in found.sources],
        "transitions": [asdict(one) for one in opened.stream.transitions] if opened.stream else [],
        "worth": {"source": SOURCE, "weakness": WEAKNESS},
    }


def stage_facts(spec: Any, found: Any) -> dict[str, Any]:
    from dataclasses import asdict

    stage, names = spec.stages[found.stage], [source.name for source in spec.sources]
    return {
        "stage": stage.name,
        "sequence_length": stage.sequence_length,
        "sequences": stage.sequences,
        "rule": asdict(stage.mixture_rule) if stage.mixture_rule else None,
        "rebalanced": bool(stage.asked_quanta),
        "asked": dict(zip(names, found.asked, strict=True)),
        "given": dict(zip(names, found.given, strict=True)),
        "realised": realised_facts(found.shares) if found.shares else None,
    }


def realised_facts(shares: Any) -> dict[str, Any]:
    from dataclasses import asdict

    shown = {name: value for name, value in asdict(shares).items() if name not in ("mixtures", "seed", "each")}
    return shown | {"worst_error": shares.worst_error}


# --- words ------------------------------------------------------------------------------------------------------------------


def lines(opened: Opened, found: Any) -> Iterator[str]:
    """Stage by stage, all of them together, then every source in the whole run."""
    yield from head(opened, found)
    for stage in found.stages:
        yield from stage_lines(found, stage)
    if len([stage for stage in found.stages if stage.shares]) > 1:
        yield ""
        yield "together"
        yield from share_table(found.whole, [row.asked for row in found.whole], [row.given for row in found.whole])
    yield from source_lines(opened, found)


def head(opened: Opened, found: Any) -> Iterator[str]:
    from headway.recipe.schedules import Schedule

    total, (first, end) = Schedule(found.spec).total_steps, found.steps
    if opened.stream is None:
        yield f"{opened.where}: its data is not built; sizes are those that it declares"
    elif first == end:
        yield f"{opened.where}: no step is trained yet of {total:,}"
    else:
        yield f"{opened.where}: steps {first + 1:,} to {end:,} of {total:,}"
    for one in opened.stream.transitions if opened.stream else ():
        weights = ", ".join(f"{name} {weight:g}" for name, weight in one.weights.items())
        stage = found.spec.stages[one.stage].name
        yield f"transition: stage {stage} from sequence {one.first:,} on: {weights}; by {one.author}: {one.reason}"


def stage_lines(found: Any, stage: Any) -> Iterator[str]:
    from headway.base.units import format_count
    from headway.recipe.mixture_rules import rule_words

    spec, shares = found.spec.stages[stage.stage], stage.shares
    size = f"{spec.sequences:,} sequences of {spec.sequence_length:,}"
    yield ""
    yield f"stage {spec.name}: {size}; {rule_words(spec)}"
    if shares is None:
        names = [source.name for source in found.spec.sources]
        yield from share_table([None] * len(names), stage.asked, stage.given, names)
        return
    part = f"{shares.sequences:,} sequences, {format_count(sum(row.tokens for row in shares.sources))} tokens"
    yield from share_table(shares.sources, stage.asked, stage.given)
    yield f"{part}; a share is off by {shares.worst_error:.4%} at most in any 10,000 sequences in a row"


def share_table(rows: Any, asked: Any, given: Any, names: Any = None) -> list[str]:
    """``rows`` of None: nothing is realised."""
    from headway.cli.output import table

    moved = any(abs(a - b) > SAME for a, b in zip(asked, given, strict=True))
    with_documents = any(row is not None and row.documents is not None for row in rows)
    titles = ["source", "asked", *(["given"] if moved else []), "realised", "sequences", "target tokens"]
    made = []
    for place, row in enumerate(rows):
        cells = [f"{asked[place]:.3%}", *([f"{given[place]:.3%}"] if moved else [])]
        cells += ["-"] * 3 if row is None else [f"{row.realised:.3%}", f"{row.sequences:,}", f"{round(row.target_tokens):,}"]
        cells += ["-" if row.documents is None else f"{row.documents:,}"] if with_documents else []
        made.append([names[place] if names else row.source, *cells])
    return table([*titles, *(["documents"] if with_documents else [])], made)


def source_lines(opened: Opened, found: Any) -> Iterator[str]:
    from headway.cli.output import table
    from headway.formulas.repetition import WEAKNESS

    columns = {title: cell for title, cell in SOURCE_COLUMNS.items() if title != SO_FAR or opened.done is not None}
    yield ""
    yield "the whole run, as planned"
    yield from table(list(columns), [[cell(source) for cell in columns.values()] for source in found.sources])
    for source in found.sources:
        for chunk in source.unread:
            stage = found.spec.stages[chunk.stage].name
            yield f"unread: {chunk.tokens:,} tokens of {source.source}, chunk slot {chunk.slot:,}, where stage {stage} begins"
    yield "chunks: those begun, of as many as an epoch has; a cap counts them. worth: what is read, in new tokens:"
    yield WEAKNESS


def counted(value: float | None) -> str:
    return "-" if value is None else f"{round(value):,}"


def cap_words(source: Any) -> str:
    allowed = source.coverage.allowed_slots if source.coverage else None
    return (
        "-" if source.cap_epochs is None else f"{source.cap_epochs:g}" + (f" = {allowed:,} chunks" if allowed is not None else "")
    )


def worth_words(worth: Any) -> str:
    from headway.base.units import format_count

    if worth is None:
        return "-"
    return f"{format_count(round(worth.effective))} (at least {format_count(round(worth.low))})"


SO_FAR = "chunks so far"
SOURCE_COLUMNS: dict[str, Callable[[Any], str]] = {
    "source": lambda source: source.source,
    "unique tokens": lambda source: counted(source.unique_tokens),
    "read": lambda source: counted(source.tokens),
    "passes": lambda source: "-" if source.passes is None else f"{source.passes:.3f}",
    SO_FAR: lambda source: counted(source.slots_now),
    "chunks": lambda source: counted(source.coverage and source.coverage.final_slot),
    "an epoch": lambda source: counted(source.coverage and source.coverage.slots),
    "cap": cap_words,
    "worth": lambda source: worth_words(source.worth),
}
