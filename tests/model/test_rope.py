"""Rotary angles against arithmetic and transformers; the rotation of a part of a head against autograd."""

import math
from dataclasses import replace

import pytest
import torch

from headway.model.context import make_context
from headway.model.kernels import norm_rotate
from headway.model.rope import angle_table, attention_growth, frequencies
from headway.recipe.spec import LatentSpec, ModelSpec, RopeSpec, YarnSpec

MODEL = ModelSpec(1, 64, 2, 2, 32, 8, 8, 1e4, 1e-5, False, True, 0.1)
LATENT = LatentSpec(query_rank=None, kv_rank=8, nope_width=20, rope_width=12, value_width=16)
ROUNDING_FP64 = 1e-12


# --- frequencies


def test_angles_by_hand():
    """position * base^(-2i/R): base 100, R 4 -> 1 and 0.1 radians per token."""
    cos, sin = angle_table(8, replace(MODEL, rotary_width=4), RopeSpec(100.0))
    angle = torch.arange(8.0)[:, None] * torch.tensor([1.0, 0.1])
    torch.testing.assert_close(cos, angle.cos())
    torch.testing.assert_close(sin, angle.sin())


@pytest.mark.parametrize(
    ("change", "pairs"),
    [
        ({}, 16),
        ({"rotary_width": 8}, 4),
        ({"latent": LATENT}, 6),
    ],
)
def test_the_table_is_half_as_wide_as_what_turns(change, pairs):
    cos, sin = angle_table(4, replace(MODEL, **change), RopeSpec(1e4))
    assert cos.shape == sin.shape == (4, pairs)
    assert cos.dtype == sin.dtype == torch.float32


def test_angles_of_a_million_tokens_are_exact():
    """Python's own double arithmetic. In float32 the product alone would be off by 0.06."""
    cos, _ = angle_table(1 << 20, replace(MODEL, rotary_width=16), RopeSpec(5e5))
    for position in (1_000_003, (1 << 20) - 1):
        expected = [math.cos(position * 5e5 ** (-2 * i / 16)) for i in range(8)]
        assert cos[position].tolist() == pytest.approx(expected, abs=1e-7)


def test_one_table_serves_all_batches():
    assert angle_table(64, MODEL, RopeSpec(1e4))[0] is angle_table(64, MODEL, RopeSpec(1e4))[0]
    assert angle_table(64, MODEL, RopeSpec(1e4))[0] is not angle_table(64, MODEL, RopeSpec(2e4))[0]


YARN = [
    (32, 1.0, 1e4, YarnSpec(4.0, 2048)),
    (128, 1.0, 5e5, YarnSpec(8.0, 8192)),
    (64, 1.0, 1e4, YarnSpec(40.0, 4096)),  # DeepSeek-V3
    (128, 1.0, 1e6, YarnSpec(4.0, 32_768)),  # Qwen3
    (64, 0.5, 1e4, YarnSpec(16.0, 4096)),
    (64, 0.25, 1e5, YarnSpec(2.5, 1000, fast=20.0, slow=2.0)),
    (32, 1.0, 1e4, YarnSpec(4.0, 5)),  # nothing turns once
    (32, 1.0, 1e4, YarnSpec(4.0, 200_000)),  # everything turns more than once
]
"""Head width, part of it that turns, base, YaRN."""


@pytest.mark.parametrize(("width", "part", "base", "yarn"), YARN)
def test_yarn_equals_transformers(width, part, base, yarn):
    rope_utils = pytest.importorskip("transformers.modeling_rope_utils", reason="transformers is not installed")
    from transformers import LlamaConfig

    parameters = {
        "rope_type": "yarn", "rope_theta": base, "factor": yarn.factor, "original_max_position_embeddings": yarn.original,
        "beta_fast": yarn.fast, "beta_slow": yarn.slow, "partial_rotary_factor": part,
    }  # fmt: skip
    config = LlamaConfig(head_dim=width, max_position_embeddings=int(yarn.original * yarn.factor), rope_parameters=parameters)
    theirs, of_cos_and_sin = rope_utils._compute_yarn_parameters(config, "cpu")
    ours = frequencies(int(width * part), RopeSpec(base, yarn))
    torch.testing.assert_close(ours, theirs.double(), rtol=1e-6, atol=0)
    assert attention_growth(RopeSpec(base, yarn)) == pytest.approx(of_cos_and_sin**2)  # theirs: in both q and k


def test_yarn_keeps_fast_pairs_and_stretches_slow_ones():
    """R 64, base 1e4, 2,048 tokens: pair i turns 326 * 1e4^(-i/32) times; 32 turns at pair 8.06, one at 20.1."""
    plain, scaled = (frequencies(64, RopeSpec(1e4, yarn)) for yarn in (None, YarnSpec(4.0, 2048)))
    ratio = plain / scaled
    assert torch.equal(scaled[:9], plain[:9])
    torch.testing.assert_close(ratio[21:], torch.full((11,), 4.0, dtype=torch.float64))
    assert (ratio.diff() >= -ROUNDING_FP64).all()
    assert ratio[14].item() == pytest.approx(1 / (1 + 6 / 13 * (1 / 4 - 1)))  # pairs 8 to 21: 6 of 13 steps


def test_growth_of_scores():
    assert attention_growth(RopeSpec(1e4)) == 1.0
    assert attention_growth(RopeSpec(1e4, YarnSpec(1.0, 2048))) == 1.0
    assert attention_growth(RopeSpec(1e4, YarnSpec(0.5, 2048))) == 1.0
    assert attention_growth(RopeSpec(1e4, YarnSpec(math.e, 2048))) == pytest.approx(1.21)
    assert attention_growth(RopeSpec(1e4, YarnSpec(40.0, 4096))) == pytest.approx(1.3688879**2)


