"""What a step of the preparation is: a check of one document, and a note of those that were kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True)
class Piece:
    """A document on its way: its text as the steps before left it. ``origin`` names it for people, ``source`` its source;
    ``facts`` are what its source knows of it."""

    text: str
    origin: str
    source: str
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """``text`` goes on, unless ``dropped`` says why the document is left out.

    ``detail`` is for the report and never quotes a document. ``found``: what was changed, counted by kind.
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

    def close(self) -> None:
        """Let go of files."""
