"""From documents to shards: every source is tokenised in parts, by several processes, and put together in its shuffled order.

    shuffled order   [ held out, while tokens are asked for | training ................................. ]
    parts            [ 000000    | 000001    | 000002    | ...  made in any order, read back in this one

The bytes that come out follow from documents, seed and tokenizer alone. Parts that a killed build had finished are verified and
not made again; putting them together is done anew, at the speed of the disk.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headway.base.failpoints import hit
from headway.base.files import make_directory
from headway.data.facts import Found, OriginsWriter, copy_facts
from headway.data.manifest import DocumentFacts, TokenSet
from headway.data.parts import Part, PartPlace, PartReceipt, PartTask, plan
from headway.data.pool import in_order, usable_cores
from headway.data.shards import TokenSetWriter, shard_bytes_for
from headway.data.split import Order
from headway.data.spool import SealedSpool
from headway.data.tokenizer import Tokenizer
from headway.data.vocabulary.fast import NotProven, Proof
from headway.data.worker import Setup

Progress = Callable[[str, dict], None]
MUCH_TEXT_BYTES = 64 * 2**20
PROVEN_FROM_BYTES = 8 * 2**20


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to build: of these only ``dtype`` and ``shard_bytes`` show in what is built."""

    dtype: str
    shard_bytes: int
    part_bytes: int | None
    workers: int | None  # None: by the amount of text


@dataclass(frozen=True)
class SourceWork:
    """A source's documents and their order. The first ``candidates`` of it may be held out, until there are enough tokens;
    or the first ``held_out`` are, no more and no fewer. ``arranged``: the file that the order stands in, if it is no shuffle."""

    name: str
    spool: SealedSpool
    order: Order
    candidates: int
    arranged: Path | None = None
    held_out: int | None = None


@dataclass(frozen=True)
class SourceTokens:
    """What became of a source. ``held_out`` None: none was asked for."""

    training: TokenSet
    held_out: TokenSet | None
    facts: DocumentFacts


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """All sources of a build. ``held_out``: tokens asked for per source; ``made``: where parts are kept."""

    sources: list[SourceWork]
    seed: int
    held_out: int
    tokenizer: Path
    document_token: str
    lossy: bool
    settings: Settings
    made: Path

    def write(self, output: Path, tell: Progress) -> Iterator[SourceTokens]:
        """Write the sources' shards below ``output``, one source after the other."""
        place = PartPlace(root=self.made / "parts", dtype=self.settings.dtype)
        for number in range(len(self.sources)):
            make_directory(place.directory(number), "directory for parts")
        plans = [list(plan(n, work.spool, work.order, self.settings.part_bytes)) for n, work in enumerate(self.sources)]
        progress = _Progress(tell, self.sources)
        finished = {task for tasks in plans for task in tasks if progress.found(task, place.find(task))}
        missing = [task for tasks in plans for task in tasks if task not in finished]
        made = in_order(missing, self._setup(place, self._proof(missing, tell)), self._workers(missing), progress.told)
        try:
            for number, tasks in enumerate(plans):
                yield self._put_together(number, output, ((task, self._part(task, place, finished, made)) for task in tasks))
                hit("build.source_assembled", number)
        finally:
            made.close()

    def _workers(self, missing: list[PartTask]) -> int:
        """Starting processes takes a second: little text is tokenised here, by the tokenizer's own threads."""
        much = sum(task.bytes for task in missing) >= MUCH_TEXT_BYTES
        return self.settings.workers or (usable_cores() if much else 1)

    def _part(self, task: PartTask, place: PartPlace, finished: set[PartTask], made: Iterator[PartTask]) -> Part:
        if task not in finished:
            found = next(made)  # not within the assertion: this is the work
            assert found == task, (found, task)
        return place.read(task)

    def _put_together(self, number: int, output: Path, parts: Iterable[tuple[PartTask, Part]]) -> SourceTokens:
        work = self.sources[number]
        relative = f"{number:02d}-" + (re.sub(r"[^A-Za-z0-9_-]+", "-", work.name).strip("-") or "source")
        size = shard_bytes_for(work.spool.total_bytes, self.settings.shard_bytes)
        training = _Side(output, relative, self.settings.dtype, size)
        apart = _Side(output, f"{relative}/held-out", self.settings.dtype, self.settings.shard_bytes) if self.held_out else None
        left = work.candidates
        for task, part in parts:
            taken = self._taken(work, part, left, apart.tokens.tokens) if apart else 0
            documents = work.order.block(task.start, task.stop)
            if apart:
                apart.extend(part.documents(0, taken), work.spool.found, documents[:taken])
            training.extend(part.documents(taken, None), work.spool.found, documents[taken:])
            left -= taken
        facts = DocumentFacts(
            facts=copy_facts(work.spool.found, output, relative),
            training=training.origins.finish(),
            held_out=apart.origins.finish() if apart else None,
            found=work.spool.facts_digest,
        )
        return SourceTokens(training.tokens.finish(), apart.tokens.finish() if apart else None, facts)

    def _taken(self, work: SourceWork, part: Part, left: int, held_out_tokens: int) -> int:
        """How many of the part's first documents are held out, where ``left`` may still be."""
        if work.held_out is not None:
            return min(left, len(part.counts))
        return _taken(part, left, self.held_out - held_out_tokens)

    def _setup(self, place: PartPlace, proof: Proof | None) -> Setup:
        return Setup(
            spools=tuple(str(work.spool.directory) for work in self.sources),
            names=tuple(work.name for work in self.sources),
            arranged=tuple(str(work.arranged) if work.arranged else None for work in self.sources),
            seed=self.seed,
            tokenizer=str(self.tokenizer),
            document_token=self.document_token,
            root=str(place.root),
            dtype=place.dtype,
            lossy=self.lossy,
            proof=proof,
        )

    def _proof(self, missing: list[PartTask], tell: Progress) -> Proof | None:
        """Looked for where it pays: for little text, tokenizers has done its work before."""
        if sum(task.bytes for task in missing) < PROVEN_FROM_BYTES:
            return None
        try:
            return Tokenizer.load(self.tokenizer, self.document_token).prove()
        except NotProven as reason:
            tell("encoder", {"why": str(reason)})
            return None


