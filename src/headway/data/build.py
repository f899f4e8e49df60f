"""Builds a data directory from a recipe: a pure function of the documents and the settings.

    sources -> preparation -> spool -> shuffle -> held-out candidates | training documents -> tokenizer -> shards
            -> manifest -> rename

    shuffle     every source's documents once, by a keyed permutation of (data seed, source name)
    held out    the first documents of that order until ``held_out`` tokens. What a token is, only the tokenizer knows, and it
                must not have seen them: so the first 8 bytes per asked token are kept from its training, and those that
                were not needed go back to the training documents (no tokenizer worth having averages 8 bytes a token)
    written     beside the final directory, which appears whole, by one rename, or not at all

A directory that holds the same build (inputs digest: settings and documents) is verified and reused; one that holds
anything else is refused, never overwritten.
"""

from __future__ import annotations

import dataclasses
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tokenizers

from headway import __version__
from headway.base.digests import digest_json
from headway.base.errors import ConfigError, from_os_error
from headway.base.files import make_directory
from headway.data.feistel import derive_key, permute
from headway.data.manifest import MANIFEST_FILE, DataManifest, SourceEntry, TokenizerEntry, TokenSet
from headway.data.prepare.pipeline import Preparation
from headway.data.reader import TokenReader
from headway.data.shards import SHARD_BYTES, TokenSetWriter
from headway.data.sources import refuse_undisclosed
from headway.data.spool import Seen, Spool, tokenised
from headway.data.tokenizer import TOKENIZER_FILE, Tokenizer, train_tokenizer
from headway.data.workspace import publish, workspace
from headway.recipe.load import LoadedRecipe

if TYPE_CHECKING:
    from headway.recipe.schema import Recipe

Progress = Callable[[str, dict], None]
_CANDIDATE_BYTES_PER_TOKEN = 8
_TELL_EVERY_DOCUMENTS = 512
_FORMAT = 1
"""Raised when the same inputs would give other bytes."""


def build_data(
    recipe: Recipe | LoadedRecipe, directory: Path, progress: Progress | None = None, *, shard_bytes: int = SHARD_BYTES
) -> DataManifest:
    """Build, or verify and reuse, the data of ``recipe`` in ``directory``.

    ``progress`` is told (what, facts): documents, tokenizer, tokens, written, reused. Errors: ConfigError for an empty
    source, a vocabulary that does not fit, a directory in use for something else; EnvironmentFault for what the machine refuses.
    """
    recipe = recipe.recipe if isinstance(recipe, LoadedRecipe) else recipe
    directory = Path(directory).absolute()
    tell = progress or (lambda what, facts: None)
    refuse_undisclosed(recipe.data.sources)
    dtype = choose_dtype(recipe.data.dtype, recipe.tokenizer.vocabulary)
    make_directory(directory.parent, "directory for the data")
    try:
        with workspace(directory) as work:
            return _Build(recipe, directory, work, dtype, shard_bytes, tell).run()
    except OSError as error:
        raise from_os_error(error, error.filename or directory, "cannot build the data") from error


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


@dataclass(frozen=True)
class _Split:
    """Document numbers in shuffled order: ``candidates`` come first and are kept from tokenizer training."""

    candidates: np.ndarray
    training: np.ndarray


