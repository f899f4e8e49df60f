"""Activations in host memory: the same bits, from what is fetched; what goes, what stays, and how much is here at once."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

from headway.model.away import LEAST_BYTES, Away
from headway.model.decoder import Decoder
from headway.model.host_memory import HostMemory
from headway.model.init import initialise
from headway.model.objective import training_sums
from headway.model.precision import ComputeModel
from headway.model.recompute import RECOMPUTED
from headway.recipe.load import load_recipe
from headway.recipe.offload import HELD_BLOCKS
from headway.recipe.resolve import resolve
from headway.recipe.spec import PrecisionSpec
from headway.train.prove.batches import RandomFeed
from headway.train.prove.miniature import small_spec
from headway.train.step import context_of

LAYERS = 5


@dataclass
class Told(HostMemory):
    """A stand-in for another device's memory: what was fetched is told apart from what was put, and counted while it lives."""

    put_bytes: int = 0
    fetched_bytes: int = 0
    here: int = 0
    most_here: int = 0
    on_host: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def put(self, x: Tensor, kept: Tensor) -> None:
        super().put(x, kept)
        self.put_bytes += kept.nbytes
        self.on_host.append(kept)

    def fetch(self, kept: Tensor, device: torch.device) -> Tensor:
        assert any(kept is one for one in self.on_host)
        fetched = super().fetch(kept, device)
        self.fetched_bytes += fetched.nbytes
        self.here += fetched.nbytes
        self.most_here = max(self.most_here, self.here)
        weakref.finalize(fetched, self._leave, fetched.nbytes)
        return fetched

    def _leave(self, nbytes: int) -> None:
        self.here -= nbytes


@dataclass
class Ran:
    """``at_rest``: bytes that autograd keeps for the backward pass outside of ``Away``, weights left out."""

    gradients: dict[str, Tensor]
    at_rest: int
    loss: float


def run(preset: str, recompute: str, precision: str, memory: HostMemory | None) -> Ran:
    spec = small_spec(resolve(load_recipe(preset), None))
    decoder = Decoder(replace(spec.model, layers=LAYERS, width=96))
    initialise(decoder, decoder.spec, 1)
    model = ComputeModel(decoder, PrecisionSpec(precision), recompute, None if memory is None else Away(memory))
    micro, seen = RandomFeed(spec, 12).fetch(0).micro_batches[0], {}
    weights = {p.untyped_storage().data_ptr() for p in decoder.parameters()}

    def noted(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        seen[storage.data_ptr()] = 0 if storage.data_ptr() in weights else storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(noted, lambda x: x):  # of what no block has: theirs stand before
        context = context_of(model, micro, spec.stages[0].rope)
        sums = training_sums(model, torch.from_numpy(micro.tokens_BT), torch.from_numpy(micro.targets_BT), context, 0.0)
    sums.objective_sum.backward()
    gradients = {name: p.grad for name, p in decoder.named_parameters() if p.grad is not None}
    return Ran(gradients, sum(seen.values()), float(sums.nll_sum))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("recompute", RECOMPUTED)
@pytest.mark.parametrize("preset", ["proxy", "deepseek-v3", "gpt2-124m"])
def test_every_gradient_is_the_same_and_all_that_went_came_back_once(preset, recompute, precision):
    plain, told = run(preset, recompute, precision, None), Told()
    away = run(preset, recompute, precision, told)
    assert away.loss == plain.loss
    for name, gradient in plain.gradients.items():
        assert torch.equal(away.gradients[name], gradient), name
    assert told.put_bytes == told.fetched_bytes > 0
    assert told.here == 0, "what was fetched is freed"


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_of_what_blocks_keep_nothing_stays_and_two_blocks_are_here_at_once(recompute):
    plain, told = run("proxy", recompute, "float32", None), Told()
    away = run("proxy", recompute, "float32", told)
    assert told.most_here <= HELD_BLOCKS * told.put_bytes / LAYERS
    if recompute == "none":
        assert plain.at_rest - away.at_rest == pytest.approx(told.put_bytes, rel=0.05)


def test_values_are_those_of_the_host_and_not_of_what_was_left_on_the_device():
    """Where what lies on the host is changed, so are gradients: nothing else was kept."""

    class Zeroed(Told):
        def put(self, x: Tensor, kept: Tensor) -> None:
            super().put(x, kept)
            if kept.is_floating_point():
                kept.zero_()

    plain, away = run("proxy", "none", "float32", None), run("proxy", "none", "float32", Zeroed())
    assert not torch.equal(plain.gradients["layers.0.ffn.down.weight"], away.gradients["layers.0.ffn.down.weight"])
    assert float(away.gradients["layers.0.ffn.down.weight"].abs().max()) == 0


def one_block() -> tuple[Away, torch.nn.Module, Told]:
    told, module = Told(), torch.nn.Linear(64, 64)
    return Away(told), module, told


class Nothing:
    """A context that layers share nothing of, but ``shared``."""

    def __init__(self, *shared: Tensor):
        self._shared = list(shared)

    def tensors(self) -> list[Tensor]:
        return self._shared


def test_weights_and_what_layers_share_stay():
    away, linear, told = one_block()
    x, angles = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64)
    with away.keeping(linear, Nothing(angles)):
        (linear(x) * angles).sum()
    assert told.put_bytes == x.nbytes, "neither the weight nor the angles"