def test_a_context_holds_the_angles_of_its_positions():
    """Any integer dtype; positions of documents restart."""
    rope = RopeSpec(1e4, YarnSpec(4.0, 2048))
    position = torch.tensor([[0, 1, 2, 0, 1], [7, 8, 9, 10, 300]], dtype=torch.int32)
    context = make_context(position, torch.tensor([[0, 0, 0, 1, 1], [0] * 5]), MODEL, rope, torch.bfloat16)
    cos, sin = angle_table(512, MODEL, rope)
    assert context.cos_BsE is not None
    assert context.sin_BsE is not None
    assert torch.equal(context.cos_BsE[:, :, 0], cos[position.long()])
    assert torch.equal(context.sin_BsE[:, :, 0], sin[position.long()])
    assert context.attention_growth == attention_growth(rope)
    assert context.position_BT.dtype == context.document_BT.dtype == torch.int64


@pytest.mark.parametrize("kind", ["learned", "none"])
def test_a_model_without_rope_has_no_angles(kind):
    zeros = torch.zeros(1, 3, dtype=torch.int64)
    context = make_context(zeros, zeros, replace(MODEL, position=kind, positions=8), RopeSpec(1e4), torch.float32)
    assert context.cos_BsE is None
    assert context.sin_BsE is None


# --- rotation of a part


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def angles(pairs: int | None) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    if pairs is None:
        return None, None
    angle = randn(5, 1, pairs, seed=9)
    return angle.cos(), angle.sin()


def textbook(x, gain, cos, sin, epsilon, scale):
    """Norm, complex rotation of the first values, scale."""
    if gain is not None:
        x = x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt() * gain
    if cos is not None:
        half = cos.shape[-1]
        turned = torch.complex(x[..., :half], x[..., half : 2 * half]) * torch.complex(cos, sin)
        x = torch.cat([turned.real, turned.imag, x[..., 2 * half :]], -1)
    return x * scale


@pytest.mark.parametrize("scale", [1.0, 0.3])
@pytest.mark.parametrize("with_norm", [True, False])
@pytest.mark.parametrize("pairs", [5, 4, 3, 1, None])
def test_norm_and_rotation_equal_textbook_operations(pairs, with_norm, scale):
    """Ten values in a head: all turn, a part, none; values and gradients by autograd."""
    x, gain, (cos, sin) = randn(5, 3, 10).requires_grad_(), randn(10, seed=1).requires_grad_(), angles(pairs)
    inputs, grad = (x, gain) if with_norm else (x,), randn(5, 3, 10, seed=4)
    before = grad.clone()

    def results(f):
        out = f(x, gain if with_norm else None, cos, sin, 1e-5, scale)
        return [out, *torch.autograd.grad(out, inputs, grad)]

    for a, b in zip(results(norm_rotate), results(textbook), strict=True):
        torch.testing.assert_close(a, b, atol=ROUNDING_FP64, rtol=ROUNDING_FP64)
    assert torch.equal(grad, before)


@pytest.mark.parametrize("with_norm", [True, False])
@pytest.mark.parametrize("pairs", [4, 2, None])
def test_gradients_by_finite_differences(pairs, with_norm):
    x, gain, (cos, sin) = randn(5, 3, 8).requires_grad_(), randn(8, seed=1).requires_grad_(), angles(pairs)
    if with_norm:
        assert torch.autograd.gradcheck(lambda x, g: norm_rotate(x, g, cos, sin, 1e-5, 0.7), (x, gain))
    else:
        assert torch.autograd.gradcheck(lambda x: norm_rotate(x, None, cos, sin, 1e-5, 0.7), (x,))


@pytest.mark.parametrize("with_norm", [True, False])
@pytest.mark.parametrize("pairs", [4, 2, None])
def test_bfloat16_is_rounded_once(pairs, with_norm):
    """The result in float32, rounded."""
    x, gain = randn(5, 3, 8).bfloat16(), randn(8, seed=1).bfloat16() if with_norm else None
    cos, sin = (None if a is None else a.float() for a in angles(pairs))
    wide = norm_rotate(x.float(), None if gain is None else gain.float(), cos, sin, 1e-5, 0.3)
    assert torch.equal(norm_rotate(x, gain, cos, sin, 1e-5, 0.3), wide.bfloat16())
    assert norm_rotate(x, gain, cos, sin, 1e-5, 0.3).dtype == torch.bfloat16


def test_scores_depend_on_distances_alone():
    """Turned queries and keys at (3, 1) and at (103, 101); half of each head turns, under YaRN."""
    model, rope = replace(MODEL, rotary_width=16), RopeSpec(1e4, YarnSpec(4.0, 64))
    q, k = randn(1, 2, 2, 32), randn(1, 2, 2, 32, seed=1)

    def score(t: int, s: int) -> torch.Tensor:
        context = make_context(torch.tensor([[t, s]]), torch.zeros(1, 2), model, rope, torch.float64)
        turned = [norm_rotate(x, None, context.cos_BsE, context.sin_BsE, 1e-5) for x in (q, k)]
        return (turned[0][:, 0] * turned[1][:, 1]).sum(-1)

    torch.testing.assert_close(score(3, 1), score(103, 101), atol=1e-5, rtol=0)  # cos and sin are float32
    assert (score(3, 1) - score(3, 2)).abs().max() > 1e-2
