"""Who brought something else first. Pure functions of what all ranks noted in two runs of one step.

    rank 0   same   same   other (after it had met rank 1's)       explained
    rank 1   same   other                                          not explained: it was rank 1
    rank 2   same   same   same                                    nothing differs

A rank is explained by any meeting before its own first difference to which another rank brought something else. Where a rank is
wrong in what it brings and in nothing else, it is named as well: the others meet it, and differ only afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headway.train.soundness.exchanges import MEETING, UNKNOWN

Notes = Sequence[tuple[str, tuple[int, ...] | None]]
"""Of one run on one rank, in order: names of meetings and of own tensors, checksums (None: nothing was brought)."""
MOST_NAMES = 8


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Of two runs on one rank. ``met``: meetings before the first difference; ``brought``: those to which it brought something
    else; ``names``: its own tensors that differ, the first few."""

    first: str | None = None
    met: tuple[str, ...] = ()
    brought: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


def difference(notes: Notes, again: Notes) -> Difference:
    """``first`` None: they are the same, bit for bit.

    The first run of a shape may have meetings of its own (a pipeline's ranks agree on it): then only a rank's own tensors are
    compared, and who met whom is not known.
    """
    alike = [name for name, _ in notes] == [name for name, _ in again]
    if not alike:
        notes, again = _own(notes), _own(again)
    pairs = list(zip(notes, again, strict=True))
    at = next((place for place, (one, other) in enumerate(pairs) if one != other), None)
    if at is None:
        return Difference()
    differing = [one[0] for one, other in pairs[at:] if one != other]
    met = [name for name, _ in notes[:at] if name.startswith(MEETING)]
    return Difference(
        first=differing[0],
        met=tuple(met) if alike else (MEETING + UNKNOWN,),
        brought=tuple(name for name in differing if name.startswith(MEETING)),
        names=tuple(name for name in differing if not name.startswith(MEETING))[:MOST_NAMES],
    )


def _own(notes: Notes) -> Notes:
    return [note for note in notes if not note[0].startswith(MEETING)]


def culprits(found: Mapping[int, Difference]) -> tuple[int, ...]:
    """Ranks whose difference no other rank's explains; all that differ, where each is explained or a meeting is not known."""
    differing = {rank: one for rank, one in found.items() if one.first is not None}
    brought = {rank: set(one.brought) for rank, one in differing.items()}
    unexplained = [
        rank
        for rank, one in differing.items()
        if not any(not others.isdisjoint(one.met) for peer, others in brought.items() if peer != rank)
    ]
    murky = any(name.startswith(MEETING + UNKNOWN) for one in differing.values() for name in one.met)
    return tuple(differing) if murky or not unexplained else tuple(unexplained)


def first_parameter(names: Sequence[str]) -> str:
    """Of names such as ``gradients/layers.0.norm.weight`` or ``state/m/embed.weight``; empty: none is of a parameter."""
    for name in names:
        kind, _, rest = name.partition("/")
        if kind == "gradients":
            return rest
        if kind in ("before", "weights", "state"):
            return rest.partition("/")[2]
    return ""
