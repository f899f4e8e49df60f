"""Which documents of each source of a build are set apart, by the rule of the recipe (``split.py``).

before the tokenizer   split     those that may be held out first, 8 bytes per token asked for; it is trained on the others
after it               decided   those that are held out first, to the token; by order ``assemble.py`` decides on the way
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.base.errors import ConfigError
from headway.data.assemble import SourceWork
from headway.data.manifest import HeldOutRule
from headway.data.parts import token_counts
from headway.data.split import FACT, UNKNOWN, Arranged, Lowest, lowest, reaching, rule, threshold_of
from headway.data.spool import SealedSpool, Shuffled
from headway.data.tokenizer import Tokenizer
from headway.recipe.held_out_checks import check_held_out, rule_of

if TYPE_CHECKING:
    from headway.recipe.schema import Data

_CANDIDATE_BYTES_PER_TOKEN = 8


class Apart:
    """Of one build. ``spools``: of its sources, as far as they are read; ``made``: where orders are written."""

    def __init__(self, data: Data, *, seed: int, made: Path, spools: list[SealedSpool]):
        """ConfigError: a threshold that is none."""
        if problems := [problem for _, problem in check_held_out(data)]:
            raise ConfigError(problems)
        self._data, self._seed, self._made, self._spools = data, seed, made, spools
        self.rules: dict[int, HeldOutRule] = {}  # by source, of those that are not split by order

    def by(self, source: Any) -> str:
        """The rule of a source."""
        return rule_of(self._data, source)

    def identity(self, number: int) -> list[Any] | None:
        """None for order: inputs digests of builds before there were others stay."""
        source = self._data.sources[number]
        by = self.by(source)
        return None if by == "order" else [by, source.held_out_at, self._spools[number].receipt.files["keys"]]

    def split(self, number: int) -> SourceWork:
        """Documents that may be held out come first; the tokenizer is trained on the others."""
        source, spool = self._data.sources[number], self._spools[number]
        by, name = self.by(source), source.name
        if by != "order":
            limit = threshold_of(by, source.held_out_at) if source.held_out_at is not None else self._lowest(number).limit
            return self._arranged(number, limit)
        order = Shuffled(len(spool), self._seed, name)
        wanted = min(self._data.held_out * _CANDIDATE_BYTES_PER_TOKEN, spool.total_bytes // 2)
        position = candidate_bytes = 0
        for block in order.blocks(0, len(spool)):
            for size in spool.sizes(block).tolist():
                if candidate_bytes >= wanted:
                    return SourceWork(name, spool, order, position)
                candidate_bytes += size
                position += 1
        return SourceWork(name, spool, order, position)

    def _lowest(self, number: int) -> Lowest:
        spool = self._spools[number]
        wanted = min(self._data.held_out * _CANDIDATE_BYTES_PER_TOKEN, spool.total_bytes // 2)
        return lowest(spool.keys, spool.sizes, wanted)

    def _arranged(self, number: int, threshold: int) -> SourceWork:
        """With the documents below ``threshold`` held out. ConfigError: it has none there, or only those."""
        source, spool = self._data.sources[number], self._spools[number]
        shuffled, path = Shuffled(len(spool), self._seed, source.name), self._made / f"order-{number}"
        below = Arranged.write(path, lambda: shuffled.blocks(0, len(spool)), spool.keys, threshold)
        if not 0 < below < len(spool):
            by, side = self.by(source), "held-out" if below else "training"
            unknown = sum(int((spool.keys[at : at + 2**16] == UNKNOWN).sum()) for at in range(0, len(spool), 2**16))
            raise ConfigError(
                f"source {source.name}: all {len(spool):,} documents are on the {side} side"
                + (f"; {unknown:,} have no {FACT[by]}" if unknown else ""),
                f"held_out_by = {by!r}: a source has documents on both sides"
                + (f", and is trained on those without {FACT[by]}" if by in FACT else ""),
                "hold out by another rule, or by another held_out_at",
            )
        return SourceWork(source.name, spool, Arranged(path), below, path)

    def decided(self, number: int, work: SourceWork, tokenizer: Tokenizer) -> SourceWork:
        """With the documents that are held out first, and no others of those that might have been."""
        source = self._data.sources[number]
        if work.arranged is None:
            return work
        threshold = threshold_of(self.by(source), source.held_out_at) if source.held_out_at is not None else None
        if threshold is None:
            found = self._lowest(number)
            threshold = reaching(found, token_counts(work.spool, found.documents, tokenizer), self._data.held_out)
            work = self._arranged(number, threshold)
        self.rules[number] = rule(self.by(source), threshold, work.spool.keys)
        return dataclasses.replace(work, held_out=work.candidates)
