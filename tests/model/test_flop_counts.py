"""The planner's FLOPs against the model: every matrix product of a forward and backward pass counted as it is dispatched.

Attention's products are batched (bmm), all others are not (mm, addmm), so both are counted apart. The planner's conventions
speak of attention that nobody computes: "full" of a whole square or of whole windows, "causal" of the triangle without half
of the diagonal. So attention is counted twice: as a reference whose every query meets as many keys as "full" says, and as
the blocks of ``model/attention.py``, which lie between the two.

What P leaves out, by name: biases of experts, which are added as a product with the one-hot choice of rows (``one_hot_flops``),
and products of a matrix with a vector (gains in the gradients of norms).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import prod

import pytest
import torch
from test_family import BASE, EXPERTS, FAMILY, LATENT, built
from torch.utils._python_dispatch import TorchDispatchMode

from headway.formulas.activations import score_elements
from headway.formulas.flops import Convention, attention_flops_per_token, attention_layers, flops_per_token
from headway.formulas.parameters import count_parameters
from headway.model import grouped_attention, latent_attention
from headway.model.context import Visible, make_context
from headway.model.objective import training_sums
from headway.recipe.spec import ExpertsSpec, ModelSpec

aten = torch.ops.aten
KINDS = {aten.mm: "products", aten.addmm: "products", aten.bmm: "attention"}
UNKNOWN = ("baddbmm", "addbmm", "linear", "matmul", "einsum", "_grouped_mm", "scaled_dot_product")
"""Products that would pass uncounted."""
ROWS, TIME = 2, 48
BLOCKS_TIME = 160  # a whole block of queries and a part of one

MORE = {
    "one kv head": {"kv_heads": 1},
    "experts of a gelu": {"experts": ExpertsSpec(4, 3, 24, dense_layers=2), "ffn": "gelu"},
    "windows and further tokens": {"window": 40, "full_attention_every": 3, "mtp_layers": 2},
    "latent, windows": {**LATENT, "window": 40, "full_attention_every": 2},
    "experts in parallel, further tokens": {"block": "parallel", "experts": EXPERTS, "mtp_layers": 1},
}
CASES = {**FAMILY, **MORE}


def spec_of(name: str) -> ModelSpec:
    spec = replace(BASE, **CASES[name])
    return replace(spec, positions=BLOCKS_TIME) if spec.positions else spec


class Products(TorchDispatchMode):
    """FLOPs by kind: 2 per multiplication and addition."""

    def __init__(self):
        super().__init__()
        self.flops: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket
        assert not str(name).removeprefix("aten.").startswith(UNKNOWN), f"{func} is not counted"
        if name in KINDS:
            left, right = args[1:3] if name is aten.addmm else args[:2]
            kind = KINDS[name] if right.shape[-1] > 1 else "norms"
            self.flops[kind] += 2 * prod(left.shape) * right.shape[-1]
        return func(*args, **(kwargs or {}))


def counted(spec: ModelSpec, compute: str = "float32", rows: int = ROWS, time: int = TIME) -> Counter[str]:
    """Of one micro-batch, forward and backward; each row is one document."""
    model = built(spec, compute)
    position_BT = torch.arange(time).repeat(rows, 1)
    tokens_BT = torch.randint(0, spec.vocabulary, (rows, time), generator=torch.Generator().manual_seed(0))
    context = make_context(position_BT, torch.zeros_like(position_BT), spec, spec.rope, model.dtype)
    with Products() as products:
        sums = training_sums(model, tokens_BT, tokens_BT.roll(-1, 1), context, 1e-3)
        sums.objective_sum.backward()
    del products.flops["norms"]
    return products.flops


def one_hot_flops(spec: ModelSpec) -> int:
    """Per token, of experts' biases: one product forward and one for their gradient, none for the choice."""
    if spec.experts is None or spec.bias != "all":
        return 0
    layers = sum(spec.has_experts(layer) for layer in range(spec.layers)) + spec.mtp_layers * spec.has_experts(spec.layers - 1)
    outputs = (2 if spec.gated else 1) * spec.experts.width + spec.width
    return 4 * layers * spec.experts.top_k * spec.experts.experts * outputs


def attend_full(q_BTHE, k_BTKE, v_BTKV, visible: Visible, softcap: float | None = None):
    """Every query meets its window, or as many keys as a row has: those before the row are zeros and masked."""
    B, T, H, E = q_BTHE.shape
    keys, group = min(visible.window or T, T), H // k_BTKE.shape[2]
    k, v = (torch.nn.functional.pad(x, (0, 0, 0, 0, keys - 1, 0)).unfold(1, keys, 1) for x in (k_BTKE, v_BTKV))  # B T K E keys
    scores = torch.bmm(q_BTHE.reshape(-1, group, E), k.reshape(-1, E, keys))
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    column = torch.arange(T)[:, None] - keys + 1 + torch.arange(keys)
    seen = column >= visible.start_Bs[:, :, None]
    weights = scores.view(B, T, -1, group, keys).masked_fill(~seen[:, :, None, None], -torch.inf).softmax(-1)
    out = torch.bmm(weights.view(-1, group, keys), v.reshape(-1, v.shape[3], keys).mT)
    return out.view(B, T, H, -1)