def test_what_shares_memory_goes_once_and_what_was_changed_in_place_goes_anew():
    away, linear, told = one_block()
    x = torch.randn(64, 64, requires_grad=True)
    with away.keeping(linear, Nothing()):
        y = x.exp()  # keeps its result
        z = y.view(-1)[:2048].square().sum() + y.t().square().sum()
    assert told.put_bytes == y.nbytes
    expected = torch.autograd.grad(x.exp().view(-1)[:2048].square().sum() + x.exp().t().square().sum(), x)[0]
    assert torch.equal(torch.autograd.grad(z, x)[0], expected)
    b = torch.ones(64, 64)
    with away.keeping(linear, Nothing()):
        first = x * b
        b.mul_(3)
        second = x * b
    assert torch.equal(torch.autograd.grad((first + second).sum(), x)[0], torch.full((64, 64), 4.0))


def test_memory_of_tensors_that_are_gone_is_not_taken_for_another_tensors():
    """A storage's number is given again once it is free; of what was put away only the copy lives on."""
    away, linear, _ = one_block()
    x, total, expected = torch.ones(64, 64, requires_grad=True), 0, 0
    with away.keeping(linear, Nothing()):
        for factor in range(1, 20):
            total = total + (x * torch.full((64, 64), float(factor))).sum()
            expected += factor
    assert torch.equal(torch.autograd.grad(total, x)[0], torch.full((64, 64), float(expected)))


def test_what_is_not_worth_a_copy_stays():
    away, linear, told = one_block()
    few = LEAST_BYTES // 4 - 1
    x = torch.randn(few, requires_grad=True)
    with away.keeping(linear, Nothing()):
        x.exp().sum()
    assert told.put_bytes == 0


def test_a_backward_pass_that_runs_twice_finds_everything_twice():
    """As schedules that take gradients of weights apart from those of streams do."""
    away, linear, _ = one_block()
    x = torch.randn(64, 64, requires_grad=True)
    with away.keeping(linear, Nothing()):
        y = linear(x).exp().sum()
    first = torch.autograd.grad(y, [x], retain_graph=True)[0]
    second, weight = torch.autograd.grad(y, [x, linear.weight])
    assert torch.equal(first, second)
    plain = torch.autograd.grad(linear(x).exp().sum(), [x, linear.weight])
    assert torch.equal(second, plain[0])
    assert torch.equal(weight, plain[1])


def test_while_a_block_is_at_work_the_one_before_is_on_its_way():
    away, _, told = one_block()
    x = torch.randn(64, 64, requires_grad=True)
    stream, inner = x, []
    for _ in range(3):
        with away.keeping(torch.nn.Linear(1, 1), Nothing()):
            stream = stream.exp()
        inner.append(stream)
    torch.autograd.grad(stream.sum(), inner[1])
    assert told.fetched_bytes == 2 * x.nbytes < told.put_bytes
