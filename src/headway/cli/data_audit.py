"""``headway data audit WHAT``: built data, a run or a recipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from headway.base.errors import EXIT_FINDINGS, EXIT_OK, ConfigError
from headway.cli.data_named import Built, DataArgument, built, named
from headway.cli.options import CacheOption, Json, Overrides

MOST_GROUPS = 20


def audit(
    what: DataArgument,
    /,
    *,
    cache: CacheOption = None,
    out: Annotated[
        Path | None, Parameter(metavar="DIR", help="Also write plots as PNG, and the facts as audit.json. Default: none.")
    ] = None,
    sample: Annotated[
        int, Parameter(metavar="TOKENS", help="Of each source, decoded for what counts characters, words and lines.")
    ] = 400_000,
    overrides: Overrides = None,
    json: Json = False,
) -> int:
    """Audit the tokenizer on the data: bytes per token, fertility, whitespace, vocabulary, control tokens, odd Unicode.

    All training tokens are counted, verified. Texts that spell control tokens must not produce them, every text of a fixed list
    of odd Unicode must come back, and sampled documents must be encoded to the ids that are stored. The exit code is 1 when one
    of these fails.
    """
    from headway.cli.output import print_json, say

    if sample < 1:
        raise ConfigError(f"--sample {sample}", "at least one token of each source is decoded", "such as --sample 400000")
    found = measured(built(named(what, overrides), cache), sample, show_progress=sys.stderr.isatty())
    written = write(found, out) if out is not None else []
    if json:
        print_json(facts(found) | {"files": [str(path) for path in written]})
    else:
        for line in lines(found):
            say(line)
        for path in written:
            say(str(path))
    return EXIT_FINDINGS if found.findings() else EXIT_OK


def measured(data: Built, sample: int, *, show_progress: bool) -> Any:
    """``show_progress``: a line on standard error while tokens are read."""
    from headway.cli.data_progress import token_meter
    from headway.cli.describe import refuse_other_place
    from headway.data.inspect.audit import audit
    from headway.data.place import open_place

    refuse_other_place(data.where)
    with token_meter(Path(data.where).name, show_progress) as tell:
        return audit(open_place(data.where, data.cache), sample, tell)


def write(found: Any, out: Path) -> list[Path]:
    """Plots and facts."""
    from headway.base.files import make_directory, write_atomic, write_json
    from headway.cli.data_audit_plots import plots

    make_directory(out, "directory for the audit")
    paths = []
    for name, png in plots(found).items():
        paths.append(out / f"{name}.png")
        write_atomic(paths[-1], png)
    write_json(out / "audit.json", facts(found))
    return [*paths, out / "audit.json"]


def facts(found: Any) -> dict[str, Any]:
    """Plain values; counts per vocabulary entry are summed up."""
    from dataclasses import asdict

    from headway.data.inspect.probes import DIGITS, RUNS

    coverage = found.coverage
    return {
        "kind": "data_audit",
        "schema_version": 1,
        "directory": str(found.directory),
        "digest": found.manifest.digest(),
        "tokenizer": asdict(found.manifest.tokenizer),
        "findings": found.findings(),
        "sources": [source_facts(source) for source in found.sources],
        "synthetic_sources": {s.name: asdict(s.synthetic) for s in found.manifest.sources if s.synthetic},
        "vocabulary": {
            "entries": coverage.entries,
            "used": coverage.used,
            "never_used": coverage.never,
            "used_less_than_10_times": coverage.rare,
            "rarest_half_share": coverage.rarest_half_share,
            "entries_for_percent": {str(percent): entries for percent, entries in coverage.entries_for.items()},
            "never_used_ids": list(coverage.unused),
            "padding": found.padding,
        },
        "whitespace_runs": {"lengths": list(RUNS), "tokens": {name: list(costs) for name, costs in found.whitespace.items()}},
        "numbers": {"digits": list(DIGITS), "tokens": {name: list(costs) for name, costs in found.numbers.items()}},
        "longest_whitespace_entries": found.longest_runs,
        "round_trips": [asdict(trip) for trip in found.round_trips],
        "surrogates_refused": found.surrogates_refused,
        "control_tokens": [{**asdict(control), "in_data": found.control_counts[control.token]} for control in found.controls],
    }


def source_facts(source: Any) -> dict[str, Any]:
    import numpy as np

    def spread(values: Any) -> dict[str, float] | None:
        if not len(values):
            return None
        return {f"p{percent}": float(np.percentile(values, percent)) for percent in (5, 25, 50, 75, 95)}

    return {
        "name": source.name,
        "documents": source.documents,
        "bytes": source.bytes,
        "tokens": source.tokens,
        "bytes_per_token": source.bytes_per_token,
        "whitespace_share_of_tokens": source.whitespace_share,
        "digit_share_of_tokens": source.digit_share,
        "tokens_beyond_vocabulary": source.beyond_vocabulary,
        "sample": measured_facts(source.sample),
        "by_script": {name: measured_facts(measured) for name, measured in source.by_script.items()},
        "bytes_per_token_of_documents": spread(source.document_bytes_per_token),
        "tokens_per_word_of_documents": spread(source.document_tokens_per_word),
        "sampled_documents_encoded_otherwise": source.encoded_otherwise,
        "by_language_and_licence": None if source.groups is None else [group_facts(group) for group in source.groups],
    }


def group_facts(group: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(group) | {"bytes_per_token": group.bytes_per_token}


def measured_facts(measured: Any) -> dict[str, Any]:
    from dataclasses import asdict

    ratios = ("bytes_per_token", "characters_per_token", "tokens_per_word", "tokens_per_line", "indentation_share")
    return asdict(measured) | {name: getattr(measured, name) for name in ratios}


# --- text -------------------------------------------------------------------------------------------------------------------


def lines(found: Any) -> Iterator[str]:
    """Fertility, whitespace, vocabulary, probes, and what was found."""
    from headway.base.digests import short

    entry = found.manifest.tokenizer
    yield f"data       {found.directory}, digest {short(found.manifest.digest())}"
    yield f"tokenizer  {entry.vocabulary:,} entries, digest {short(entry.digest)}"
    if made_up := [source.name for source in found.manifest.sources if source.synthetic]:
        yield f"synthetic  {', '.join(made_up)}: headway data inventory has their generators"
    for title, part in (
        ("Fertility", fertility_lines(found)),
        ("Languages and licences", inventory_lines(found)),
        ("Writing systems", script_lines(found)),
        ("White space", whitespace_lines(found)),
        ("Digits", digit_lines(found)),
        ("Vocabulary", vocabulary_lines(found)),
        ("Round trips and control tokens", probe_lines(found)),
    ):
        yield ""
        yield title
        yield "-" * len(title)
        yield from part
    yield ""
    findings = found.findings()
    yield from (f"FOUND  {finding}" for finding in findings)
    if not findings:
        yield "nothing is wrong"


def fertility_lines(found: Any) -> Iterator[str]:
    from headway.base.terminal import one_line
    from headway.base.units import format_bytes
    from headway.cli.output import table

    titles = ["source", "documents", "text", "tokens", "bytes/token", "chars/token", "tokens/word", "tokens/line"]
    rows = [
        [
            one_line(source.name),
            f"{source.documents:,}",
            format_bytes(source.bytes),
            f"{source.tokens:,}",
            f"{source.bytes_per_token:.3f}",
            f"{source.sample.characters_per_token:.3f}",
            f"{source.sample.tokens_per_word:.2f}",
            f"{source.sample.tokens_per_line:.1f}",
        ]
        for source in found.sources
    ]
    yield from table(titles, rows)
    sampled = sum(source.sample.tokens for source in found.sources)
    yield ""
    yield f"characters, words and lines are of a sample: {sampled:,} tokens; document tokens are left out"


def script_lines(found: Any) -> Iterator[str]:
    """Writing systems are seen in the text."""
    from headway.base.terminal import one_line
    from headway.cli.output import table

    rows = [
        [
            one_line(source.name),
            script,
            f"{measured.documents:,}",
            f"{measured.bytes_per_token:.3f}",
            f"{measured.characters_per_token:.3f}",
            f"{measured.tokens_per_word:.2f}",
        ]
        for source in found.sources
        for script, measured in source.by_script.items()
    ]
    yield from table(["source", "most letters", "documents", "bytes/token", "chars/token", "tokens/word"], rows, left=(0, 1))
    yield ""
    yield "of the sampled documents"


def inventory_lines(found: Any) -> Iterator[str]:
    """All training text by what the documents' sources knew of them."""
    from headway.base.terminal import one_line
    from headway.base.units import format_bytes
    from headway.cli.output import table
    from headway.data.inspect.groups import by

    for fact in ("language", "licence"):
        rows = []
        for source, entry in zip(found.sources, found.manifest.sources, strict=True):
            unstated = "not stated" if fact == "language" else f"not stated; the source: {one_line(entry.licence)}"
            for group in by(source.groups or (), fact)[:MOST_GROUPS]:
                name = one_line(getattr(group, fact)) or unstated
                counts = [f"{group.documents:,}", format_bytes(group.bytes), f"{group.tokens:,}", f"{group.bytes_per_token:.3f}"]
                rows.append([one_line(source.name), name, *counts])
        if rows:
            yield from table(["source", fact, "documents", "text", "tokens", "bytes/token"], rows, left=(0, 1))
            yield ""
    without = [one_line(source.name) for source in found.sources if source.groups is None]
    if without:
        yield f"not kept by this build: {', '.join(without)}"
    yield f"of all training documents, as their sources knew them; the first {MOST_GROUPS} a source, --json has all"


