"""Random words as a pure function of (seed, name, index): what initial weights and dropout are made of.

A name is a stream of 32-bit words of Philox4x64-10, keyed by blake2b(seed, name). Eight words make one Philox block, so word
i lies in block i // 8, and any run of words is reached by setting the counter.
"""

from __future__ import annotations

import hashlib

import numpy as np

WORDS_PER_BLOCK = 8


def stream_key(seed: int, name: str) -> int:
    """128-bit Philox key."""
    digest = hashlib.blake2b(f"{seed}\0{name}".encode(), digest_size=16, person=b"headway.init")
    return int.from_bytes(digest.digest(), "little")


class Words:
    """The words of one name, from any index on; one generator whose counter is set instead of many generators."""

    def __init__(self, seed: int, name: str):
        self._generator = np.random.Philox(key=stream_key(seed, name))
        self._state = self._generator.state

    def __call__(self, start: int, count: int) -> np.ndarray:
        """uint32, words ``start`` to ``start + count``."""
        block, skip = divmod(start, WORDS_PER_BLOCK)
        blocks = -(-(skip + count) // WORDS_PER_BLOCK)
        self._state["state"]["counter"][:] = [block & 0xFFFF_FFFF_FFFF_FFFF, block >> 64, 0, 0]
        self._state["buffer_pos"] = 4  # empty: the next word comes from the counter
        self._generator.state = self._state
        raw = np.asarray(self._generator.random_raw(blocks * 4))
        return raw.astype("<u8", copy=False).view("<u4")[skip : skip + count]
