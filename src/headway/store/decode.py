"""The bits of a tensor as numbers that numpy can subtract.

    BF16  the upper half of an F32            F8_E5M2  the upper half of an F16
    F16   numpy's own                         F8_E4M3  a table of its 256 values: bias 7, no infinities, NaN is S.1111.111

Every value of a small float is one of float64, so nothing is rounded. Eight-byte integers become numpy's longest float, which
holds all of them on x86 and ARM.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

FLOATS = frozenset({"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"})
"""Dtypes that have NaN."""

_PLAIN = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "U64": np.uint64, "I32": np.int32}
_PLAIN |= {"U32": np.uint32, "I16": np.int16, "U16": np.uint16, "I8": np.int8, "U8": np.uint8, "BOOL": np.uint8}
"""Dtypes whose bits numpy reads as they are."""


def decode(bits: np.ndarray, dtype: str) -> np.ndarray:
    """``bits``: unsigned integers of the element's size, as ``assemble.fill`` gives them. Returns float64, or longdouble."""
    with np.errstate(invalid="ignore"):  # of some NaN the processor complains when they change their size
        if dtype == "BF16":
            return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        if dtype == "F8_E5M2":
            return (bits.astype(np.uint16) << 8).view(np.float16).astype(np.float64)
        if dtype == "F8_E4M3":
            return _e4m3_table()[bits]
        return bits.view(_PLAIN[dtype]).astype(np.longdouble if dtype in ("I64", "U64") else np.float64)


@cache
def _e4m3_table() -> np.ndarray:
    return np.array([_e4m3(code) for code in range(256)])


def _e4m3(code: int) -> float:
    sign, exponent, mantissa = -1.0 if code >> 7 else 1.0, code >> 3 & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    if exponent == 0:
        return sign * math.ldexp(mantissa, -9)  # subnormal: mantissa / 8 at the lowest exponent, 2^-6
    return sign * math.ldexp(8 + mantissa, exponent - 10)
