"""A state handed from one rank to another: equal bits, or refused."""

from __future__ import annotations

import json

import pytest
import torch

from headway.base.errors import RunError
from headway.checkpoint.digest import state_digest
from headway.checkpoint.hand_over import receive_state, send_state

FACTS = {"step": 7, "updates": 6, "spikes": {"losses": [1.5, 2.25]}}


def some_state(seed: int) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return {
        "param/a": torch.randn(3, 5, generator=random),
        "m/a": torch.randn(3, 5, generator=random, dtype=torch.float64),
        "param/b": torch.randn(4, 2, generator=random).bfloat16(),
        "guard/count": torch.tensor(seed),
        "guard/bad": torch.tensor([True, False]),
    }


class Wire:
    """Messages in order; what one side sends the other side gets."""

    def __init__(self) -> None:
        self.messages: list[torch.Tensor] = []

    def send(self, data: torch.Tensor) -> None:
        self.messages.append(data.clone())

    def receive(self, data: torch.Tensor) -> None:
        data.copy_(self.messages.pop(0))


def sent(state: dict[str, torch.Tensor]) -> Wire:
    wire = Wire()
    send_state(wire.send, state, FACTS)
    return wire


def test_every_bit_arrives_in_the_memory_that_is_there():
    source, destination = some_state(1), some_state(2)
    memory = {name: tensor.data_ptr() for name, tensor in destination.items()}
    assert receive_state(sent(source).receive, destination) == FACTS
    assert state_digest(destination) == state_digest(source)
    assert {name: tensor.data_ptr() for name, tensor in destination.items()} == memory


def test_nothing_is_sent_that_a_reader_would_execute():
    length, heading, *_ = sent(some_state(1)).messages
    assert int(length.view(torch.int64)) == len(heading)
    assert json.loads(heading.numpy().tobytes())["facts"] == FACTS


@pytest.mark.parametrize("at", range(len(some_state(1))))
def test_a_flipped_bit_is_refused(at):
    wire = sent(some_state(1))
    name = sorted(some_state(1))[at]
    wire.messages[2 + at][-1] ^= 1
    with pytest.raises(RunError, match=f"{name} has other bytes than its digest says"):
        receive_state(wire.receive, some_state(2))


def without(name: str) -> dict[str, torch.Tensor]:
    return {key: tensor for key, tensor in some_state(2).items() if key != name}


OTHERS = {
    "a tensor more": without("param/a"),
    "a tensor less": some_state(2) | {"param/c": torch.zeros(1)},
    "another shape": some_state(2) | {"param/a": torch.zeros(5, 3)},
    "another dtype": some_state(2) | {"param/a": torch.zeros(3, 5, dtype=torch.float64)},
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_state_of_another_kind_is_refused_before_anything_is_touched(name):
    destination = OTHERS[name]
    before = state_digest(destination)
    with pytest.raises(RunError, match="it has other tensors than this rank"):
        receive_state(sent(some_state(1)).receive, destination)
    assert state_digest(destination) == before


def test_a_damaged_heading_is_refused():
    wire = sent(some_state(1))
    wire.messages[1][0] ^= 1
    with pytest.raises(RunError, match="its heading cannot be read"):
        receive_state(wire.receive, some_state(2))
    wire = sent(some_state(1))
    wire.messages[0] = torch.tensor([2**40]).view(torch.uint8)
    with pytest.raises(RunError, match="its heading would have"):
        receive_state(wire.receive, some_state(2))
