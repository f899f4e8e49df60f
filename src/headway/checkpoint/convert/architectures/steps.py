"""How some of our tensors become some of theirs: small steps, each with its exact way back.

    step            there                                                       used for
    Join            tensors one below the other                                 q k v, gate and up in one matrix
    JoinByHead      the same, head by head                                      GPT-NeoX
    Transpose       rows and columns exchanged                                  GPT-2, whose matrices are columns first
    Unstack         one tensor per expert                                       experts
    Permute         rows in another order, in every run of so many              RoPE that turns neighbours
    PermuteTail     the same of the last rows alone                             the key that latent heads share
    SwapHalves      columns of the second half first                            heads for further tokens
    Affine          factor * values + offset: rounded, no bit-exact way back    Gemma's gains, multipliers that are folded

A link is a list of them between names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from headway.checkpoint.convert.views import (
    Between,
    Element,
    Joined,
    Permuted,
    Scaled,
    Stacked,
    Transposed,
    Turned,
    View,
)

Views = tuple[View, ...]


class Step(Protocol):
    def there(self, views: Views) -> Views: ...

    def back(self, views: Views) -> Views: ...


@dataclass(frozen=True)
class Join:
    """``sizes``: rows of each part."""

    sizes: tuple[int, ...]

    def there(self, views: Views) -> Views:
        return (Joined(views),)

    def back(self, views: Views) -> Views:
        ends = [sum(self.sizes[: i + 1]) for i in range(len(self.sizes))]
        return tuple(Between(views[0], end - size, end) for end, size in zip(ends, self.sizes))


@dataclass(frozen=True)
class JoinByHead:
    """Of each part the rows of head 0, then of head 1; ``width``: rows of a head."""

    parts: int
    heads: int
    width: int

    def there(self, views: Views) -> Views:
        return (Joined(tuple(Between(v, h * self.width, (h + 1) * self.width) for h in range(self.heads) for v in views)),)

    def back(self, views: Views) -> Views:
        return tuple(
            Joined(tuple(self._rows(views[0], head * self.parts + part) for head in range(self.heads)))
            for part in range(self.parts)
        )

    def _rows(self, view: View, index: int) -> View:
        return Between(view, index * self.width, (index + 1) * self.width)


@dataclass(frozen=True)
class Transpose:
    def there(self, views: Views) -> Views:
        return tuple(Transposed(view) for view in views)

    back = there


@dataclass(frozen=True)
class Unstack:
    count: int

    def there(self, views: Views) -> Views:
        return tuple(Element(views[0], index) for index in range(self.count))

    def back(self, views: Views) -> Views:
        return (Stacked(views),)


@dataclass(frozen=True)
class Permute:
    """In every run of len(order) rows, row i of theirs is row order[i] of ours."""

    order: tuple[int, ...]

    def there(self, views: Views) -> Views:
        return tuple(Permuted(view, self.order) for view in views)

    def back(self, views: Views) -> Views:
        return tuple(Permuted(view, inverse(self.order)) for view in views)


@dataclass(frozen=True)
class PermuteTail:
    """The first ``kept`` rows stay, the others are one run."""

    kept: int
    order: tuple[int, ...]

    def there(self, views: Views) -> Views:
        return tuple(self._moved(view, self.order) for view in views)

    def back(self, views: Views) -> Views:
        return tuple(self._moved(view, inverse(self.order)) for view in views)

    def _moved(self, view: View, order: tuple[int, ...]) -> View:
        end = self.kept + len(order)
        return Joined((Between(view, 0, self.kept), Permuted(Between(view, self.kept, end), order)))


@dataclass(frozen=True)
class SwapHalves:
    """``columns``: of a half."""

    columns: int

    def there(self, views: Views) -> Views:
        return tuple(Turned(view, self.columns) for view in views)

    back = there


@dataclass(frozen=True)
class Affine:
    """theirs = factor * ours + offset."""

    factor: float
    offset: float = 0.0

    def there(self, views: Views) -> Views:
        return tuple(Scaled(view, self.factor, self.offset) for view in views)

    def back(self, views: Views) -> Views:
        return tuple(Scaled(view, 1 / self.factor, -self.offset / self.factor) for view in views)


@dataclass(frozen=True)
class Each:
    """One factor and offset for each tensor."""

    steps: tuple[Affine, ...]

    def there(self, views: Views) -> Views:
        return tuple(view if step == Affine(1.0) else step.there((view,))[0] for step, view in zip(self.steps, views))

    def back(self, views: Views) -> Views:
        return tuple(view if step == Affine(1.0) else step.back((view,))[0] for step, view in zip(self.steps, views))


def inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    places = [0] * len(order)
    for at, source in enumerate(order):
        places[source] = at
    return tuple(places)


def neighbours(width: int, kept: int = 0) -> tuple[int, ...]:
    """Rows of a head for RoPE that turns (2i, 2i + 1), of ours that turns (i, i + width / 2); ``kept`` rows before stay."""
    half = width // 2
    return (*range(kept), *(kept + (i // 2 if i % 2 == 0 else half + i // 2) for i in range(width)))


@dataclass(frozen=True)
class Link:
    """``ours`` become ``theirs`` by ``steps``; names without "param/". No steps: one tensor under another name."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    steps: tuple[Step, ...] = ()

    def export(self, views: Views) -> dict[str, View]:
        for step in self.steps:
            views = step.there(views)
        assert len(views) == len(self.theirs), self
        return dict(zip(self.theirs, views))

    def bring_back(self, views: Views) -> dict[str, View]:
        """Ours, from views of theirs."""
        for step in reversed(self.steps):
            views = step.back(views)
        assert len(views) == len(self.ours), self
        return dict(zip(self.ours, views))

    @property
    def is_exact(self) -> bool:
        return not any(isinstance(step, Affine | Each) for step in self.steps)