class _Build:
    """One build; every method is one stage of the drawing above."""

    def __init__(self, recipe: Recipe, directory: Path, work: Path, dtype: str, shard_bytes: int, tell: Progress):
        self.recipe, self.directory, self.work, self.tell = recipe, directory, work, tell
        self.dtype, self.shard_bytes = dtype, shard_bytes
        self.seed: int = recipe.seed if recipe.data.seed is None else recipe.data.seed
        self.output = work / "data"
        self.spools: list[Spool] = []
        self.preparation = Preparation(recipe.data, work, tell)

    def run(self) -> DataManifest:
        try:
            self._gather()
            inputs = self._inputs_digest()
            if self.directory.exists():
                existing = self._reuse(inputs)
                if existing is not None:
                    return existing
            self.output.mkdir()
            return self._produce(inputs)
        finally:
            self.preparation.close()
            for spool in self.spools:
                spool.close()

    def _gather(self) -> None:
        seen = Seen()
        for number, source in enumerate(self.recipe.data.sources):
            spool = Spool(self.work / f"spool-{number}")
            self.spools.append(spool)
            spool.fill(self.preparation.documents(source), number, seen)
            dropped = dict(sorted(spool.dropped.items()))
            if not len(spool):
                raise ConfigError(
                    f"source {source.name} is empty",
                    f"a source has at least one document; left out: {dropped or 'none'}",
                    "check the source's path, or remove it from data.sources and the mixtures",
                )
            facts = {"source": source.name, "documents": len(spool), "bytes": spool.total_bytes, "dropped": dropped}
            self.tell("documents", facts)

    def _inputs_digest(self) -> str:
        recipe = self.recipe
        sources = [[s.name, spool.digest, len(spool)] for s, spool in zip(recipe.data.sources, self.spools)]
        tokenizer = [recipe.tokenizer.kind, recipe.tokenizer.vocabulary, recipe.tokenizer.document_token]
        settings = [_FORMAT, self.seed, recipe.data.held_out, recipe.data.chunk, self.dtype, self.shard_bytes]
        return digest_json({"sources": sources, "tokenizer": tokenizer, "settings": settings} | self.preparation.identity())

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
        manifest = self._relabelled(manifest)
        self.tell("reused", {"directory": str(self.directory), "digest": manifest.digest()})
        return manifest

    def _relabelled(self, manifest: DataManifest) -> DataManifest:
        """Names of licence and provenance as the recipe has them now: they are no content and change no digest."""
        sources = tuple(
            dataclasses.replace(entry, licence=source.licence, provenance=source.provenance)
            for entry, source in zip(manifest.sources, self.recipe.data.sources, strict=True)
        )
        relabelled = dataclasses.replace(manifest, sources=sources)
        if relabelled != manifest:
            relabelled.save(self.directory)
        return relabelled

    def _produce(self, inputs: str) -> DataManifest:
        splits = [self._split(number) for number in range(len(self.spools))]
        self._refuse_few_documents(splits)
        tokenizer = self._train(splits)
        sources = tuple(self._write_source(number, split, tokenizer) for number, split in enumerate(splits))
        manifest = DataManifest(
            name=self.recipe.name,
            tokenizer=TokenizerEntry(
                file=TOKENIZER_FILE,
                digest=tokenizer.digest,
                vocabulary=tokenizer.vocabulary,
                document_token=tokenizer.document_token,
                document_token_id=tokenizer.document_token_id,
            ),
            dtype=self.dtype,
            sources=sources,
            inputs_digest=inputs,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            versions={
                "headway": __version__,
                "python": platform.python_version(),
                "numpy": np.__version__,
                "tokenizers": tokenizers.__version__,
            },
        )
        self.preparation.save_report(self.output)
        manifest.save(self.output)
        publish(self.output, self.directory)
        self.tell("written", {"directory": str(self.directory), "digest": manifest.digest()})
        return manifest

    def _split(self, number: int) -> _Split:
        spool, name = self.spools[number], self.recipe.data.sources[number].name
        order = permute(np.arange(len(spool)), len(spool), derive_key("documents", self.seed, name))
        position = candidate_bytes = 0
        wanted_bytes = self.recipe.data.held_out * _CANDIDATE_BYTES_PER_TOKEN
        while position < len(order) and candidate_bytes < min(wanted_bytes, spool.total_bytes // 2):
            candidate_bytes += spool.size(int(order[position]))
            position += 1
        return _Split(order[:position], order[position:])

    def _refuse_few_documents(self, splits: list[_Split]) -> None:
        """Before the tokenizer: what was set apart from its training must not be all there is."""
        if not self.recipe.data.held_out:
            return
        names = [source.name for source in self.recipe.data.sources]
        few = [name for name, spool in zip(names, self.spools) if len(spool) < 2]
        if few or not sum(len(split.training) for split in splits):
            counts = ", ".join(f"{name} {len(spool):,}" for name, spool in zip(names, self.spools) if not few or name in few)
            raise ConfigError(
                f"too few documents for a held-out set, documents found: {counts}",
                "whole documents are held out and the tokenizer is trained on the others: two or more a source, and some left",
                "split the text into more documents (one a file, one a line), or lower data.held_out",
            )

    def _train(self, splits: list[_Split]) -> Tokenizer:
        wanted = self.recipe.tokenizer
        texts = (text for spool, split in zip(self.spools, splits) for text in spool.texts(split.training))
        tokenizer = train_tokenizer(texts, vocabulary=wanted.vocabulary, document_token=wanted.document_token)
        tokenizer.save(self.output / TOKENIZER_FILE)
        if tokenizer.vocabulary != wanted.vocabulary:
            raise ConfigError(
                f"the documents give a vocabulary of {tokenizer.vocabulary} entries, {wanted.vocabulary} were asked for",
                "every merge of the vocabulary joins a pair that occurs in the training documents",
                f"set tokenizer.vocabulary = {tokenizer.vocabulary} or lower, or add text",
            )
        self.tell("tokenizer", {"vocabulary": tokenizer.vocabulary, "digest": tokenizer.digest})
        return tokenizer

    def _write_source(self, number: int, split: _Split, tokenizer: Tokenizer) -> SourceEntry:
        source, spool = self.recipe.data.sources[number], self.spools[number]
        relative = f"{number:02d}-" + (re.sub(r"[^A-Za-z0-9_-]+", "-", source.name).strip("-") or "source")
        taken, held_out = self._write_held_out(number, relative, split, tokenizer)
        training = np.concatenate([split.candidates[taken:], split.training])
        writer = TokenSetWriter(self.output, relative, dtype=self.dtype, shard_bytes=self.shard_bytes)
        for done, (ids, size) in enumerate(tokenised(spool, training, tokenizer), 1):
            writer.add(ids, size)
            if done % _TELL_EVERY_DOCUMENTS == 0 or done == len(training):
                self.tell("tokens", {"source": source.name, "done": done, "documents": len(training), "tokens": writer.tokens})
        tokens = writer.finish()
        _refuse_small(source.name, self.recipe.data.held_out, tokens, held_out)
        return SourceEntry(
            name=source.name,
            kind=str(source.kind),
            licence=source.licence,
            provenance=source.provenance,
            tokens=tokens.tokens,
            documents=tokens.documents,
            bytes=tokens.bytes,
            target_share=1.0,  # every token but a source's first is a target: decision 0001
            chunk_tokens=self.recipe.data.chunk or default_chunk(tokens.tokens),
            shards=tokens.shards,
            ends=tokens.ends,
            held_out=held_out,
            dropped=dict(sorted(spool.dropped.items())),
            digest="",
            preparation=self.preparation.inventory(source.name),
        ).sealed()

    def _write_held_out(self, number: int, relative: str, split: _Split, tokenizer: Tokenizer) -> tuple[int, TokenSet | None]:
        """The held-out set, and how many of the candidates it took."""
        wanted, taken = self.recipe.data.held_out, 0
        if not wanted:
            return 0, None
        writer = TokenSetWriter(self.output, f"{relative}/held-out", dtype=self.dtype, shard_bytes=self.shard_bytes)
        for ids, size in tokenised(self.spools[number], split.candidates, tokenizer):
            if writer.tokens >= wanted:
                break
            writer.add(ids, size)
            taken += 1
        return taken, writer.finish()


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
