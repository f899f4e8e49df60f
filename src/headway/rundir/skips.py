"""Skip records as arithmetic on the indices of one stage: which of them are never trained.

stream index n   0 1 2 3 4 5 6 7 8 9 ...      skips (first 3, count 2), (first 7, count 1)
gaps                   3 4     7
trained u        0 1 2     3 4   5 6 ...      trained_before(9) = 6
"""

from __future__ import annotations

from collections.abc import Iterable


def skip_gaps(skips: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The stream indices that ``skips`` of one stage, (first, count) in order, leave out: [first, end), apart and in order."""
    found: list[tuple[int, int]] = []
    for first, count in skips:
        if found and first < found[-1][1]:  # it begins where nothing is trained: what follows moves on
            found[-1] = (found[-1][0], found[-1][1] + count)
        else:
            found.append((first, first + count))
    return found


def gaps_of(records: Iterable[dict], stage: int) -> list[tuple[int, int]]:
    """``skip_gaps`` from a segment's skip records {stage, first, count}."""
    return skip_gaps(sorted((record["first"], record["count"]) for record in records if record["stage"] == stage))


def trained_before(gaps: Iterable[tuple[int, int]], n: int) -> int:
    """How many indices below ``n`` are trained."""
    return n - sum(max(0, min(end, n) - first) for first, end in gaps)


def trained_in(span: tuple[int, int], own: list[tuple[int, int]], gaps: list[tuple[int, int]]) -> int:
    """Of the trained indices [u, end) under the gaps ``own``, how many have stream indices that ``gaps`` leave out."""
    low, high = span

    def below(n: int) -> int:
        return min(max(trained_before(own, n), low), high)

    return sum(below(end) - below(first) for first, end in gaps)
