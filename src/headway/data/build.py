"""Builds a data directory from a recipe: a pure function of the documents and the settings.

    sources -> preparation -> spool -> shuffle -> held-out candidates | training documents -> tokenizer -> shards
            -> manifest -> rename

    registered  where a source came from, when, and the digest of its documents as read
    shuffle     every source's documents once, by a keyed permutation of (data seed, source name)
    held out    the first documents of that order until ``held_out`` tokens. What a token is, only the tokenizer knows, and it
                must not have seen them: so the first 8 bytes per asked token are kept from its training, and those that
                were not needed go back to the training documents (no tokenizer worth having averages 8 bytes a token).
                With ``held_out_by`` another than order, those below a threshold (``split.py``)
    parts       ranges of the shuffled order, tokenised by several processes, and put together in order: the same bytes whatever
                the number of processes
    written     beside the final directory, which appears whole, by one rename, or not at all. A build that was killed leaves its
                finished sources, tokenizer and parts, sealed by digests; the next one verifies them and goes on

A directory that holds the same build (inputs digest: settings and documents) is verified and reused; one that holds
anything else is refused, never overwritten.
"""

from __future__ import annotations

import dataclasses
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tokenizers

from headway import __version__
from headway.base.digests import digest_json, sealed
from headway.base.errors import ConfigError, HeadwayError, from_os_error
from headway.base.failpoints import hit
from headway.base.files import make_directory, read_json, write_json
from headway.data.apart import Apart
from headway.data.assemble import Assembly, Progress, Settings, SourceTokens, SourceWork
from headway.data.facts import verify as verify_facts
from headway.data.manifest import (
    MANIFEST_FILE,
    DataManifest,
    Registration,
    SourceEntry,
    Synthetic,
    TokenizerEntry,
    TokenSet,
)
from headway.data.packing import write_packing
from headway.data.prepare.pipeline import Preparation
from headway.data.reader import TokenReader
from headway.data.seen import Seen
from headway.data.shards import SHARD_BYTES
from headway.data.sources import Found, find_sources, refuse_undisclosed
from headway.data.split import KEYS
from headway.data.spool import AsRead, SealedSpool, Spool, remove
from headway.data.tokenizer import TOKENIZER_FILE, Tokenizer
from headway.data.vocabulary.obtain import Made, brought_by, obtain
from headway.data.workspace import publish, workspace
from headway.recipe.digests import document_settings, recipe_content
from headway.recipe.load import LoadedRecipe
from headway.recipe.mixture_rules import sources_of
from headway.recipe.resolve import chunks_too_short

if TYPE_CHECKING:
    from headway.recipe.schema import Recipe, Source
    from headway.recipe.schema import Tokenizer as TokenizerSection

_LABELS = {"licence", "provenance", "cap_epochs", "synthetic", "generator", "verifier"}
"""Keys of a source that shape no document."""
_FORMAT = 1
"""Raised when the same inputs would give other bytes."""


def build_data(
    recipe: Recipe | LoadedRecipe,
    directory: Path,
    progress: Progress | None = None,
    *,
    workers: int | None = None,
    shard_bytes: int = SHARD_BYTES,
    part_bytes: int | None = None,
) -> DataManifest:
    """Build, or verify and reuse, the data of ``recipe`` in ``directory``.

    ``workers``: processes that prepare and tokenise, 1: this one, None: one per core for much text. ``part_bytes``: text of what
    a killed build may have to do again, per process; None: by the size of the source. Neither shows in the result.
    ``progress`` is told (what, facts): reading, documents, training, tokenizer, tokens, written, reused. Errors: ConfigError for
    an empty source, a vocabulary that does not fit, a directory in use for something else; EnvironmentFault for what the machine
    refuses.
    """
    recipe = recipe.recipe if isinstance(recipe, LoadedRecipe) else recipe
    directory = Path(directory).absolute()
    tell = progress or (lambda what, facts: None)
    refuse_undisclosed(recipe.data.sources)
    if recipe.data.chunk is not None:
        _refuse_short_chunks(recipe, {source.name: recipe.data.chunk for source in recipe.data.sources})
    dtype = choose_dtype(recipe.data.dtype, recipe.tokenizer.vocabulary)
    make_directory(directory.parent, "directory for the data")
    try:
        with workspace(directory) as work:
            settings = Settings(dtype=dtype, shard_bytes=shard_bytes, part_bytes=part_bytes, workers=workers)
            return _Build(recipe, directory, work, settings, tell).run()
    except OSError as error:
        raise from_os_error(error, error.filename or directory, "cannot build the data") from error


