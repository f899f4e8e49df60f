"""The digest of a state in memory, equal to the one in the manifest of a checkpoint that holds it.

The trainer records it per step; two runs are the same run as long as their digests are. It is one of rectangles: equal states
that are cut otherwise have other digests, so it is compared among runs of one layout.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch

from headway.base.digests import canonical_json
from headway.checkpoint.rectangles import LocalPart
from headway.checkpoint.replicas import everybodys_bytes
from headway.checkpoint.tensors import bytes_view, dtype_name
from headway.store.manifest import Chunk, TensorEntry, content_digest, hash_blocks, tensor_digest


def state_digest(tensors: dict[str, torch.Tensor]) -> str:
    """xxh3_128 over sorted names, dtypes, shapes and bytes."""
    return content_digest({name: _entry(name, tensor) for name, tensor in tensors.items()})


def digest_of_all(parts: Sequence[LocalPart]) -> str:
    """The same of a state that lies on several ranks: each gives the parts that it writes, and all learn the digest.

    Only digests of blocks travel. Every rank of the default group calls at once.
    """
    mine = [[p.part.name, p.part.dtype, p.part.global_shape, p.part.offset, p.part.shape, hash_part(p)] for p in parts]
    entries: dict[str, TensorEntry] = {}
    for told in everybodys_bytes(canonical_json(mine)):
        for name, dtype, shape, offset, lengths, blocks in json.loads(told):
            chunk = Chunk(offset=tuple(offset), shape=tuple(lengths), file="", at=0, nbytes=0, blocks=tuple(blocks))
            known = entries[name].chunks if name in entries else ()
            entries[name] = TensorEntry(dtype=dtype, shape=tuple(shape), chunks=(*known, chunk))
    return content_digest(entries)


def hash_part(local: LocalPart) -> tuple[str, ...]:
    """Digests of its blocks."""
    return hash_blocks(bytes_view(local.values))


def tensor_digests(tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    """One digest per tensor, to name the one that differs."""
    return {name: tensor_digest(_entry(name, tensors[name])) for name in sorted(tensors)}


def _entry(name: str, tensor: torch.Tensor) -> TensorEntry:
    """The whole tensor as one chunk in memory."""
    shape, data = tuple(tensor.shape), bytes_view(tensor)
    chunk = Chunk(offset=(0,) * len(shape), shape=shape, file="", at=0, nbytes=data.nbytes, blocks=hash_blocks(data))
    return TensorEntry(dtype=dtype_name(name, tensor.dtype), shape=shape, chunks=(chunk,))
