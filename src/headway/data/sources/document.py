"""A document as it is found, and what is read of a recipe's source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from headway.base.urls import without_credentials

FACTS = ("path", "repository", "language", "url", "time", "licence")
"""What a source may know of a document; later steps filter and group by it. A fact that is not known is not there."""

LARGEST_DOCUMENT_BYTES = 64 * 2**20
"""A longer one is a dump of something, and no part of a build could hold it in bounded memory."""

TOO_LARGE = "too_large"


class SourceRecipe(Protocol):
    """What is read of a recipe's [[data.sources]]."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> Any: ...
    @property
    def path(self) -> str | None: ...
    @property
    def include(self) -> tuple[str, ...]: ...
    @property
    def exclude(self) -> tuple[str, ...]: ...
    @property
    def field(self) -> str: ...
    @property
    def revision(self) -> str | None: ...
    @property
    def repository_level(self) -> int | None: ...


@dataclass(frozen=True)
class Document:
    """``text`` None: left out, for the reason in ``dropped``. ``origin`` is for people and errors.

    ``facts`` are known by the names in ``FACTS``, are never changed, and do not make two documents different; nor do ``numbers``,
    which are whatever numbers its source holds beside the text, by their field. Origin and facts hold no credentials of URLs.
    """

    text: str | None
    origin: str
    dropped: str = ""
    facts: Mapping[str, str] = field(default_factory=dict, compare=False)
    numbers: Mapping[str, float] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "origin", without_credentials(self.origin))
        known = {name: without_credentials(value) for name, value in self.facts.items() if value}
        object.__setattr__(self, "facts", MappingProxyType(known))
        object.__setattr__(self, "numbers", MappingProxyType(dict(self.numbers)))

    def __reduce__(self) -> tuple:  # a view of a mapping cannot go to another process, its content can
        return type(self), (self.text, self.origin, self.dropped, dict(self.facts), dict(self.numbers))


Documents = Iterator[Document]
