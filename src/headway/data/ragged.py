"""Groups of unequal size laid end to end."""

from __future__ import annotations

import numpy as np


def places_within(counts: np.ndarray) -> np.ndarray:
    """0 .. count - 1 for each of ``counts``, one group behind the other: [2, 0, 3] -> [0, 1, 0, 1, 2]. int64."""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]) if ends.size else 0) - np.repeat(ends - counts, counts)