def whitespace_lines(found: Any) -> Iterator[str]:
    from headway.base.terminal import one_line
    from headway.cli.output import table
    from headway.data.inspect.probes import RUNS

    rows = [
        [one_line(s.name), f"{s.whitespace_share:.1%}", f"{s.sample.indentation_share:.1%}", f"{s.sample.tokens_per_line:.1f}"]
        for s in found.sources
    ]
    yield from table(["source", "tokens that are white space", "bytes that indent lines", "tokens/line"], rows)
    yield ""
    runs = [[name, *map(str, costs)] for name, costs in found.whitespace.items()]
    yield from table(["tokens for a run of", *map(str, RUNS)], runs)
    yield ""
    longest = ", ".join(f"{name} {length}" for name, length in found.longest_runs.items())
    yield f"longest run that is one token: {longest}"


def digit_lines(found: Any) -> Iterator[str]:
    from headway.base.terminal import one_line
    from headway.cli.output import table
    from headway.data.inspect.probes import DIGITS

    yield from table(["source", "tokens that are digits"], [[one_line(s.name), f"{s.digit_share:.1%}"] for s in found.sources])
    yield ""
    rows = [[f"{name} of a few", *map(str, costs)] for name, costs in found.numbers.items()]
    yield from table(["tokens for a number of digits", *map(str, DIGITS)], rows)