class _Side:
    """Training or held-out documents of a source on their way to the data directory: tokens, and where they are from."""

    def __init__(self, output: Path, relative: str, dtype: str, shard_bytes: int):
        self.tokens = TokenSetWriter(output, relative, dtype=dtype, shard_bytes=shard_bytes)
        self.origins = OriginsWriter(output, relative)

    def extend(self, part: Part, found: Found, documents: np.ndarray) -> None:
        self.tokens.extend(part.tokens, part.counts, int(part.sizes.sum()))
        self.origins.extend(found, documents)


def _taken(part: Part, candidates: int, tokens: int) -> int:
    """How many of the part's first documents are held out: until there are so many tokens, of so many candidates."""
    if tokens <= 0:
        return 0
    return min(candidates, int(np.searchsorted(np.cumsum(part.counts), tokens)) + 1, len(part.counts))


class _Progress:
    """Tells how far each source is; what an earlier build had made is told apart."""

    def __init__(self, tell: Progress, sources: list[SourceWork]):
        self._tell = tell
        zeros = ("done", "tokens", "bytes", "kept_tokens", "kept_bytes")
        self._facts: list[dict[str, Any]] = [
            dict.fromkeys(zeros, 0) | {"source": w.name, "documents": len(w.spool), "total_bytes": w.spool.total_bytes}
            for w in sources
        ]

    def found(self, task: PartTask, receipt: PartReceipt | None) -> bool:
        """Whether the part was there."""
        if receipt is None:
            return False
        facts = self._facts[task.source]
        facts["kept_bytes"] += task.bytes
        facts["kept_tokens"] += receipt.tokens
        self.told(task, task.stop - task.start, task.bytes, receipt.tokens)
        return True

    def told(self, task: PartTask, documents: int, size: int, tokens: int) -> None:
        facts = self._facts[task.source]
        facts["done"] += documents
        facts["bytes"] += size
        facts["tokens"] += tokens
        self._tell("tokens", dict(facts))
