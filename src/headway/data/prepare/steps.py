"""What a step of the preparation is: a check of one document, and a note of those that were kept.

Most steps look at one document alone, so that any process may do their part. A ``Comparing`` step compares it with what was kept
before: that is done in one process and in order, with what could be measured of the document elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np


@dataclass(frozen=True)
class Piece:
    """A document on its way: its text as the steps before left it. ``origin`` names it for people, ``source`` its source.

    ``facts`` are what its source knows of it; ``numbers`` those of its own that a step asks for, by field.
    """

    text: str
    origin: str
    source: str
    facts: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """``text`` goes on, unless ``dropped`` says why the document is left out.

    ``detail`` is for the report and never quotes a document. ``found``: what was changed, or found, counted by kind.
    """

    text: str
    dropped: str = ""
    detail: str = ""
    found: Mapping[str, int] = field(default_factory=dict)


class Step:
    """One step. ``version`` is raised when the same settings would give another result.

    ``operations`` counts what takes its time, for tests of how that grows.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1

    def __init__(self, settings: Mapping[str, Any]):
        self.settings = dict(settings)
        self.operations: Counter[str] = Counter()

    def check(self, piece: Piece) -> Verdict:
        """Of ``piece`` against what was kept. Changes nothing that a later check would see."""
        raise NotImplementedError

    def keep(self, piece: Piece) -> None:
        """``piece`` is kept as it is; its last ``check`` let it pass unchanged."""

    def identity(self) -> dict[str, Any]:
        """What decides the result, as plain data: part of the build's inputs digest."""
        return {"step": self.name, "version": self.version, "settings": self.settings}

    def facts(self) -> dict[str, Any]:
        """What else the report should say of this step."""
        return {}

    def left_out(self, verdict: Verdict) -> None:
        """A document was left out by this step, here or in another process: for ``facts``."""

    def close(self) -> None:
        """Let go of files."""


Measured = tuple[np.ndarray, ...]


class Comparing(Step):
    """A step that compares with what was kept, or sums it up. ``measure`` is of the piece and the settings alone."""

    def __init__(self, settings: Mapping[str, Any], directory: Path | None = None):
        """``directory``: for temporary files of what is remembered; None: in memory."""
        super().__init__(settings)
        self._last: tuple[Piece, Measured] | None = None

    def measure(self, piece: Piece) -> Measured:
        raise NotImplementedError

    def take(self, piece: Piece, measured: Measured) -> None:
        """What another process has measured of ``piece``."""
        self._last = piece, measured

    def measured(self, piece: Piece) -> Measured:
        """The last piece is measured once."""
        if self._last is None or self._last[0] != piece:
            self.take(piece, self.measure(piece))
        assert self._last is not None
        return self._last[1]
