"""Moments in host memory: updates to the bit as beside their parameters, a portion of them on the device at once."""

from __future__ import annotations

import itertools
import weakref

import pytest
import torch
from optim_cases import ADAMW, MODEL, MUON, RATES, ROUTED, WIDER, bits, give_gradients, same_bits, stand_in
from torch import Tensor

from headway.model.host_memory import HostMemory
from headway.optim.build import build_optimizer
from headway.optim.home import BESIDE, Home, InHostMemory

KINDS = pytest.mark.parametrize("spec", [ADAMW, MUON], ids=["adamw", "muon"])
PORTION = 4096


class Told(HostMemory):
    """Counts what is on the device for as long as it lives."""

    def __init__(self) -> None:
        super().__init__()
        self.here = self.most_here = self.there_and_back = 0

    def put(self, x: Tensor, kept: Tensor) -> None:
        super().put(x, kept)
        self.there_and_back += x.nbytes

    def fetch(self, kept: Tensor, device: torch.device) -> Tensor:
        fetched = super().fetch(kept, device)
        assert fetched.data_ptr() != kept.data_ptr()
        self.here += fetched.nbytes
        self.there_and_back += fetched.nbytes
        self.most_here = max(self.most_here, self.here)
        weakref.finalize(fetched, self._leave, fetched.nbytes)
        return fetched

    def _leave(self, nbytes: int) -> None:
        self.here -= nbytes


def trained(model_spec, spec, home: Home, steps: int = 5, bad: bool = False):
    model = stand_in(model_spec)
    optimizer = build_optimizer(model, spec, home)
    for step in range(steps):
        give_gradients(model, step)
        optimizer.set_rate(RATES[step])
        optimizer.step(torch.tensor(bad and step == 2))
    return optimizer


@KINDS
@pytest.mark.parametrize("portion", [1, PORTION, 2**28])
@pytest.mark.parametrize("model", [MODEL, WIDER, ROUTED], ids=["small", "wider", "routed"])
def test_every_bit_is_that_of_moments_beside_their_parameters(model, spec, portion):
    home = InHostMemory(Told(), portion)
    assert same_bits(bits(trained(model, spec, BESIDE)), bits(trained(model, spec, home)))


@KINDS
def test_a_bad_gradient_changes_nothing(spec):
    with_bad = trained(WIDER, spec, InHostMemory(Told(), PORTION), bad=True)
    assert same_bits(bits(trained(WIDER, spec, BESIDE, bad=True)), bits(with_bad))
    assert with_bad.step_counts() == [4]


@KINDS
def test_a_portion_is_on_the_device_at_once_and_nothing_between_updates(spec):
    told = Told()
    optimizer = trained(WIDER, spec, InHostMemory(told, PORTION), steps=1)
    moments = {name: tensor for name, tensor in optimizer.state_tensors().items() if not name.startswith("param/")}
    largest = max(tensor.nbytes for tensor in moments.values())
    total = sum(tensor.nbytes for tensor in moments.values())
    assert told.here == 0
    assert told.there_and_back == 2 * total
    assert max(PORTION, 2 * largest) >= told.most_here > 0
    assert total > 4 * told.most_here, "or it proves nothing"


def test_portions_hold_every_parameter_once_in_order():
    parameters = list(stand_in(WIDER).parameters())
    found = InHostMemory(portion_bytes=PORTION).portions(parameters, 2)
    assert [id(p) for portion in found for p in portion] == [id(p) for p in parameters]
    sizes = [sum(2 * p.nbytes for p in portion) for portion in found]
    assert all(size <= PORTION or len(portion) == 1 for size, portion in zip(sizes, found, strict=True))
    assert all(sum(pair) > PORTION for pair in itertools.pairwise(sizes))


@KINDS
def test_state_is_live_and_goes_on_from_what_is_loaded_into_it(spec):
    """As checkpoints restore it: values into the tensors that are there."""
    source, other = trained(MODEL, spec, BESIDE), trained(MODEL, spec, InHostMemory(Told(), PORTION), steps=2)
    with torch.no_grad():
        for name, tensor in other.state_tensors().items():
            tensor.copy_(source.state_tensors()[name])
    other.restore_step(5)
    for optimizer in (source, other):
        for p in optimizer.parameters.values():
            p.grad = torch.full_like(p, 0.25) if p.requires_grad else None
        optimizer.set_rate(1e-3)
        optimizer.step()
    assert same_bits(bits(source), bits(other))
