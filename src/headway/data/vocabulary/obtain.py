"""The tokenizer of a build: trained on a sample of its documents, brought as a file, or taken over from a build that did not end.

    MADE/   tokenizer.json            what it became
            tokenizer-receipt.json    its digest, written last, and what it was made of

Training takes at most so much text, however much there is: the first documents of every source's shuffled order, without what
may be held out, in proportion to the sources' sizes. So its time and memory are bounded, and the same documents give the same
tokenizer. Pieces of more than 1,000 characters, such as a rule of dashes, are left out: training is quadratic in their length.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from headway.base.digests import sealed
from headway.base.errors import ConfigError, HeadwayError
from headway.base.failpoints import hit
from headway.base.files import read_json, write_json
from headway.base.plain import from_plain
from headway.data.split import Order
from headway.data.spool import SealedSpool, unsealed
from headway.data.tokenizer import TOKENIZER_FILE, Tokenizer, train_tokenizer
from headway.data.vocabulary import bring
from headway.data.vocabulary.splits import Policy, ShortPieces

if TYPE_CHECKING:
    from headway.recipe.schema import Tokenizer as Wanted

RECEIPT = "tokenizer-receipt.json"
SAMPLE_BYTES = 256 * 2**20
TRIED_BYTES = 2**20
"""Of each source, that a brought tokenizer is tried on before anything is built with it."""


Tell = Callable[[str, dict[str, Any]], None]


class Work(Protocol):
    """A source's documents; the first ``candidates`` of the order may be held out."""

    @property
    def name(self) -> str: ...
    @property
    def spool(self) -> SealedSpool: ...
    @property
    def order(self) -> Order: ...
    @property
    def candidates(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class Made:
    """What it was made of: ``trained_on`` is bytes of text by source, ``brought`` the digest of a file.

    ``left_out``: characters by source, of ``trained_on``, in pieces too long to train on.
    """

    tokenizer: str  # digest
    trained_on: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)
    brought: str = ""


def brought_by(wanted: Wanted) -> bring.Brought | None:
    """What a recipe brings, converted. ConfigError: a file that cannot be taken. None: a tokenizer is trained."""
    return bring.bring(wanted) if wanted.kind == "file" and wanted.path is not None else None


def obtain(
    wanted: Wanted,
    brought: bring.Brought | None,
    sources: list[Work],
    made: Path,
    tell: Tell = lambda what, facts: None,
) -> tuple[Tokenizer, Made]:
    """It lies in ``made`` afterwards. ConfigError: too little text for the vocabulary, text that ``brought`` would change.

    ``tell``: of training before it begins, which takes minutes of much text, and of the tokenizer.
    """
    found = _finished(made, wanted.document_token)
    kept = found is not None
    if found is None:
        found = _trained(wanted, sources, tell) if brought is None else _tried(brought, wanted, sources)
        found[0].save(made / TOKENIZER_FILE)
        write_json(made / RECEIPT, sealed(dataclasses.asdict(found[1])))
        hit("build.tokenizer_written", 0)
    tokenizer = found[0]
    if wanted.kind == "bpe" and tokenizer.vocabulary != wanted.vocabulary:
        raise ConfigError(
            f"the documents give a vocabulary of {tokenizer.vocabulary} entries, {wanted.vocabulary} were asked for",
            "every merge of the vocabulary joins a pair that occurs in the training documents",
            f"set tokenizer.vocabulary = {tokenizer.vocabulary} or lower, or add text",
        )
    tell("tokenizer", {"vocabulary": tokenizer.vocabulary, "digest": tokenizer.digest, "kept": kept})
    return found


def _finished(made: Path, document_token: str) -> tuple[Tokenizer, Made] | None:
    """By a build of the same inputs that did not end; None: not, or damaged."""
    try:
        receipt = from_plain(Made, unsealed(read_json(made / RECEIPT), made / RECEIPT))
        found = Tokenizer.load(made / TOKENIZER_FILE, document_token)
    except HeadwayError:
        return None
    return (found, receipt) if found.digest == receipt.tokenizer else None


def _trained(wanted: Wanted, sources: list[Work], tell: Tell) -> tuple[Tokenizer, Made]:
    samples = sample(sources, SAMPLE_BYTES if wanted.sample is None else wanted.sample)
    tell("training", {"bytes": sum(size for _, size in samples)})
    policy = Policy(wanted.digits, wanted.whitespace)
    short = {work.name: ShortPieces(texts(work, stop), policy) for work, (stop, _) in zip(sources, samples, strict=True)}
    tokenizer = train_tokenizer(
        chain.from_iterable(short.values()),
        vocabulary=wanted.vocabulary,
        document_token=wanted.document_token,
        controls=(*wanted.fim_tokens, *wanted.reserved_tokens),
        policy=policy,
    )
    trained_on = {work.name: size for work, (_, size) in zip(sources, samples, strict=True)}
    left_out = {name: part.left_out for name, part in short.items() if part.left_out}
    return tokenizer, Made(tokenizer=tokenizer.digest, trained_on=trained_on, left_out=left_out)


def _tried(brought: bring.Brought, wanted: Wanted, sources: list[Work]) -> tuple[Tokenizer, Made]:
    for work in sources:
        stop, _ = _within(work, TRIED_BYTES)
        bring.try_on(brought, texts(work, stop), lossy=wanted.lossy)
    return brought.tokenizer, Made(tokenizer=brought.tokenizer.digest, brought=brought.digest)


def sample(sources: list[Work], most: int) -> list[tuple[int, int]]:
    """Per source: the position where its sample ends, and its bytes of text. Together ``most`` or less, but one document each."""
    whole = [_within(work, None) for work in sources]
    total = sum(size for _, size in whole)
    if total <= most:
        return whole
    return [_within(work, most * size // total) for work, (_, size) in zip(sources, whole, strict=True)]


def _within(work: Work, most: int | None) -> tuple[int, int]:
    """The first documents behind the candidates, whole, that hold at most ``most`` bytes, and one at least."""
    position, size = work.candidates, 0
    for block in work.order.blocks(work.candidates, len(work.spool)):
        sizes = np.cumsum(work.spool.sizes(block))
        fits = len(block) if most is None else int(np.searchsorted(sizes, most - size, side="right"))
        if position == work.candidates:
            fits = max(1, fits)
        size += int(sizes[fits - 1]) if fits else 0
        position += fits
        if fits < len(block):
            break
    return position, size


def texts(work: Work, stop: int) -> Iterator[str]:
    """From behind the candidates, which the tokenizer must not have seen, up to position ``stop``."""
    for block in work.order.blocks(work.candidates, stop):
        yield from work.spool.texts(block)
