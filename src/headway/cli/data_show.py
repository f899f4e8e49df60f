"""``headway data show WHAT STEP``: of a run, of a recipe over the data built from it, or of data with --recipe."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from headway.base.errors import ConfigError
from headway.cli.data_named import Kind, kind_of
from headway.cli.options import CacheOption, Json, Overrides

IN_FULL = 4


def show(
    what: Annotated[
        str,
        Parameter(
            help="A run directory; a recipe file or preset whose data is built; or a data directory or URL, with --recipe."
        ),
    ],
    step: Annotated[int | None, Parameter(help="A step, from 1, as the records of a run count them.")] = None,
    /,
    *,
    stage: Annotated[
        str | None,
        Parameter(metavar="NAME", help="Count steps from the beginning of this training stage. With --index: its stage."),
    ] = None,
    index: Annotated[
        int | None,
        Parameter(metavar="U", help="In place of a step: the sequence that is trained at this index of the stage, from 0."),
    ] = None,
    sequence: Annotated[
        int | None, Parameter(metavar="ROW", help="Only this sequence of the step's batch, from 0. Default: all.")
    ] = None,
    replica: Annotated[
        str | None,
        Parameter(
            metavar="I/N", help="Only what replica I of N takes, from 0, in its order, such as 0/8. Default: the whole batch."
        ),
    ] = None,
    segment: Annotated[
        int | None,
        Parameter(metavar="ID", help="As this segment of the run reads it, under its skip records. Default: the newest."),
    ] = None,
    cache: CacheOption = None,
    recipe: Annotated[str | None, Parameter(metavar="RECIPE", help="For a data directory: the recipe to be trained.")] = None,
    overrides: Overrides = None,
    full: Annotated[
        int, Parameter(metavar="N", help="How many sequences to print with their text; the table has all of them.")
    ] = IN_FULL,
    tokens: Annotated[bool, Parameter(negative="", help="Also print the token ids.")] = False,
    json: Json = False,
) -> None:
    """Show the exact sequences that a step trains on: documents, sources, targets, text, licences.

    The same code reads them that training uses, from the shards themselves, verified. Characters that a terminal would obey are
    printed as escapes; --json has every sequence with all ids.
    """
    from headway.cli.output import say

    _refuse_contradictions(step, stage, index, sequence, replica)
    opened = opened_what(what, recipe, overrides, segment, cache)
    found = selected(opened, step, stage, index, sequence, _replica_of(replica))
    if json:
        print_ascii_json(facts(opened, found))
    else:
        for line in lines(opened, found, max(0, full), tokens):
            say(line)


def _refuse_contradictions(
    step: int | None, stage: str | None, index: int | None, sequence: int | None, replica: str | None
) -> None:
    if (step is None) == (index is None):
        seen = "no step is named" if step is None else "a step and --index"
        raise ConfigError(
            seen, "a sequence is found by its step, or by its index in a stage", "such as: headway data show RUN 120"
        )
    if index is not None and stage is None:
        raise ConfigError("--index without --stage", "every stage counts its sequences from 0", "name the stage: --stage NAME")
    if index is not None and (sequence is not None or replica is not None):
        raise ConfigError("--index with --sequence or --replica", "an index is one sequence already", "leave the others out")
    if sequence is not None and replica is not None:
        raise ConfigError("--sequence with --replica", "a row is counted in the whole batch", "leave one of them out")


def _replica_of(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text, re.ASCII)
    if not match or not int(match[1]) < int(match[2]):
        raise ConfigError(
            f"--replica {text}", "I of N, counted from 0: 0/8 is the first of eight, 7/8 the last", "such as --replica 0/8"
        )
    return int(match[1]), int(match[2])


# --- what is shown ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Opened:
    """``show`` is data.inspect.show.Show; ``where`` says whose stream it is."""

    show: Any
    where: str
    segment: int | None


@dataclass(frozen=True)
class Selected:
    """The step, and those of its sequences that were asked for."""

    place: Any  # recipe.schedules.StepPlace
    replica: tuple[int, int] | None
    sequences: list[Any]


def opened_what(what: str, recipe: str | None, overrides: list[str] | None, segment: int | None, cache: Path | None) -> Opened:
    kind = kind_of(what)
    if kind is not Kind.RUN and segment is not None:
        raise ConfigError(f"--segment with {kind.value}", "segments are of a run", "name the run, or leave --segment out")
    if recipe is not None and kind is not Kind.DATA:
        rule = f"{what} is {kind.value}, which says itself what is trained"
        raise ConfigError(f"--recipe with {kind.value}", rule, "leave --recipe out")
    if kind is Kind.RUN:
        if overrides:
            raise ConfigError("--set with a run", "a run has its own spec, which nothing changes", "leave --set out")
        return opened_run(Path(what), segment, cache)
    if kind is Kind.RECIPE:
        return opened_data(None, what, overrides, cache)
    if recipe is None:
        raise ConfigError(
            f"{what} is data, not a run",
            "which step reads what is a matter of the recipe",
            f"headway data show {what} STEP --recipe R",
        )
    return opened_data(what, recipe, overrides, cache)


def opened_run(place: Path, segment: int | None, cache: Path | None = None) -> Opened:
    """The stream of a run: its spec, its records, its data."""
    from headway.data.inspect.show import Show
    from headway.data.place import CacheOptions, open_place
    from headway.data.reader import frozen_manifest
    from headway.data.stream import Stream
    from headway.rundir.layout import RunDirectory
    from headway.rundir.segments import deployment_of

    run = RunDirectory.open(place)
    spec, member = run.spec(), _segment_of(run, segment)
    options = CacheOptions(cache) if cache else CacheOptions.of(deployment_of(run))
    data = open_place(run.info()["data"], options)
    stream = Stream.of_segment(spec, member) if member else Stream(spec)
    return Opened(Show(stream, data, frozen_manifest(data.directory, spec)), f"run {place}", member.id if member else None)


def _segment_of(run: Any, wanted: int | None) -> Any:
    """The segment whose skip records count; None: the run has none yet."""
    from headway.rundir.segments import read_segments

    segments = read_segments(run)
    if wanted is None:
        return segments[-1] if segments else None
    found = next((segment for segment in segments if segment.id == wanted), None)
    if found is None:
        known = ", ".join(str(segment.id) for segment in segments) or "none"
        raise ConfigError(
            f"{run.root} has no segment {wanted}", "each start of a run is a segment", f"there are: {known}", "--segment"
        )
    return found


def opened_data(data: str | None, recipe: str, overrides: list[str] | None, cache: Path | None = None) -> Opened:
    """The stream that a recipe would have over built data, None: over its own; it has no skip records yet."""
    from headway.cli.describe import built_at, cache_of, describe, refuse_other_place
    from headway.data.freeze import freeze
    from headway.data.inspect.show import Show
    from headway.data.manifest import DataManifest
    from headway.data.place import open_place
    from headway.data.stream import Stream

    description = describe(recipe, overrides, None, runnable=False)
    where = built_at(description, data)
    refuse_other_place(where)
    place = open_place(where, cache_of(description, cache))
    manifest = DataManifest.load(place.directory)
    return Opened(Show(Stream(freeze(description.loaded, manifest)), place, manifest), f"{where} with recipe {recipe}", None)


def selected(
    opened: Opened, step: int | None, stage: str | None, index: int | None, sequence: int | None, replica: tuple[int, int] | None
) -> Selected:
    import numpy as np

    from headway.data.stream import Share

    show = opened.show
    number = show.stage(stage) if stage is not None else None
    if index is not None:
        place = show.step_of(number, index)
        return Selected(place, None, show.sequences(place, Share(np.array([index]), 0)))
    place = show.step(step, number)
    if sequence is not None:
        if not 0 <= sequence < place.batch_sequences:
            raise ConfigError(
                f"there is no sequence {sequence:,} in this step", f"its batch has sequences 0 to {place.batch_sequences - 1:,}"
            )
        share = Share(np.array([place.first_sequence + sequence]), 0)
    else:
        share = show.batch(place) if replica is None else show.replica(place, *replica)
    return Selected(place, replica, show.sequences(place, share))


# --- JSON -------------------------------------------------------------------------------------------------------------------


def print_ascii_json(value: Any) -> None:
    """With every other character as an escape: the texts are of unknown origin, and a terminal would obey some of them."""
    import json

    print(json.dumps(value, indent=1, allow_nan=False))


def facts(opened: Opened, found: Selected) -> dict[str, Any]:
    """Plain values, with every sequence."""
    from dataclasses import asdict

    spec, place = opened.show.spec, found.place
    stage = spec.stages[place.stage]
    return {
        "kind": "data_sequences",
        "schema_version": 1,
        "of": opened.where,
        "segment": opened.segment,
        "skips": [asdict(skip) for skip in opened.show.stream.skips],
        "quarantines": [asdict(one) for one in opened.show.stream.quarantines],
        "transitions": [asdict(one) for one in opened.show.stream.transitions],
        "data": str(opened.show.directory),
        "manifest_digest": spec.manifest_digest,
        "tokenizer_digest": spec.tokenizer.digest,
        "data_seed": spec.data_seed,
        "step": place.step + 1,
        "stage": stage.name,
        "step_of_stage": place.step - opened.show.schedule.first_step(place.stage) + 1,
        "first_u": place.first_sequence,
        "batch_sequences": place.batch_sequences,
        "sequence_length": stage.sequence_length,
        "replica": dict(zip(("index", "count"), found.replica, strict=True)) if found.replica else None,
        "sequences": [sequence_facts(sequence) for sequence in found.sequences],
    }


def sequence_facts(sequence: Any) -> dict[str, Any]:
    from dataclasses import asdict

    source = sequence.source
    return {
        "row": sequence.row,
        "u": sequence.u,
        "n": sequence.n,
        "source": source.name,
        "kind": source.kind,
        "licence": source.licence,
        "provenance": source.provenance,
        "synthetic": asdict(source.synthetic) if source.synthetic else None,
        **asdict(sequence.place),
        "reads": [asdict(part) for part in sequence.reads],
        "padding": sequence.padding,
        "tokens": sequence.tokens,
        "targets": sequence.targets,
        "counted": sequence.counted,
        "documents": [{**asdict(piece), "begins": piece.begins, "ends": piece.ends} for piece in sequence.pieces],
    }


# --- text -------------------------------------------------------------------------------------------------------------------


def lines(opened: Opened, found: Selected, full: int, tokens: bool) -> Iterator[str]:
    """The step, a table of its sequences, the first of them in full."""
    from headway.cli.output import table

    yield from heading_lines(opened, found)
    yield ""
    titles = ["row", "u", "source", "epoch", "chunk", "window", "first token", "documents"]
    titles += ["filling"] if found.replica else []
    yield from table(titles, [row(sequence)[: len(titles)] for sequence in found.sequences], left=(2, 8))
    for sequence in found.sequences[:full]:
        yield ""
        yield from sequence_lines(sequence, tokens)
    if len(found.sequences) > full:
        yield ""
        rest = len(found.sequences) - full
        yield f"{rest:,} more without their text: --sequence ROW for one of them, --full {len(found.sequences)} for all"


def heading_lines(opened: Opened, found: Selected) -> Iterator[str]:
    show, place = opened.show, found.place
    spec, schedule = show.spec, show.schedule
    stage, steps = spec.stages[place.stage], schedule.stage_steps(place.stage)
    at = place.step - schedule.first_step(place.stage) + 1
    yield f"stream   {opened.where}" + (f", segment {opened.segment}" if opened.segment is not None else "")
    yield f"step     {place.step + 1:,} of {schedule.total_steps:,}: step {at:,} of {steps:,} of stage {stage.name}"
    indices = f"u {place.first_sequence:,} to {place.end_sequence - 1:,}"
    yield f"batch    {place.batch_sequences:,} sequences of {stage.sequence_length:,} tokens, {indices}"
    if found.replica:
        padded = sum(sequence.padding for sequence in found.sequences)
        filled = f"; {padded:,} of them only fill it and count for nothing" if padded else ""
        yield f"replica  {found.replica[0]} of {found.replica[1]}, from 0: {len(found.sequences):,} sequences{filled}"
    if skips := [skip for skip in show.stream.skips if skip.stage == place.stage]:
        told = ", ".join(f"{skip.count:,} from stream index {skip.first:,} on" for skip in skips)
        yield f"skipped  in this stage: {told}"
    for change in (one for one in show.stream.transitions if one.stage == place.stage):
        weights = ", ".join(f"{name} {weight:g}" for name, weight in change.weights.items())
        yield f"mixture  {weights} from stream index {change.first:,} on"
    for file in show.lacking:
        yield f"unknown  what is known of documents is missing: {file}"
    for one in show.stream.quarantines:
        since = f"index {one.first:,} of stage {spec.stages[one.stage].name}"
        yield f"left out {one.tokens:,} damaged tokens of {one.source} from {one.token:,} on, since {since}"


def row(sequence: Any) -> list[str]:
    from headway.base.terminal import one_line

    place = sequence.place
    return [
        f"{sequence.row:,}",
        f"{sequence.u:,}",
        one_line(sequence.source.name),
        f"{place.epoch:,}",
        f"{place.chunk:,} of {place.chunks:,}",
        f"{place.window:,} of {place.windows:,}",
        f"{place.first_token:,}",
        f"{len(sequence.pieces):,}",
        "yes" if sequence.padding else "",
    ]


def sequence_lines(sequence: Any, tokens: bool) -> Iterator[str]:
    """One sequence: where it is from, and its documents with their text."""
    from headway.base.terminal import one_line, printable_text

    source, place = sequence.source, sequence.place
    skipped = f", stream index {sequence.n:,}" if sequence.n != sequence.u else ""
    where = f"epoch {place.epoch}, chunk {place.chunk:,}, window {place.window:,}"
    head = f"row {sequence.row:,}: u {sequence.u:,}{skipped}; {one_line(source.name)}, {where}"
    yield head
    yield "-" * len(head)
    yield f"licence    {one_line(source.licence) or 'not stated'}"
    yield f"provenance {one_line(source.provenance, 200) or 'not stated'}"
    if source.synthetic:
        yield f"synthetic  by {one_line(' '.join(filter(None, source.synthetic.generator.values())), 200)}"
    for part in sequence.reads:
        blocks = (
            f"block {part.first_block}"
            if part.first_block == part.last_block
            else f"blocks {part.first_block} to {part.last_block}"
        )
        yield f"read from  {part.file}, bytes {part.first_byte:,} to {part.end_byte - 1:,} ({blocks})"
    yield f"targets    {counted_words(sequence)}; the last is id {sequence.targets[-1]}"
    for piece in sequence.pieces:
        yield f"{piece_words(piece)}:"
        yield from origin_lines(piece)
        yield from ("  | " + line for line in printable_text(piece.text).split("\n"))
        if tokens:
            yield from id_lines(sequence.tokens[piece.column : piece.column + piece.tokens])


def counted_words(sequence: Any) -> str:
    counted, length = sum(end - first for first, end in sequence.counted), len(sequence.tokens)
    if counted == length:
        return f"all {length:,} count"
    return f"{counted:,} of {length:,} count" if counted else "none counts: it only fills the replica"


def piece_words(piece: Any) -> str:
    """Which document, and how much of it stands here."""
    first, last = piece.column, piece.column + piece.tokens - 1
    parts = [f"document {piece.document:,}"]
    if piece.begins and piece.ends:
        parts.append(f"whole, {piece.tokens:,} tokens")
    else:
        end = piece.offset + piece.tokens
        parts.append(f"its tokens {piece.offset:,} to {end - 1:,} of {piece.document_tokens:,}")
        parts += [] if piece.begins else ["began before"]
        parts += [] if piece.ends else ["goes on"]
    parts += ["its middle filled in: the last 3 of them gave room to control tokens"] if piece.filled_in else []
    return f"[{first:,} to {last:,}] " + ", ".join(parts)


def origin_lines(piece: Any) -> Iterator[str]:
    """Where a document is from, as its source knew it."""
    from headway.base.terminal import one_line

    if piece.origin is not None:
        facts = [f"{name} {one_line(value, 200)}" for name, value in piece.facts.items() if value != piece.origin]
        yield "  from " + "; ".join([one_line(piece.origin, 200), *facts])


def id_lines(ids: Any, width: int = 110) -> Iterator[str]:
    import textwrap

    yield from textwrap.wrap(" ".join(map(str, ids)), width, initial_indent="  # ", subsequent_indent="  # ")