def _refuse_short_chunks(recipe: Recipe, chunks: dict[str, int]) -> None:
    """``chunks``: tokens of a chunk by source. Of those that a stage packs, no window would fit into one that is shorter."""
    problems = [
        chunks_too_short(stage.name, stage.sequence, name, chunks[name])
        for stage in recipe.stages
        for name in (sources_of(stage, list(chunks)) if stage.packing == "best-fit" else ())
        if chunks.get(name, stage.sequence) < stage.sequence
    ]
    if problems:
        raise ConfigError(problems)


def choose_dtype(asked: str, vocabulary: int) -> str:
    """The stored type: the smallest that holds the vocabulary, or the one that was asked for if it does."""
    if asked == "auto":
        return "uint16" if vocabulary <= 2**16 else "uint32"
    if asked == "uint16" and vocabulary > 2**16:
        raise ConfigError(
            f"a vocabulary of {vocabulary} entries does not fit uint16",
            "uint16 holds ids up to 65,535",
            'set data.dtype = "uint32" or "auto", or a smaller tokenizer.vocabulary',
        )
    return asked


class _Build:
    """One build; every method is one stage of the drawing above."""

    def __init__(self, recipe: Recipe, directory: Path, work: Path, settings: Settings, tell: Progress):
        self.recipe, self.directory, self.work, self.settings, self.tell = recipe, directory, work, settings, tell
        self.seed: int = recipe.seed if recipe.data.seed is None else recipe.data.seed
        self.output, self.made = work / "data", work / "made"
        self.brought = brought_by(recipe.tokenizer)  # what is wrong with it is said before sources are read
        self.found: dict[str, Found] = {}  # by source
        self.spools: list[SealedSpool] = []
        self.apart = Apart(recipe.data, seed=self.seed, made=self.made, spools=self.spools)
        self.reads: dict[str, AsRead] = {}  # by source, as far as their documents have been read
        self.preparation = Preparation(recipe.data, work, self._read_source, tell, settings.workers)

    def run(self) -> DataManifest:
        try:
            self._gather()
            inputs = self._inputs_digest()
            if self.directory.exists():
                existing = self._reuse(inputs)
                if existing is not None:
                    return existing
            self._clear(inputs)
            return self._produce(inputs)
        finally:
            self.preparation.close()
            for spool in self.spools:
                spool.close()

    def _gather(self) -> None:
        self.found = find_sources(self.recipe.data.sources)
        seen = Seen(self.work / "seen")
        try:
            for number, source in enumerate(self.recipe.data.sources):
                key = self._reading_key(source)
                directory = self.work / f"spool-{number}"
                kept = None if self.preparation.compares else SealedSpool.find(directory, key)
                if kept is None:
                    self.spools.append(self._read(Spool(directory), number, seen, key))
                else:
                    self.spools.append(kept)
                    for digest in kept.digests():
                        seen.holder(digest, number)
                receipt = self.spools[-1].receipt
                if not receipt.documents:
                    raise ConfigError(
                        f"source {source.name} is empty",
                        f"a source has at least one document; left out: {receipt.dropped or 'none'}",
                        "check the source's path, or remove it from data.sources and the mixtures",
                    )
                facts = {
                    "source": source.name,
                    "documents": receipt.documents,
                    "bytes": receipt.bytes,
                    "dropped": receipt.dropped,
                    "by_steps": self.preparation.left_out(source.name),
                }
                self.tell("documents", facts | {"kept": kept is not None})
        finally:
            seen.close()

    def _read(self, spool: Spool, number: int, seen: Seen, key: str) -> SealedSpool:
        source, read_at = self.recipe.data.sources[number], _now()
        found = self.preparation.documents(source)
        try:
            spool.fill(
                found,
                number,
                seen,
                lambda n, size: self.tell("reading", {"source": source.name, "documents": n, "bytes": size}),
                KEYS[self.apart.by(source)],
            )
            hit("build.source_read", number)
            where = self.found[source.name].opened.where
            sealed = spool.seal(key=key, where=where, read=self.reads[source.name], read_at=read_at)
        finally:
            spool.close()
        hit("build.source_sealed", number)
        return sealed

    def _read_source(self, source: Any) -> AsRead:
        """Its documents as they are found; what passed is remembered for its registration."""
        self.reads[source.name] = AsRead(self.found[source.name].opened.documents())
        return self.reads[source.name]

    def _reading_key(self, source: Any) -> str:
        """Of all that a spool follows from: files, settings, program, and the sources before it, whose texts are duplicates here.

        Settings of the data that shape no document are named; whatever else is set there counts.
        """
        own = source.model_dump(mode="json", exclude=_LABELS | {"inventory", "held_out_at"})
        own["held_out_by"] = self.apart.by(source)
        common = self.recipe.data.model_dump(
            mode="json", exclude={"seed", "held_out", "held_out_by", "chunk", "dtype", "beyond_cap", "sources"}
        )
        before = [spool.receipt.content for spool in self.spools]
        program = [_FORMAT, __version__, platform.python_version()]
        files = self.found[source.name].stamp
        return digest_json({"source": own, "data": common, "before": before, "program": program, "files": files})

    def _inputs_digest(self) -> str:
        recipe = self.recipe
        sources = [[s.name, spool.receipt.content, len(spool)] for s, spool in zip(recipe.data.sources, self.spools)]
        keys = recipe_content(recipe)["tokenizer"]
        if self.brought is not None:
            keys |= {"brought": self.brought.digest}
        tokenizer = [keys.pop(name) for name in ("kind", "vocabulary", "document_token")] + ([keys] if keys else [])
        settings = [_FORMAT, self.seed, recipe.data.held_out, recipe.data.chunk, self.settings.dtype, self.settings.shard_bytes]
        rules = [self.apart.identity(number) for number in range(len(self.spools))]
        split = {"held_out_by": rules} if any(rules) else {}
        return digest_json(
            {"sources": sources, "tokenizer": tokenizer, "settings": settings} | split | self.preparation.identity()
        )

    def _reuse(self, inputs: str) -> DataManifest | None:
        """The build that is already there, verified; None when the directory is empty."""
        if not (self.directory / MANIFEST_FILE).exists():
            if self.directory.is_dir() and not any(self.directory.iterdir()):
                return None
            raise ConfigError(
                f"{self.directory} exists and holds no data build",
                "a build never overwrites anything",
                "choose another directory, or remove that one",
            )
        manifest = DataManifest.load(self.directory)
        if manifest.inputs_digest != inputs:
            raise ConfigError(
                f"{self.directory} holds a build of other documents or settings",
                "runs rely on the bytes of the data they were frozen with, so a build never overwrites another",
                "choose another directory, or remove that one if no run needs it",
            )
        TokenReader(self.directory, manifest).verify_all()
        for entry in manifest.sources:
            verify_facts(self.directory, entry)
        manifest = self._packed(self._relabelled(manifest), self.directory)
        self.tell(
            "reused",
            {"directory": str(self.directory), "digest": manifest.digest(), "other_facts": self._other_facts(manifest)},
        )
        return manifest

    def _other_facts(self, manifest: DataManifest) -> list[str]:
        """Sources whose documents are the same, and what is known of them is not what stands there."""
        tables = [entry.document_facts for entry in manifest.sources]
        pairs = zip(manifest.sources, tables, self.spools, strict=True)
        return [entry.name for entry, table, spool in pairs if table is None or table.found != spool.facts_digest]

    def _relabelled(self, manifest: DataManifest) -> DataManifest:
        """Licence, provenance and registration as they are now: they are no content and change no digest."""
        sources = tuple(
            dataclasses.replace(
                entry,
                licence=source.licence,
                provenance=source.provenance,
                registered=self._registered(number, entry),
                synthetic=_synthetic(source),
            )
            for number, (entry, source) in enumerate(zip(manifest.sources, self.recipe.data.sources, strict=True))
        )
        relabelled = dataclasses.replace(manifest, sources=sources, settings=document_settings(self.recipe))
        if relabelled != manifest:
            relabelled.save(self.directory)
        return relabelled

    def _packed(self, manifest: DataManifest, directory: Path) -> DataManifest:
        """With the best-fit plans that the recipe's stages read; those that are there stay."""
        _refuse_short_chunks(self.recipe, {source.name: source.chunk_tokens for source in manifest.sources})
        lengths = sorted({stage.sequence for stage in self.recipe.stages if stage.packing == "best-fit"})
        sources = tuple(self._packed_source(source, lengths, directory) for source in manifest.sources)
        if sources == manifest.sources:
            return manifest
        manifest = dataclasses.replace(manifest, sources=sources)
        if (directory / MANIFEST_FILE).exists():
            manifest.save(directory)
        return manifest

    def _packed_source(self, source: SourceEntry, lengths: list[int], directory: Path) -> SourceEntry:
        missing = [T for T in lengths if source.chunk_tokens >= T and source.packing(T) is None]
        plans = list(source.packings)
        if missing:
            ends = np.memmap(directory / source.ends.file, "<i8", "r")
        for T in missing:
            plans.append(write_packing(directory, source, T, ends))
            self.tell("packed", {"source": source.name, "sequence": T, "padding": 1 - plans[-1].target_share})
        return dataclasses.replace(source, packings=tuple(sorted(plans, key=lambda plan: plan.sequence_length)))

    def _registered(self, number: int, entry: SourceEntry | None = None) -> Registration:
        """``entry``: as it was registered before, which stays where the same documents were found in the same place."""
        receipt = self.spools[number].receipt
        now = Registration(receipt.where, receipt.snapshot, receipt.found, receipt.read_at, receipt.read_bytes)
        before = entry.registered if entry else None
        return before if before and dataclasses.replace(before, read_at=now.read_at) == now else now

    def _clear(self, inputs: str) -> None:
        """Keep tokenizer and parts of the same inputs, nothing of others."""
        key = sealed({"inputs": inputs, "part_bytes": self.settings.part_bytes, "tokenizers": tokenizers.__version__})
        try:
            same = read_json(self.made / "key.json") == key
        except HeadwayError:
            same = False
        if not same:
            remove(self.made)
            make_directory(self.made, "directory for parts")
            write_json(self.made / "key.json", key)
        remove(self.output)
        self.output.mkdir()

    def _produce(self, inputs: str) -> DataManifest:
        sources = [self.apart.split(number) for number in range(len(self.spools))]
        self._refuse_few_documents(sources)
        tokenizer, made = obtain(self.recipe.tokenizer, self.brought, list(sources), self.made, self.tell)
        tokenizer.save(self.output / TOKENIZER_FILE)
        sources = [self.apart.decided(number, work, tokenizer) for number, work in enumerate(sources)]
        assembly = Assembly(
            sources=sources,
            seed=self.seed,
            held_out=self.recipe.data.held_out,
            tokenizer=self.made / TOKENIZER_FILE,
            document_token=tokenizer.document_token,
            lossy=self.recipe.tokenizer.lossy,
            settings=self.settings,
            made=self.made,
        )
        written = assembly.write(self.output, self.tell)
        manifest = DataManifest(
            name=self.recipe.name,
            tokenizer=describe(tokenizer, self.recipe.tokenizer, made),
            dtype=self.settings.dtype,
            sources=tuple(self._entry(number, tokens) for number, tokens in enumerate(written)),
            inputs_digest=inputs,
            created=_now(),
            versions={
                "headway": __version__,
                "python": platform.python_version(),
                "numpy": np.__version__,
                "tokenizers": tokenizers.__version__,
            },
            settings=document_settings(self.recipe),
        )
        self.preparation.save_report(self.output)
        manifest = self._packed(manifest, self.output)
        manifest.save(self.output)
        hit("build.assembled", 0)
        publish(self.output, self.directory)
        hit("build.published", 0)
        self.tell("written", {"directory": str(self.directory), "digest": manifest.digest()})
        return manifest

    def _refuse_few_documents(self, sources: list[SourceWork]) -> None:
        """Before the tokenizer: what was set apart from its training must not be all there is."""
        if not self.recipe.data.held_out:
            return
        few = [work.name for work in sources if len(work.spool) < 2]
        if few or all(work.candidates == len(work.spool) for work in sources):
            counts = ", ".join(f"{work.name} {len(work.spool):,}" for work in sources if not few or work.name in few)
            raise ConfigError(
                f"too few documents for a held-out set, documents found: {counts}",
                "whole documents are held out and the tokenizer is trained on the others: two or more a source, and some left",
                "split the text into more documents (one a file, one a line), or lower data.held_out",
            )

    def _entry(self, number: int, tokens: SourceTokens) -> SourceEntry:
        source, training = self.recipe.data.sources[number], tokens.training
        wanted = self.recipe.data.held_out if source.held_out_at is None else 1
        _refuse_small(source.name, wanted, training, tokens.held_out)
        return SourceEntry(
            name=source.name,
            kind=str(source.kind),
            licence=source.licence,
            provenance=source.provenance,
            tokens=training.tokens,
            documents=training.documents,
            bytes=training.bytes,
            target_share=1.0,  # every token but a source's first is a target: decision 0001
            chunk_tokens=self.recipe.data.chunk or default_chunk(training.tokens),
            shards=training.shards,
            block_digests=training.block_digests,
            ends=training.ends,
            held_out=tokens.held_out,
            dropped=self.spools[number].receipt.dropped,
            digest="",
            preparation=self.preparation.inventory(source.name),
            registered=self._registered(number),
            quality=self.preparation.quality(source.name),
            synthetic=_synthetic(source),
            held_out_rule=self.apart.rules.get(number),
            document_facts=tokens.facts,
        ).sealed()


