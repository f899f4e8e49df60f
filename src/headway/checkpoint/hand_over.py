"""A rank's part of the state, handed to a rank that has lost its own: raw bytes with their digests, nothing is unpickled.

    length of the heading | heading, JSON: facts, and of each tensor its name, dtype, shape, digest | bytes of each tensor

The receiver knows its tensors: names, dtypes and shapes have to be equal, and the digests of what came. After an error its state
is a mixture and must not be trained on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from headway.base.digests import canonical_json
from headway.base.errors import RunError
from headway.checkpoint.digest import tensor_digests
from headway.checkpoint.tensors import dtype_name

Move = Callable[[Tensor], None]
"""Sends bytes, or fills a tensor with those that come: in the order of the other side."""

MOST_HEADING_BYTES = 2**30


def send_state(move: Move, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """``facts``: plain data that travels along."""
    digests = tensor_digests(dict(tensors))
    heading = canonical_json({"facts": dict(facts), "tensors": [[*kind, digests[kind[0]]] for kind in _kinds(tensors)]})
    move(torch.tensor([len(heading)], dtype=torch.int64).view(torch.uint8))
    move(torch.frombuffer(bytearray(heading), dtype=torch.uint8))
    for name in sorted(tensors):
        move(_bytes(tensors[name]))


def receive_state(move: Move, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Fill ``tensors`` in place; returns the facts. RunError where they are others, or damaged on the way."""
    length = torch.zeros(1, dtype=torch.int64)
    move(length.view(torch.uint8))
    if not 0 < int(length) <= MOST_HEADING_BYTES:
        raise _refused(f"its heading would have {int(length)} bytes")
    heading = torch.empty(int(length), dtype=torch.uint8)
    move(heading)
    try:
        told = json.loads(heading.numpy().tobytes())
        facts, entries = dict(told["facts"]), [list(entry) for entry in told["tensors"]]
    except (ValueError, KeyError, TypeError) as error:
        raise _refused("its heading cannot be read") from error
    if [entry[:3] for entry in entries] != _kinds(tensors):
        raise _refused("it has other tensors than this rank")
    for name, *_, digest in entries:
        came = torch.empty(tensors[name].nbytes, dtype=torch.uint8)
        move(came)
        found = came.view(tensors[name].dtype).view_as(tensors[name])
        if tensor_digests({name: found})[name] != digest:
            raise _refused(f"{name} has other bytes than its digest says")
        tensors[name].detach().copy_(found)
    return facts


def _kinds(tensors: Mapping[str, Tensor]) -> list[list[Any]]:
    return [[name, dtype_name(name, tensors[name].dtype), list(tensors[name].shape)] for name in sorted(tensors)]


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _refused(seen: str) -> RunError:
    return RunError(
        f"the state that another replica group handed over is refused: {seen}",
        "names, dtypes, shapes and digests agree",
        "the group is started again, and is handed it anew",
    )