def vocabulary_lines(found: Any) -> Iterator[str]:
    from headway.base.terminal import one_line
    from headway.data.inspect.audit import RARE

    coverage = found.coverage
    share = coverage.used / coverage.entries if coverage.entries else 0.0
    rare = f"{coverage.rare:,} of them less than {RARE} times"
    yield f"used         {coverage.used:,} of {coverage.entries:,} entries ({share:.1%}), {rare}"
    yield f"never used   {coverage.never:,}" + (f", such as {shown(found.pieces)}" if found.pieces else "")
    if found.padding:
        yield f"padding      {found.padding:,} entries behind the tokenizer's own, which no text gives"
    yield f"rarest half  of the entries makes up {coverage.rarest_half_share:.2%} of all tokens"
    parts = ", ".join(f"{percent} % by {entries:,}" for percent, entries in coverage.entries_for.items())
    yield f"most used    entries that make up the tokens: {one_line(parts, 200)}"


def shown(pieces: dict[int, str], most: int = 8) -> str:
    """Texts of entries, quoted."""
    from headway.base.terminal import one_line

    return ", ".join(f'"{one_line(text, 24)}"' for text in list(pieces.values())[:most])


def probe_lines(found: Any) -> Iterator[str]:
    from headway.base.terminal import one_line

    good = sum(trip.returned for trip in found.round_trips)
    yield f"odd Unicode     {good} of {len(found.round_trips)} texts come back as they were"
    yield f"lone surrogates {'refused' if found.surrogates_refused else 'ENCODED'}"
    documents = sum(source.sample.documents for source in found.sources)
    otherwise = sum(source.encoded_otherwise for source in found.sources)
    yield f"documents       {documents - otherwise:,} of {documents:,} sampled ones are encoded to the stored ids again"
    for control in shown_controls(found):
        produced = f"{len(control.produced_by)} of {control.probes}" if control.produced_by else f"none of {control.probes}"
        name = f"{one_line(control.token, 40)}{role(found, control)}"
        in_data = f"{found.control_counts[control.token]:,} in the data"
        yield f"control token   {name}: {produced} texts that spell it produce it; {in_data}"
    if rest := len(found.controls) - len(shown_controls(found)):
        yield f"control tokens  {rest:,} more: no text that spells one produces it, none is in the data"


def shown_controls(found: Any, most: int = 12) -> list[Any]:
    """Those with a role, and all with which something is wrong."""
    wrong = [c for c in found.controls if c.produced_by or (found.control_counts[c.token] and not role(found, c))]
    named = [control for control in found.controls if role(found, control) and control not in wrong]
    return [*named, *wrong, *(c for c in found.controls if c not in named and c not in wrong)][
        : max(most, len(named) + len(wrong))
    ]


def role(found: Any, control: Any) -> str:
    """What the manifest says of it."""
    entry = found.manifest.tokenizer
    if control.id in entry.fim:
        return f" (fill-in-the-middle, before the {('prefix', 'suffix', 'middle')[entry.fim.index(control.id)]})"
    return " (document)" if control.id == entry.document_token_id else ""