def describe(tokenizer: Tokenizer, wanted: TokenizerSection, made: Made) -> TokenizerEntry:
    """``tokenizer`` as the manifest has it. Of one that was brought the model may have more entries than it."""
    return TokenizerEntry(
        file=TOKENIZER_FILE,
        digest=tokenizer.digest,
        vocabulary=wanted.vocabulary,
        document_token=tokenizer.document_token,
        document_token_id=tokenizer.document_token_id,
        reserved={token: tokenizer.controls[token] for token in wanted.reserved_tokens},
        fim=tuple(tokenizer.controls[token] for token in wanted.fim_tokens),
        lossy=wanted.lossy,
        trained_on=made.trained_on,
        left_out=made.left_out,
        brought=made.brought,
        digits="" if made.brought else wanted.digits,
        whitespace="" if made.brought else wanted.whitespace,
        fim_tokens=wanted.fim_tokens,
    )


def _synthetic(source: Source) -> Synthetic | None:
    if source.generator is None:
        return None
    return Synthetic(source.generator.model_dump(), source.verifier.model_dump() if source.verifier else {})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def default_chunk(tokens: int) -> int:
    """2^floor(log2(n / 64)), from 1 to 2^30 (CONTRACTS section 1)."""
    return min(2**30, 1 << max(0, (tokens // 64).bit_length() - 1))


def _refuse_small(name: str, wanted: int, training: TokenSet, held_out: TokenSet | None) -> None:
    found = held_out.tokens if held_out else 0
    if training.tokens < 2 or found < wanted or found > training.tokens:
        raise ConfigError(
            f"source {name} is too small: {training.tokens} tokens to train on, {found} of {wanted} held out",
            "held-out documents are at most half of a source",
            "lower data.held_out, or add text to that source",
        )
