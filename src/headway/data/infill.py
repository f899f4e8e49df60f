"""Fill-in-the-middle: some documents of a window are read as prefix, suffix, middle (arXiv 2207.14255).

    as stored    D a b c d e f g h i j k l               D: document token, 12 tokens of text
    PSM          D P a b c S h i M d e f g               P, S, M: control tokens; the last three tokens make room for them
    SPM          D P S h i M a b c d e f g               the suffix first, then prefix and middle in one

The part of a document that a window holds is cut in three at two random tokens. After its middle the model is to say that it
ends: the last target is the document token. What is done to a document is a function of data seed, source, epoch and the token it
begins at, so it is the same after a restart and under every layout, and another one in the next epoch. Cuts lie between tokens,
not within them: text is not encoded anew.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from headway.recipe.spec import InfillSpec

SHORTEST = 8
"""Tokens of text, control tokens left out, below which a document stays as it is."""


def infilled(
    row_tokens: np.ndarray,
    row_targets: np.ndarray,
    segment: tuple[int, int],
    *,
    document_token: int,
    spec: InfillSpec,
    key: tuple,
) -> bool:
    """Change columns [first, end) of a row, one document's, in place; False: this one stays as it is.

    ``key``: (source, epoch, token that the segment begins at).
    """
    first, end = segment
    first += int(row_tokens[first]) == document_token
    n = end - first - 3
    if n < SHORTEST:
        return False
    chosen, order, cut_a, cut_b = _numbers(spec.seed, key)
    if chosen >= spec.rate * 2**64:
        return False
    a, b = sorted((cut_a % (n + 1), cut_b % (n + 1)))
    prefix, suffix, middle = spec.tokens
    text = row_tokens[first : first + n]
    before, between, after = text[:a], text[a:b], text[b:]
    if order < spec.spm * 2**64:
        row_tokens[first:end] = np.concatenate(([prefix, suffix], after, [middle], before, between))
    else:
        row_tokens[first:end] = np.concatenate(([prefix], before, [suffix], after, [middle], between))
    row_targets[first : end - 1] = row_tokens[first + 1 : end]
    if first > segment[0]:
        row_targets[segment[0]] = row_tokens[first]
    row_targets[end - 1] = document_token
    return True


def _numbers(seed: int, key: tuple) -> list[int]:
    """Four of 64 bits."""
    digest = blake2b(repr(("infill", seed, *key)).encode(), digest_size=32).digest()
    return np.frombuffer(digest, "<u8").tolist()
