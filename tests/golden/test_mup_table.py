"""The table of muP and CompleteP by hand: width and depth times 4, eta 1e-3, decay .1, sigma .02, epsilon 1e-8.

Sources: Yang et al. 2022 (arXiv 2203.03466), table 8, in width; Dey et al. 2025 (arXiv 2505.01618), table 1, in depth.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from headway.recipe.mup import Multipliers, Rule, init_std, is_muon, multipliers, ratios, rule
from headway.recipe.roles import ParameterShape, Role, decays, parameter_shapes
from headway.recipe.spec import ExpertsSpec, LatentSpec, ModelSpec, MupSpec, OptimizerSpec

ETA, DECAY, SIGMA, EPSILON = 1e-3, 0.1, 0.02, 1e-8
BASE_WIDTH, BASE_LAYERS, HEAD = 64, 2, 16

ADAMW = OptimizerSpec(kind="adamw", peak_rate=ETA, beta1=0.9, beta2=0.95, epsilon=EPSILON, weight_decay=DECAY, clip_norm=1.0)
MUON_RMS = replace(ADAMW, kind="muon", matrix_rate=0.02, muon_scale="rms")
MUON_SPECTRAL = replace(MUON_RMS, muon_scale="spectral")


def model(width: int = 256, layers: int = 8, *, mup: MupSpec | None = None, **others: Any) -> ModelSpec:
    """A decoder that has every role: heads of one width, so that a wider one has more of them."""
    plain: dict[str, Any] = {
        "layers": layers,
        "width": width,
        "heads": width // HEAD,
        "kv_heads": width // HEAD // 2,
        "head_width": HEAD,
        "ffn_width": 3 * width,
        "vocabulary": 512,
        "rope_base": 1e4,
        "norm_epsilon": 1e-5,
        "qk_norm": True,
        "tied_embeddings": False,
        "init_std": SIGMA,
        "norm": "layernorm",
        "bias": "all",
        "init": "fixed",
        "experts": ExpertsSpec(experts=8, top_k=2, width=width, shared=1, dense_layers=1, router_bias=True),
        "mup": mup,
    }
    return ModelSpec(**(plain | others))


def completep(alpha: float, **others: Any) -> ModelSpec:
    """Four times as wide and as deep as the base."""
    return model(mup=MupSpec(BASE_WIDTH, BASE_LAYERS, alpha, 1.0), **others)


def shape_of(spec: ModelSpec, name: str) -> ParameterShape:
    return next(shape for shape in parameter_shapes(spec) if shape.name == name)


def rule_of(spec: ModelSpec, name: str, optimizer: OptimizerSpec = ADAMW) -> Rule:
    return rule(shape_of(spec, name), spec, optimizer)


ROWS = {
    # by alpha: name -> init std, rate, decay, epsilon
    1.0: {
        "embed.weight": (0.02, 1e-3, 0, 2.5e-9),
        "head.weight": (0.02, 1e-3, 0, 2.5e-9),
        "norm.weight": (None, 1e-3, 0, 2.5e-9),
        "norm.bias": (0, 1e-3, 0, 2.5e-9),
        "layers.1.attention_norm.weight": (None, 1e-3, 0, 6.25e-10),
        "layers.1.attention.q_norm.weight": (None, 1e-3, 0, 6.25e-10),
        "layers.1.attention.q.bias": (0, 1e-3, 0, 6.25e-10),
        "layers.1.attention.q.weight": (0.01, 2.5e-4, 0.4, 6.25e-10),
        "layers.1.attention.k.weight": (0.01, 2.5e-4, 0.4, 6.25e-10),
        "layers.1.attention.v.weight": (0.01, 2.5e-4, 0.4, 6.25e-10),
        "layers.1.attention.o.weight": (0.01, 2.5e-4, 0.4, 6.25e-10),
        "layers.0.ffn.down.weight": (0.01, 2.5e-4, 0.4, 6.25e-10),
        "layers.1.experts.up.weight": (0.01, 2.5e-4, 0.4, 6.25e-10),
        "layers.1.experts.down.weight": (0.01, 2.5e-4, 0.4, 6.25e-10),
        "layers.1.shared.gate.weight": (0.01, 2.5e-4, 0.4, 6.25e-10),
        "layers.1.router.weight": (0.02, 1e-3, 0.1, 6.25e-10),
    },
    0.5: {
        "embed.weight": (0.02, 1e-3, 0, 2.5e-9),
        "head.weight": (0.02, 1e-3, 0, 2.5e-9),
        "norm.weight": (None, 1e-3, 0, 2.5e-9),
        "norm.bias": (0, 1e-3, 0, 2.5e-9),
        "layers.1.attention_norm.weight": (None, 5e-4, 0, 1.25e-9),
        "layers.1.attention.q_norm.weight": (None, 5e-4, 0, 1.25e-9),
        "layers.1.attention.q.bias": (0, 5e-4, 0, 1.25e-9),
        "layers.1.attention.q.weight": (0.01, 1.25e-4, 0.4, 1.25e-9),
        "layers.1.attention.k.weight": (0.01, 1.25e-4, 0.4, 1.25e-9),
        "layers.1.attention.v.weight": (0.01, 1.25e-4, 0.4, 1.25e-9),
        "layers.1.attention.o.weight": (0.01, 1.25e-4, 0.4, 1.25e-9),
        "layers.0.ffn.down.weight": (0.01, 1.25e-4, 0.4, 1.25e-9),
        "layers.1.experts.up.weight": (0.01, 1.25e-4, 0.4, 1.25e-9),
        "layers.1.experts.down.weight": (0.01, 1.25e-4, 0.4, 1.25e-9),
        "layers.1.shared.gate.weight": (0.01, 1.25e-4, 0.4, 1.25e-9),
        "layers.1.router.weight": (0.02, 5e-4, 0.1, 1.25e-9),
    },
}


@pytest.mark.parametrize(("alpha", "name"), [(alpha, name) for alpha, rows in ROWS.items() for name in rows])
def test_golden_rows(alpha: float, name: str):
    found, (std, rate, decay, epsilon) = rule_of(completep(alpha), name), ROWS[alpha][name]
    assert found.std == (std if std is None else pytest.approx(std, rel=1e-12))
    assert ETA * found.rate == pytest.approx(rate, rel=1e-12)
    assert found.decay == pytest.approx(decay, rel=1e-12)
    assert found.epsilon == pytest.approx(epsilon, rel=1e-12)


@pytest.mark.parametrize(("alpha", "residual"), [(1.0, 0.25), (0.5, 0.5)])
def test_golden_multipliers(alpha: float, residual: float):
    found = multipliers(completep(alpha))
    assert found == Multipliers(residual=residual, logits=0.25, router=0.25, attention=1 / HEAD)
    louder = multipliers(model(mup=MupSpec(BASE_WIDTH, BASE_LAYERS, alpha, 4.0)))
    assert louder == replace(found, attention=4 / HEAD)


def test_every_role_has_a_golden_row():
    """But the balancing bias, which no gradient moves: it begins at zero and does not decay."""
    shapes = {shape.name: shape.role for shape in parameter_shapes(completep(1.0))}
    for rows in ROWS.values():
        assert {shapes[name] for name in rows} == set(Role) - {Role.BALANCE}
    assert rule_of(completep(1.0), "layers.1.router.bias").std == 0.0
    assert not decays(Role.BALANCE)


def test_every_parameter_follows_the_row_of_its_role():
    """By role and place alone: what stands inside blocks, and what outside."""
    for alpha, rows in ROWS.items():
        spec = completep(alpha)
        rules = {(shape.role, shape.in_block): rule(shape, spec, ADAMW) for shape in parameter_shapes(spec) if shape.name in rows}
        for shape in parameter_shapes(spec):
            if shape.role is not Role.BALANCE:
                assert rule(shape, spec, ADAMW) == rules[shape.role, shape.in_block], shape.name


# --- what the tables leave open -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", ROWS)
def test_a_tied_embedding_is_both_rows_and_logits_stay_divided(alpha: float):
    spec = completep(alpha, tied_embeddings=True)
    assert "head.weight" not in {shape.name for shape in parameter_shapes(spec)}
    untied = completep(alpha)
    assert rule_of(spec, "embed.weight") == rule_of(untied, "embed.weight") == rule_of(untied, "head.weight")
    assert multipliers(spec).logits == 0.25


def test_how_many_heads_share_keys_plays_no_part():
    grouped = [completep(1.0, kv_heads=kv_heads) for kv_heads in (1, 4, 16)]
    for part in ("q", "k", "v", "o"):
        found = {rule_of(spec, f"layers.1.attention.{part}.weight") for spec in grouped}
        assert len(found) == 1
    assert len({multipliers(spec) for spec in grouped}) == 1


def test_scores_are_divided_by_the_width_that_they_are_taken_over():
    latent = LatentSpec(query_rank=32, kv_rank=32, nope_width=24, rope_width=8, value_width=12)
    spec = completep(1.0, latent=latent, head_width=32, kv_heads=16, qk_norm=False, bias="none")
    assert multipliers(spec).attention == 1 / 32
    standard = replace(spec, mup=None)
    assert multipliers(standard).attention == pytest.approx(32**-0.5)


def test_heads_for_further_tokens_have_a_block_and_ways_into_it_and_out():
    """What stands around the block is in no branch, so its gradient does not fall with the depth."""
    spec, wide = completep(0.5, mtp_layers=1), completep(1.0, mtp_layers=1)
    assert rule_of(spec, "mtp.0.attention.q.weight") == rule_of(spec, "layers.1.attention.q.weight")
    assert rule_of(spec, "mtp.0.norm.weight") == rule_of(spec, "norm.weight")
    outside, inside = rule_of(spec, "mtp.0.project.weight"), rule_of(wide, "layers.1.attention.q.weight")
    assert (outside.std, outside.rate, outside.decay) == (inside.std, inside.rate, inside.decay), "alpha 1: no depth in rates"
    assert outside.epsilon == rule_of(spec, "norm.weight").epsilon


@pytest.mark.parametrize(
    ("optimizer", "hidden", "router"),
    [
        (ADAMW, (2.5e-4, 0.4), (1e-3, 0.1)),  # / n
        (MUON_RMS, (1e-2, 0.2), (2e-2, 0.1)),  # / sqrt n of .02
        (MUON_SPECTRAL, (2e-2, 0.1), (4e-2, 0.05)),  # the router x sqrt n
    ],
)
def test_rates_of_matrices_by_the_size_of_an_update(optimizer: OptimizerSpec, hidden, router):
    spec = completep(1.0)
    for name, (rate, decay) in (
        ("layers.1.attention.q.weight", hidden),
        ("layers.1.experts.down.weight", hidden),
        ("layers.1.router.weight", router),
    ):
        found = rule_of(spec, name, optimizer)
        assert ETA * found.rate == pytest.approx(rate, rel=1e-12), name
        assert found.decay == pytest.approx(decay, rel=1e-12), name
        assert found.std == rule_of(spec, name).std


def test_muon_takes_the_matrices_of_blocks_and_nothing_else():
    for shape in parameter_shapes(completep(1.0, mtp_layers=1)):
        matrix = shape.in_block and shape.role in (Role.MATRIX, Role.RESIDUAL, Role.ROUTER)
        assert is_muon(shape, MUON_RMS) == matrix, shape.name
        assert not is_muon(shape, ADAMW)
        if not matrix:
            assert rule(shape, completep(1.0), MUON_RMS) == rule(shape, completep(1.0), ADAMW)


@pytest.mark.parametrize("optimizer", [ADAMW, MUON_RMS, MUON_SPECTRAL], ids=["adamw", "rms", "spectral"])
def test_what_decay_takes_of_a_weight_is_the_same_at_every_width(optimizer: OptimizerSpec):
    """rate x decay, with alpha 1 at every depth too."""
    base, wide = model(64, 2, mup=MupSpec(64, 2, 1.0, 1.0)), completep(1.0)
    for small, large in zip(parameter_shapes(base), (shape_of(wide, s.name) for s in parameter_shapes(base)), strict=True):
        one, other = rule(small, base, optimizer), rule(large, wide, optimizer)
        assert one.rate * one.decay == pytest.approx(other.rate * other.decay, rel=1e-12), small.name


@pytest.mark.parametrize("optimizer", [ADAMW, MUON_RMS, MUON_SPECTRAL], ids=["adamw", "rms", "spectral"])
def test_an_update_moves_outputs_as_much_at_every_width(optimizer: OptimizerSpec):
    """The largest change of an output's elements by one update: AdamW's elements are 1 and may all add up along the input; Muon's
    singular values are equal, so a matrix of r rows and c columns changes outputs by sqrt(c / r) times the spectral norm."""
    changes: dict[str, list[float]] = {}
    for width in (64, 256, 1024):
        spec = model(width, 2, mup=MupSpec(64, 2, 1.0, 1.0))
        for name in ("layers.1.attention.q.weight", "layers.1.attention.o.weight", "layers.0.ffn.down.weight"):
            changes.setdefault(name, []).append(output_change(spec, name, optimizer))
        router = output_change(spec, "layers.1.router.weight", optimizer) * multipliers(spec).router
        changes.setdefault("router", []).append(router)
    for name, found in changes.items():
        assert found == pytest.approx([found[0]] * 3, rel=1e-9), name


def output_change(spec: ModelSpec, name: str, optimizer: OptimizerSpec) -> float:
    shape = shape_of(spec, name)
    rows, columns = shape.shape
    if not is_muon(shape, optimizer):
        size = float(columns)
    else:
        norm = 0.2 * math.sqrt(max(rows, columns)) if optimizer.muon_scale == "rms" else math.sqrt(max(1, rows / columns))
        size = norm * math.sqrt(columns / rows)
    return rule(shape, spec, optimizer).rate * size


# --- initial values -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [64, 256, 1024])
def test_fan_in_is_one_over_the_root_of_the_columns_at_every_width(width: int):
    spec = model(width, mup=MupSpec(BASE_WIDTH, BASE_LAYERS, 1.0, 1.0), init="fan-in")
    for shape in parameter_shapes(spec):
        if shape.role in (Role.MATRIX, Role.RESIDUAL):
            assert init_std(shape, spec) == pytest.approx(shape.shape[-1] ** -0.5, rel=1e-12), shape.name
    for name in ("head.weight", "layers.1.router.weight"):  # the base's columns: what follows is divided by n instead
        assert init_std(shape_of(spec, name), spec) == pytest.approx(BASE_WIDTH**-0.5, rel=1e-12)
    assert init_std(shape_of(spec, "embed.weight"), spec) == SIGMA


def test_fan_in_without_mup_is_of_every_matrix_its_own_columns():
    spec = model(256, init="fan-in")
    for shape in parameter_shapes(spec):
        if shape.role in (Role.MATRIX, Role.RESIDUAL, Role.HEAD, Role.ROUTER):
            assert init_std(shape, spec) == pytest.approx(shape.shape[-1] ** -0.5, rel=1e-12), shape.name


def test_depth_scaled_counts_the_layers_of_the_base():
    """What grows with depth beyond the base is left to the residual multiplier."""
    spec = completep(1.0, init="depth-scaled")
    assert init_std(shape_of(spec, "layers.1.attention.o.weight"), spec) == pytest.approx(0.01 / math.sqrt(2 * BASE_LAYERS))
    assert init_std(shape_of(spec, "layers.1.attention.q.weight"), spec) == pytest.approx(0.01)
    standard = model(layers=8, init="depth-scaled")
    assert init_std(shape_of(standard, "layers.1.attention.o.weight"), standard) == pytest.approx(0.02 / math.sqrt(2 * 8))


# --- at the base, and in width alone --------------------------------------------------------------------------------------


@pytest.mark.parametrize("init", ["fixed", "fan-in", "depth-scaled"])
@pytest.mark.parametrize("optimizer", [ADAMW, MUON_RMS, MUON_SPECTRAL], ids=["adamw", "rms", "spectral"])
def test_the_base_is_the_standard_parametrisation_but_for_attention(init: str, optimizer: OptimizerSpec):
    base = model(64, 2, mup=MupSpec(64, 2, 0.5, 1.0), init=init)
    standard = replace(base, mup=None)
    assert ratios(base) == ratios(standard) == (1.0, 1.0)
    for shape in parameter_shapes(base):
        assert rule(shape, base, optimizer) == rule(shape, standard, optimizer), shape.name
    assert multipliers(standard) == Multipliers(residual=1.0, logits=1.0, router=1.0, attention=HEAD**-0.5)
    assert multipliers(base) == replace(multipliers(standard), attention=1 / HEAD)
    as_standard = replace(base, mup=MupSpec(64, 2, 0.5, HEAD**0.5))
    assert multipliers(as_standard).attention == pytest.approx(HEAD**-0.5)


def test_the_standard_parametrisation_is_what_the_recipe_says():
    spec = model(256, 8)
    for shape in parameter_shapes(spec):
        found = rule(shape, spec, ADAMW)
        assert (found.rate, found.epsilon) == (1.0, EPSILON)
        assert found.decay == (DECAY if decays(shape.role) else 0.0)


@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_in_width_alone_depth_changes_nothing(alpha: float):
    """Without base_layers the base is as deep as the model itself, whatever alpha says."""
    for layers in (2, 8):
        spec = model(256, layers, mup=MupSpec(64, layers, alpha, 1.0))
        assert ratios(spec) == (4.0, 1.0)
        assert multipliers(spec).residual == 1.0
        found = rule_of(spec, "layers.1.attention.q.weight")
        assert (found.std, found.rate, found.decay) == (0.01, 0.25, 0.4)
        assert found.epsilon == pytest.approx(2.5e-9)
        assert rule_of(spec, "layers.1.attention_norm.weight").rate == 1.0


def test_a_narrower_model_follows_the_same_rows():
    """n below 1: the target may be smaller than what was tuned."""
    spec = model(32, mup=MupSpec(64, 8, 1.0, 1.0), heads=2, kv_heads=1)
    found = rule_of(spec, "layers.1.attention.q.weight")
    assert (found.rate, found.decay, multipliers(spec).logits) == (2.0, 0.05, 2.0)
