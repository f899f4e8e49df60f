"""Held-out sets of built data as sets of the evaluation registry: named, versioned, known by their content.

A set is DATA.SOURCE, an example is a held-out document. Other builds that are decontaminated against the registry leave out what
repeats one (``prepare/contamination.py``); a build against its own set would leave its held-out documents out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from headway.base.errors import ConfigError
from headway.data.facts import Table
from headway.data.manifest import DataManifest, SourceEntry
from headway.data.reader import TokenReader
from headway.data.registry import EvaluationSet, Example, add_set
from headway.data.tokenizer import Tokenizer


def register(directory: Path, registry: Path, *, version: str, name: str | None = None) -> list[EvaluationSet]:
    """Add the held-out set of every source of the data in ``directory``; what was registered as it is stays.

    ``name``: of the data (None: the manifest's). ConfigError: nothing is held out; another set has that name and version.
    """
    directory, manifest = Path(directory), DataManifest.load(directory)
    entries = [entry for entry in manifest.sources if entry.held_out is not None]
    if not entries:
        raise ConfigError(
            f"{directory} holds nothing out",
            "held-out sets are what is registered",
            "build data with data.held_out, then register it",
        )
    reader = TokenReader(directory, manifest)
    tokenizer = Tokenizer.load(directory / manifest.tokenizer.file, manifest.tokenizer.document_token)
    return [
        add_set(
            registry,
            f"{name or manifest.name}.{entry.name}",
            version,
            _examples(reader, tokenizer, entry),
            licence=entry.licence,
            provenance=f"held out of data {manifest.digest()}" + (f"; {entry.provenance}" if entry.provenance else ""),
        )
        for entry in entries
    ]


def _examples(reader: TokenReader, tokenizer: Tokenizer, entry: SourceEntry) -> Iterator[Example]:
    table = Table.of(reader.place, entry, held_out=True)
    for number, tokens in enumerate(reader.held_out_documents(entry.name)):
        origin = f"{number}: {table[number].origin}" if table is not None else str(number)
        yield Example(origin, tokenizer.decode(tokens[1:].tolist()))