@pytest.fixture
def full_attention(monkeypatch):
    for module in (grouped_attention, latent_attention):
        monkeypatch.setattr(module, "attend", attend_full)


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_a_pass_costs_what_the_plan_says(full_attention, name, compute):
    """6 P + 6 H (Ek + Ev) keys, in integers: nothing is left but what is named above."""
    spec = spec_of(name)
    flops, tokens = counted(spec, compute), ROWS * TIME
    assert flops["products"] == tokens * (6 * count_parameters(spec).active_in_products + one_hot_flops(spec))
    assert flops["attention"] == tokens * attention_flops_per_token(spec, TIME, Convention.FULL)
    assert flops.total() == tokens * (flops_per_token(spec, TIME, Convention.FULL) + one_hot_flops(spec))


@pytest.mark.parametrize("name", CASES)
def test_the_reference_is_attention(monkeypatch, name):
    spec = spec_of(name)
    tokens_BT = torch.randint(0, spec.vocabulary, (1, 48), generator=torch.Generator().manual_seed(0))
    position_BT = torch.arange(48)[None]
    context = make_context(position_BT, position_BT // 30, spec, spec.rope, torch.float32)
    model = built(spec)
    expected = model.forward(tokens_BT, context)
    for module in (grouped_attention, latent_attention):
        monkeypatch.setattr(module, "attend", attend_full)
    torch.testing.assert_close(model.forward(tokens_BT, context), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_blocks_of_attention_lie_between_causal_and_full(name):
    """Exactly the products of each block of queries with the keys that it meets, and scores once more where they are not kept."""
    spec, tokens = spec_of(name), ROWS * BLOCKS_TIME
    full, windowed = attention_layers(spec)
    elements = full * score_elements(BLOCKS_TIME)[1] + windowed * score_elements(BLOCKS_TIME, spec.window)[1]
    each = 6 * (spec.head_width + spec.value_width)
    again = 2 * spec.head_width if spec.attention_softcap else 0
    assert counted(spec, time=BLOCKS_TIME)["attention"] == ROWS * spec.heads * elements * (each + again)
    once = ROWS * spec.heads * elements * each
    assert tokens * attention_flops_per_token(spec, BLOCKS_TIME, Convention.CAUSAL) < once
    if spec.window is None:  # else the queries of a block meet the windows of all of them
        assert once < tokens * attention_flops_per_token(spec, BLOCKS_TIME, Convention.FULL)


@pytest.mark.parametrize("window", [None, 1, 5, 40, TIME, 2 * TIME])
def test_causal_is_what_the_mask_leaves_to_half_a_diagonal(window):
    """A window of w sees v = min(s, w) keys; half a diagonal is v / 2."""
    spec = replace(BASE, window=window, layers=1)
    position_BT = torch.arange(TIME)[None]
    context = make_context(position_BT, torch.zeros_like(position_BT), spec, spec.rope, torch.float32)
    seen = int(context.visible(window is not None).sees_BsT().sum())
    each = 6 * spec.heads * 2 * spec.head_width
    causal = TIME * attention_flops_per_token(spec, TIME, Convention.CAUSAL)
    assert each * seen == pytest.approx(causal + each * min(window or TIME, TIME) / 2, rel=1e-12)


def test_a_small_model_by_hand(full_attention):
    """2 tokens, D 4, one head of 4, F 8, V 10: P = 4 (4 x 4) + 3 (4 x 8) + 10 x 4 = 200, scores 2 x 2 x 4 and as many with v."""
    spec = replace(BASE, layers=1, width=4, heads=1, kv_heads=1, head_width=4, ffn_width=8, vocabulary=10)
    assert counted(spec, rows=1, time=2) == {"products": 3 * 2 * 200 * 2, "attention": 3 * 2 * (16 + 16)}


def test_each_token_passes_its_experts_whatever_the_loads(full_attention):
    """As many FLOPs where all tokens choose the same experts."""
    spec = replace(BASE, experts=replace(EXPERTS, balance_loss=0.0, z_loss=0.0))
    uneven = replace(spec, init_std=2.0)
    assert counted(spec) == counted(uneven)
    assert count_parameters(spec).idle_experts == 3 * 6 * 3 * 24 * 32  # layers, idle of 8, matrices, F, D


def test_products_outside_the_table_are_noticed():
    with Products(), pytest.raises(AssertionError, match="not counted"):
        torch.baddbmm(torch.zeros(1, 2, 2), torch.ones(1, 2, 2), torch.ones(1, 2, 2))
