"""Routing and experts against a plain loop over tokens, sums and loads by hand, and blocks of transformers.

Shapes: B batch rows, T tokens of a row, D width, X experts, k experts of a token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from headway.model import experts as experts_module
from headway.model.experts import Experts, mixture, product_grouped, product_in_loop
from headway.model.ranks import Ranks
from headway.model.routing import Router, route
from headway.model.tally import LayerLoad, Loads, Tally, balance_biases, update_bias
from headway.recipe.roles import block_shapes
from headway.recipe.spec import ExpertsSpec, ModelSpec, MupSpec

D = 12
REFERENCE_FP32 = {"rtol": 1e-5, "atol": 1e-5}
"""Another order of additions in float32."""


def model(ffn="swiglu", bias="none", mup=None, **options) -> ModelSpec:
    return ModelSpec(
        layers=1, width=D, heads=2, kv_heads=2, head_width=6, ffn_width=8, vocabulary=11, rope_base=1e4, norm_epsilon=1e-5,
        qk_norm=False, tied_embeddings=True, init_std=0.02, ffn=ffn, bias=bias, mup=mup,
        experts=ExpertsSpec(**{"experts": 6, "top_k": 2, "width": 8} | options),
    )  # fmt: skip


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@dataclass
class Layer:
    """Router and experts with values in them, as a block has them."""

    spec: ModelSpec
    router: Router
    experts: Experts

    def __call__(self, x_BTD, tally=None, mask_BT=None, layer="layers.0"):
        return mixture(x_BTD, self.router, self.experts, None if tally is None else tally.of(layer), mask_BT)

    @property
    def parameters(self):
        return dict(nn.ModuleDict({"router": self.router, "experts": self.experts}).named_parameters())

    def gradients(self, y, x):
        """By name; "x" of the input. What got none is zeros."""
        wanted = {"x": x} | {name: p for name, p in self.parameters.items() if p.requires_grad}
        found = torch.autograd.grad(y.sum() if y.dim() == 0 else (y * randn(*y.shape, seed=99, dtype=y.dtype)).sum(),
                                    list(wanted.values()), allow_unused=True, retain_graph=True)  # fmt: skip
        return {name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(wanted.items(), found)}


def layer_of(spec: ModelSpec, dtype=torch.float64, seed=0) -> Layer:
    layer = Layer(spec, Router(spec), Experts(spec))
    with torch.no_grad():
        for i, (name, parameter) in enumerate(sorted(layer.parameters.items())):
            parameter.data = randn(*parameter.shape, seed=100 * seed + i) * (0.1 if name == "router.bias" else 0.5)
            parameter.data = parameter.data.to(dtype)
    return layer


def x_of(rows=3, tokens=7, seed=5, dtype=torch.float64):
    return randn(rows, tokens, D, seed=seed, dtype=dtype).requires_grad_()


# --- the plain loop


def plain_choice(score_X, bias_X, options: ExpertsSpec) -> list[int]:
    value = (score_X if bias_X is None else score_X + bias_X).tolist()
    allowed = range(options.experts)
    if options.groups_per_token:
        size = options.experts // options.groups
        worth = [sum(sorted(value[g * size : (g + 1) * size])[-2:]) for g in range(options.groups)]
        best = sorted(range(options.groups), key=lambda g: (-worth[g], g))[: options.groups_per_token]
        allowed = [i for i in allowed if i // size in best]
    return sorted(allowed, key=lambda i: (-value[i], i))[: options.top_k]


def plain_expert(x_D, experts: Experts, i: int, spec: ModelSpec):
    def project(x, module):
        y = module.weight[i] @ x
        return y if module.bias is None else y + module.bias[i]

    act = {"swiglu": F.silu, "relu2": lambda v: F.relu(v) ** 2}.get(spec.ffn, lambda v: F.gelu(v, approximate="tanh"))
    up = project(x_D, experts.up)
    return project(act(project(x_D, experts.gate)) * up if spec.gated else act(up), experts.down)


def plain_mixture(x_BTD, layer: Layer):
    spec, options, out = layer.spec, layer.spec.experts, []
    for x_D in x_BTD.flatten(0, 1):
        logit_X = layer.router.weight @ x_D
        if layer.router.bias is not None and not options.router_bias:
            logit_X = logit_X + layer.router.bias
        if spec.mup:
            logit_X = logit_X * spec.mup.base_width / spec.width
        score_X = logit_X.softmax(-1) if options.score == "softmax" else logit_X.sigmoid()
        chosen = plain_choice(score_X.detach(), layer.router.bias if options.router_bias else None, options)
        total = sum(score_X[i] for i in chosen) if options.normalise else 1.0
        out.append(sum(score_X[i] / total * options.scale * plain_expert(x_D, layer.experts, i, spec) for i in chosen))
    return torch.stack(out).view_as(x_BTD)


CASES = {
    "softmax": {},
    "sigmoid": {"score": "sigmoid"},
    "not normalised": {"normalise": False},
    "sigmoid, not normalised, scaled": {"score": "sigmoid", "normalise": False, "scale": 2.5},
    "groups": {"score": "sigmoid", "router_bias": True, "groups": 3, "groups_per_token": 2, "scale": 2.5, "top_k": 3},
    "groups of one": {"groups": 6, "groups_per_token": 3},
    "balancing bias": {"router_bias": True},
    "all biases": {"bias": "all"},
    "all biases, no gate": {"bias": "all", "ffn": "gelu"},
    "all biases, balancing": {"bias": "all", "router_bias": True},
    "gelu": {"ffn": "gelu"},
    "relu2": {"ffn": "relu2"},
    "geglu": {"ffn": "geglu"},
    "all experts": {"top_k": 6},
    "one expert": {"experts": 1, "top_k": 1},
    "one of many": {"experts": 64, "top_k": 1},
    "muP": {"mup": MupSpec(base_width=4, base_layers=1, depth_alpha=1.0, attention_multiplier=1.0)},
}


@pytest.mark.parametrize("case", CASES)
def test_equals_a_loop_over_tokens(case):
    layer, x = layer_of(model(**CASES[case])), x_of()
    got, wanted = layer(x), plain_mixture(x, layer)
    torch.testing.assert_close(got, wanted)
    gradients, reference = layer.gradients(got, x), layer.gradients(wanted, x)
    for name in reference:
        torch.testing.assert_close(gradients[name], reference[name], msg=lambda m, name=name: f"{name}: {m}")


def test_experts_without_tokens_give_nothing_and_get_zeros():
    spec = model(router_bias=True)
    layer, x = layer_of(spec), x_of()
    with torch.no_grad():
        layer.router.bias.copy_(torch.tensor([-9.0, 0, 0, 0, -9.0, -9.0]))
    got, wanted = layer(x), plain_mixture(x, layer)
    torch.testing.assert_close(got, wanted)
    gradients, reference = layer.gradients(got, x), layer.gradients(wanted, x)
    for name in reference:
        torch.testing.assert_close(gradients[name], reference[name])
    assert gradients["experts.up.weight"][[0, 4, 5]].count_nonzero() == 0
    assert gradients["experts.up.weight"][[1, 2, 3]].count_nonzero() > 0


def test_parameters_are_those_of_the_table():
    for options in ({}, {"bias": "all"}, {"router_bias": True}, {"ffn": "gelu", "bias": "all", "router_bias": True}):
        spec = model(**options)
        table = {s.name: s.shape for s in block_shapes(spec, "", True) if s.name.startswith(("router.", "experts."))}
        assert {name: tuple(p.shape) for name, p in layer_of(spec).parameters.items()} == table


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_grouped_kernel_equals_the_loop(dtype, monkeypatch):
    """Sizes that it takes; it runs on a CPU too. The last expert and one between have no rows."""
    ends = torch.tensor([4, 4, 30, 30], dtype=torch.int32)
    x, weight = randn(30, 16).to(dtype).requires_grad_(), randn(4, 24, 16, seed=1).to(dtype).requires_grad_()
    upstream = randn(30, 24, seed=2).to(dtype)
    results = []
    for way in (product_in_loop, product_grouped):
        y = way(x, weight, ends)
        results.append((y, *torch.autograd.grad(y, (x, weight), upstream)))
    for loop, grouped in zip(*results):
        torch.testing.assert_close(loop, grouped)


def test_a_layer_runs_and_learns_through_the_grouped_kernel(monkeypatch):
    """Gradients arrive in a layout that it takes."""
    spec = replace(model(width=16, bias="all"), width=16)
    layer, x = layer_of(spec, torch.float32), randn(2, 9, 16, dtype=torch.float32).requires_grad_()
    loop = layer.gradients(layer(x), x)
    monkeypatch.setattr(experts_module, "product_in_loop", product_grouped)
    for name, gradient in layer.gradients(layer(x), x).items():
        torch.testing.assert_close(gradient, loop[name], **REFERENCE_FP32)


def test_results_repeat_bit_for_bit():
    layer, x = layer_of(model(experts=4, top_k=4), torch.float32), x_of(4, 33, dtype=torch.float32)
    first, second = (layer.gradients(layer(x), x) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_token_does_not_feel_the_others_of_its_batch():
    layer, x = layer_of(model()), x_of()
    torch.testing.assert_close(layer(x)[1:2], layer(x[1:2]), rtol=1e-12, atol=1e-12)


def test_flops_are_those_of_chosen_experts():
    layer, x = layer_of(model(), torch.float32), x_of(dtype=torch.float32)
    with FlopCounterMode(display=False) as counter:
        layer(x).sum().backward()
    tokens, k, inner = 21, 2, 8
    assert counter.get_total_flops() == 3 * 2 * tokens * (6 * D + k * 3 * D * inner)


# --- choosing


def test_equal_scores_are_chosen_by_their_number():
    layer = layer_of(model(experts=64, top_k=5))
    layer.router.weight.data.zero_()
    choice_BTk = route(x_of(), layer.router, layer.spec).choice_BTk
    assert torch.equal(choice_BTk, torch.arange(5).expand_as(choice_BTk))


def test_a_bias_of_balancing_chooses_and_does_not_weigh():
    layer, x = layer_of(model(router_bias=True, normalise=False)), x_of()
    layer.router.bias.data.copy_(torch.tensor([5.0, 5.0, 0, 0, 0, 0]))
    routing = route(x, layer.router, layer.spec)
    assert set(routing.choice_BTk.unique().tolist()) == {0, 1}
    assert torch.equal(routing.weight_BTk, routing.logits_BTX.softmax(-1).gather(-1, routing.choice_BTk))
    layer(x).sum().backward()
    assert layer.router.bias.grad is None


def test_routers_compute_in_float32():
    """Two experts that bfloat16 cannot tell apart: the sum that makes them differ is not rounded."""
    spec = model(experts=2, top_k=1, normalise=False)
    layer, x = layer_of(spec, torch.bfloat16), torch.ones(1, 1, D, dtype=torch.bfloat16)
    layer.router.weight.data.zero_()
    layer.router.weight.data[:, 0] = 8.0
    layer.router.weight.data[1, 1] = 2.0**-9
    routing = route(x, layer.router, spec)
    assert routing.choice_BTk.item() == 1
    assert routing.weight_BTk.dtype == torch.float32
    assert layer(x).dtype == torch.bfloat16


def test_bfloat16_is_near_float32():
    """Products of the same rounded values: a few units of bfloat16 relative to the largest."""
    narrow, x = layer_of(model(), torch.bfloat16), x_of(dtype=torch.float32).detach().bfloat16()
    wide = layer_of(model(), torch.bfloat16)
    for p in wide.parameters.values():
        p.data = p.data.float()
    reference = wide(x.float())
    assert (narrow(x).float() - reference).abs().max() < 4 * 2**-8 * reference.abs().max()


# --- sums of a micro-batch


LOSSES = {"balance_loss": 0.3, "z_loss": 0.7}


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_sums_against_their_formulas(score):
    layer, x = layer_of(model(score=score, **LOSSES)), x_of(rows=2, tokens=5)
    tally = Tally(layer.spec)
    layer(x, tally)
    balance, z, k, X, T = 0.0, 0.0, 2, 6, 5
    for x_TD in x:
        logits_TX = x_TD @ layer.router.weight.T
        scores_TX = logits_TX.softmax(-1) if score == "softmax" else logits_TX.sigmoid()
        for i in range(X):
            sent = sum(i in plain_choice(scores_X, None, layer.spec.experts) for scores_X in scores_TX.detach())
            f = X / (k * T) * sent
            P = sum(scores_X[i] / scores_X.sum() for scores_X in scores_TX) / T
            balance = balance + T * f * P
        z = z + sum(torch.log(logits_X.exp().sum()) ** 2 for logits_X in logits_TX)
    torch.testing.assert_close(tally.balance_sum, balance)
    torch.testing.assert_close(tally.z_sum, z)
    objective = 0.3 * balance + 0.7 * z
    torch.testing.assert_close(tally.objective_sum(), objective)
    got, wanted = layer.gradients(tally.objective_sum(), x), layer.gradients(objective, x)
    for name in wanted:
        torch.testing.assert_close(got[name], wanted[name])


def test_even_loads_cost_one_per_token():
    layer, tally = layer_of(model(top_k=6)), Tally(model(top_k=6, balance_loss=1.0))
    layer(x_of(2, 5), tally)
    torch.testing.assert_close(tally.objective_sum().item(), 10.0)


def test_splitting_a_batch_changes_nothing():
    layer, x = layer_of(model(**LOSSES)), x_of(rows=6)
    whole = Tally(layer.spec)
    layer(x, whole)
    gradients = layer.gradients(whole.objective_sum() / x[..., 0].numel(), x)
    loads, objective, summed = Loads(), 0.0, None
    for rows in (slice(0, 1), slice(1, 4), slice(4, 6)):
        part = Tally(layer.spec)
        layer(x[rows], part)
        share = part.objective_sum() / x[..., 0].numel()
        found = layer.gradients(share, x)
        summed = found if summed is None else {name: summed[name] + found[name] for name in found}
        objective += share.item()
        loads.add(part)
    torch.testing.assert_close(objective, (whole.objective_sum() / x[..., 0].numel()).item(), rtol=1e-12, atol=0)
    assert torch.equal(loads.counts["layers.0"], whole.counts["layers.0"])
    for name in gradients:
        torch.testing.assert_close(summed[name], gradients[name], rtol=1e-10, atol=1e-14)


class Half(Ranks):
    """One of two ranks that share rows: it knows the loads of both."""

    def __init__(self, counts_BX):
        self.counts_BX = counts_BX

    def row_sum(self, x_B):
        return self.counts_BX


def test_splitting_rows_over_ranks_changes_nothing():
    """Each rank adds the terms of its own tokens, with loads of the whole row."""
    layer, x = layer_of(model(**LOSSES)), x_of(rows=2, tokens=6)
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]]).bool()
    whole, sums, loads = Tally(layer.spec), [], Loads()
    layer(x, whole, mask)
    chosen = F.one_hot(route(x, layer.router, layer.spec).choice_BTk, 6).sum(2) * mask[..., None]
    for part in (slice(0, 3), slice(3, 6)):
        tally = Tally(layer.spec)
        tally.of("layers.0").record(route(x[:, part], layer.router, layer.spec), mask[:, part], Half(chosen.sum(1)))
        sums.append(tally.objective_sum())
        loads.add(tally)
    torch.testing.assert_close(sum(sums), whole.objective_sum())
    assert torch.equal(loads.counts["layers.0"], whole.counts["layers.0"])
    got, wanted = layer.gradients(sum(sums), x), layer.gradients(whole.objective_sum(), x)
    for name in wanted:
        torch.testing.assert_close(got[name], wanted[name])


def test_layers_add_up():
    first, second, x = layer_of(model(**LOSSES)), layer_of(model(**LOSSES), seed=1), x_of()
    both = Tally(first.spec)
    alone = [Tally(first.spec), Tally(first.spec)]
    for layer, name, own in ((first, "layers.1", alone[0]), (second, "mtp.0", alone[1])):
        layer(x, both, layer=name)
        layer(x, own, layer=name)
    torch.testing.assert_close(both.objective_sum(), alone[0].objective_sum() + alone[1].objective_sum())
    assert list(both.counts) == ["layers.1", "mtp.0"]


def test_masked_tokens_do_not_count():
    layer, x = layer_of(model(**LOSSES)), x_of(rows=2, tokens=6)
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]]).bool()
    got, short, full = Tally(layer.spec), Tally(layer.spec), Tally(layer.spec)
    y = layer(x, got, mask)
    layer(x[:1, :4], short)
    layer(x[1:], full)
    torch.testing.assert_close(got.objective_sum(), short.objective_sum() + full.objective_sum())
    assert torch.equal(got.counts["layers.0"], short.counts["layers.0"] + full.counts["layers.0"])
    assert torch.equal(y, layer(x)), "they pass all the same"


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_masked_tokens_that_are_not_finite_leave_sums_and_gradients_alone(bad):
    layer, x = layer_of(model(**LOSSES)), x_of(rows=2, tokens=6)
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0]]).bool()
    routing, tallies = route(x, layer.router, layer.spec), (Tally(layer.spec), Tally(layer.spec))
    logits = torch.where(mask[..., None], routing.logits_BTX.detach(), bad).requires_grad_()
    tallies[0].of("a").record(replace(routing, logits_BTX=logits, scores_BTX=logits.softmax(-1)), mask)
    tallies[1].of("a").record(replace(routing, choice_BTk=routing.choice_BTk), mask)
    torch.testing.assert_close(tallies[0].objective_sum(), tallies[1].objective_sum())
    tallies[0].objective_sum().backward()
    assert logits.grad.isfinite().all()
    assert logits.grad[~mask].count_nonzero() == 0


def test_a_loss_without_weight_is_not_in_the_objective():
    layer, x = layer_of(model()), x_of(rows=1)
    routing, tally = route(x, layer.router, layer.spec), Tally(layer.spec)
    tally.of("a").record(replace(routing, logits_BTX=torch.full_like(routing.logits_BTX, torch.inf)))
    assert tally.objective_sum().item() == 0.0
    assert Tally(layer.spec).objective_sum().item() == 0.0


def test_computing_a_layer_again_counts_it_once():
    layer, x = layer_of(model(**LOSSES)), x_of()
    once, twice = Tally(layer.spec), Tally(layer.spec)
    gradients = layer.gradients(layer(x, once).sum() + once.objective_sum(), x)
    y = checkpoint(layer, x, twice, use_reentrant=False)
    found = layer.gradients(y.sum() + twice.objective_sum(), x)
    layer(x, twice)  # as a whole layer would be, were more than its gradients needed
    loads = Loads()
    loads.add(twice)
    assert torch.equal(loads.counts["layers.0"], once.counts["layers.0"])
    assert loads.counts["layers.0"].sum() == 2 * 21
    for name in gradients:
        torch.testing.assert_close(found[name], gradients[name])


# --- loads of a step


def loads_of(**counts) -> Loads:
    loads = Loads()
    loads.counts = {name: torch.tensor(values) for name, values in counts.items()}
    return loads


def test_the_bias_moves_by_its_rate_against_the_load():
    bias, loads = torch.zeros(4), loads_of(a=[10, 2, 4, 0])
    update_bias({"a": bias}, loads, 0.25)
    assert bias.tolist() == [-0.25, 0.25, 0.0, 0.25]


def test_loads_of_all_ranks_are_those_of_each_layer():
    loads = loads_of(a=[1, 2], b=[3, 4])
    loads.sum_over(lambda counts_LX: 10 * counts_LX)
    assert {layer: counts.tolist() for layer, counts in loads.counts.items()} == {"a": [10, 20], "b": [30, 40]}
    empty = Loads()
    empty.sum_over(lambda counts_LX: pytest.fail("a model without routers has nothing to sum"))
    assert empty.counts == {}


def test_the_bias_moves_once_per_step_whatever_the_micro_batches():
    spec = model(router_bias=True)
    layer, x = layer_of(spec), x_of(rows=6)
    before, results = layer.router.bias.clone(), []
    for parts in (1, 2, 6):
        layer.router.bias.data.copy_(before)
        loads = Loads()
        for x_part in x.chunk(parts):
            tally = Tally(spec)
            layer(x_part, tally)
            assert torch.equal(layer.router.bias, before), "not within a step"
            loads.add(tally)
        update_bias({"layers.0": layer.router.bias}, loads, 0.1)
        results.append(layer.router.bias.clone())
        assert loads.counts == {}, "the next step starts from nothing"
    assert all(torch.equal(result, results[0]) for result in results)
    torch.testing.assert_close((results[0] - before).abs().max().item(), 0.1)


def test_a_bias_without_loads_is_our_own_bug():
    with pytest.raises(AssertionError, match="b"):
        update_bias({"a": torch.zeros(2), "b": torch.zeros(2)}, loads_of(a=[1, 0]), 0.1)


def test_layers_without_experts_stop_nobody():
    spec = model(router_bias=True)
    blocks = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(2, 2), nn.Module(), nn.Linear(2, 2), nn.Module()])})
    for i in (1, 3):
        blocks["layers"][i].router = layer_of(spec).router
        blocks["layers"][i].router.bias.data.zero_()
    biases = balance_biases(blocks)
    assert list(biases) == ["layers.1", "layers.3"]
    update_bias(biases, loads_of(**{"layers.1": [6, 0, 0, 0, 0, 0], "layers.3": [0, 0, 0, 0, 0, 6]}), 0.5)
    assert biases["layers.1"].tolist() == [-0.5, 0.5, 0.5, 0.5, 0.5, 0.5]
    assert biases["layers.3"].tolist() == [0.5, 0.5, 0.5, 0.5, 0.5, -0.5]
    assert biases["layers.3"] is blocks["layers"][3].router.bias
    assert balance_biases(layer_of(model(bias="all")).router) == {}, "a learned bias is none of balancing"


def test_loads_even_out_under_a_skewed_router():
    spec = model(router_bias=True, score="sigmoid")
    layer, history = layer_of(spec), []
    layer.router.bias.data.zero_()
    layer.router.weight.data[:, 0] += torch.linspace(2, -2, 6, dtype=torch.float64)
    for step in range(100):
        loads, tally = Loads(), Tally(spec)
        with torch.no_grad():
            layer(randn(8, 32, D, seed=step) + F.one_hot(torch.tensor(0), D), tally)
        loads.add(tally)
        history.append(loads.statistics()["layers.0"].largest)
        update_bias({"layers.0": layer.router.bias}, loads, 0.02)
    assert sum(history[:5]) / 5 > 1.7
    assert sum(history[-20:]) / 20 < 1.25


def test_statistics_by_hand():
    """Mean load 4; beyond it 6 of 16 pairs; beyond 5: 5."""
    found = loads_of(a=[10, 2, 4, 0], b=[4, 4, 4, 4]).statistics()
    assert found["a"] == LayerLoad(largest=2.5, idle=0.25, dropped_at_1=6 / 16, dropped_at_1_25=5 / 16)
    assert found["b"] == LayerLoad(largest=1.0, idle=0.0, dropped_at_1=0.0, dropped_at_1_25=0.0)
    assert loads_of(a=[0, 0]).statistics()["a"].largest == 0.0
    assert Loads().statistics() == {}


# --- transformers


def copy_into(block, layer: Layer) -> None:
    with torch.no_grad():
        block.gate.weight.copy_(layer.router.weight)
        block.experts.gate_up_proj.copy_(torch.cat([layer.experts.gate.weight, layer.experts.up.weight], 1))
        block.experts.down_proj.copy_(layer.experts.down.weight)


def assert_equals(block, layer: Layer, shared=None) -> None:
    x = x_of(2, 9, dtype=torch.float32)
    wanted = block(x)
    got = layer(x) if shared is None else layer(x) + shared(x)
    torch.testing.assert_close(got, wanted, **REFERENCE_FP32)
    upstream = randn(*wanted.shape, seed=99, dtype=torch.float32)
    reference = torch.autograd.grad(wanted, (x, block.gate.weight, block.experts.gate_up_proj, block.experts.down_proj), upstream)
    found = layer.gradients(got, x)
    gate_up = torch.cat([found["experts.gate.weight"], found["experts.up.weight"]], 1)
    for ours, theirs in zip((found["x"], found["router.weight"], gate_up, found["experts.down.weight"]), reference):
        torch.testing.assert_close(ours, theirs, **REFERENCE_FP32)


def test_equals_mixtral_of_transformers():
    modeling = pytest.importorskip("transformers.models.mixtral.modeling_mixtral", reason="transformers is not installed")
    config = modeling.MixtralConfig(hidden_size=D, intermediate_size=8, num_local_experts=6, num_experts_per_tok=2)
    config._experts_implementation = "eager"
    layer, block = layer_of(model(), torch.float32), modeling.MixtralSparseMoeBlock(config)
    copy_into(block, layer)
    assert_equals(block, layer)


def test_equals_deepseek_v3_of_transformers():
    modeling = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3", reason="transformers is not installed")
    config = modeling.DeepseekV3Config(
        hidden_size=D, moe_intermediate_size=8, n_routed_experts=12, num_experts_per_tok=3, n_group=4, topk_group=2,
        n_shared_experts=2, routed_scaling_factor=2.5, norm_topk_prob=True,
    )  # fmt: skip
    config._experts_implementation = "eager"
    options = {"experts": 12, "top_k": 3, "groups": 4, "groups_per_token": 2, "scale": 2.5, "shared": 2}
    layer = layer_of(model(score="sigmoid", router_bias=True, **options), torch.float32)
    block = modeling.DeepseekV3MoE(config)
    for parameter in block.shared_experts.parameters():
        parameter.data.normal_(std=0.3, generator=torch.Generator().manual_seed(3))
    copy_into(block, layer)
    block.gate.e_score_correction_bias.copy_(layer.router.bias)
    assert_equals(block, layer, block.shared_experts)
