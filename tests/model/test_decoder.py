"""The decoder against the table of roles, and attention against the plainest possible reference."""

import math

import pytest
import torch
import torch.nn.functional as F
from model_cases import plain_context

from headway.model import attention
from headway.model.attention import attend
from headway.model.decoder import Decoder
from headway.model.init import initialise
from headway.recipe.roles import parameter_shapes
from headway.recipe.spec import ModelSpec

ROUNDING_FP32 = 2e-5
"""Relative to values of order one: a few hundred float32 roundings in another order."""


def model_spec(**changes) -> ModelSpec:
    values = {
        "layers": 2, "width": 32, "heads": 4, "kv_heads": 2, "head_width": 8, "ffn_width": 48, "vocabulary": 61,
        "rope_base": 10_000.0, "norm_epsilon": 1e-5, "qk_norm": True, "tied_embeddings": True, "init_std": 0.1,
    }  # fmt: skip
    return ModelSpec(**{**values, **changes})


def ready(spec: ModelSpec, seed: int = 3) -> Decoder:
    model = Decoder(spec)
    initialise(model, spec, seed)
    return model


def documents(*rows: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows as lists of document lengths -> position_BT, document_BT."""
    position = [[p for n in row for p in range(n)] for row in rows]
    document = [[i for i, n in enumerate(row) for _ in range(n)] for row in rows]
    return torch.tensor(position), torch.tensor(document)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("qk_norm", [True, False])
def test_parameters_are_exactly_the_table_of_roles(tied, qk_norm):
    spec = model_spec(tied_embeddings=tied, qk_norm=qk_norm)
    with torch.device("meta"):
        model = Decoder(spec)
    found = [(name, tuple(p.shape)) for name, p in model.named_parameters()]
    assert found == [(p.name, p.shape) for p in parameter_shapes(spec)]


def reference_attention(q, k, v, document):
    """Token by token, in float64."""
    out = torch.zeros_like(q, dtype=torch.float64)
    group = q.shape[2] // k.shape[2]
    for b in range(q.shape[0]):
        for t in range(q.shape[1]):
            seen = [s for s in range(t + 1) if document[b, s] == document[b, t]]
            for h in range(q.shape[2]):
                keys, values = k[b, seen, h // group].double(), v[b, seen, h // group].double()
                weights = (keys @ q[b, t, h].double() / math.sqrt(q.shape[3])).softmax(0)
                out[b, t, h] = weights @ values
    return out


LAYOUTS = {
    "one document per row": ([12], [12], [12]),
    "cut rows among whole ones": ([12], [5, 7], [12]),
    "the last token alone": ([11, 1], [12], [1, 11]),
    "many short documents": ([1] * 12, [2] * 6, [3, 1, 3, 1, 4]),
    "masked rows among others": ([1] * 12, [12], [6, 6], [1] * 10 + [2]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_attention_equals_the_reference_within_each_document(layout):
    position, document = documents(*LAYOUTS[layout])
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(len(position), 12, h, 8, generator=generator) for h in (4, 2, 2))
    c = plain_context(position, document, 1e4, 8, torch.float32)
    found, expected = attend(q / math.sqrt(8), k, v, c.full).double(), reference_attention(q, k, v, document)
    torch.testing.assert_close(found, expected, atol=ROUNDING_FP32, rtol=ROUNDING_FP32)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_attention_gradients_equal_masked_softmax(layout):
    position, document = documents(*LAYOUTS[layout])
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(len(position), 12, h, 8, generator=generator).requires_grad_() for h in (4, 2, 2))
    grad = torch.randn(q.shape, generator=generator)
    c = plain_context(position, document, 1e4, 8, torch.float32)
    ours = torch.autograd.grad(attend(q / math.sqrt(8), k, v, c.full), (q, k, v), grad)
    sees = (document[:, :, None] == document[:, None, :]).tril()[:, None]
    kg, vg = (x.repeat_interleave(2, 2) for x in (k, v))
    scores = torch.einsum("bthe,bshe->bhts", q, kg) / math.sqrt(8)
    out = torch.einsum("bhts,bshe->bthe", scores.masked_fill(~sees, -math.inf).softmax(-1), vg)
    for a, b in zip(ours, torch.autograd.grad(out, (q, k, v), grad), strict=True):
        torch.testing.assert_close(a, b, atol=ROUNDING_FP32, rtol=ROUNDING_FP32)


def test_packed_documents_equal_each_document_alone():
    spec = model_spec()
    model, lengths = ready(spec), [5, 9, 1, 17]
    tokens = torch.randint(0, 61, (1, 32), generator=torch.Generator().manual_seed(1))
    position, document = documents(lengths)
    packed = model(tokens, plain_context(position, document, 1e4, 8, torch.float32))
    start = 0
    for n in lengths:
        p, d = documents([n])
        alone = model(tokens[:, start : start + n], plain_context(p, d, 1e4, 8, torch.float32))
        torch.testing.assert_close(packed[:, start : start + n], alone, atol=ROUNDING_FP32, rtol=ROUNDING_FP32)
        start += n


@pytest.mark.parametrize("row", [[16, 16], [2] * 16])
def test_nothing_leaks_across_documents_or_from_the_future(row):
    spec = model_spec()
    model = ready(spec)
    tokens = torch.randint(0, 61, (2, 32), generator=torch.Generator().manual_seed(1))
    c = plain_context(*documents(row, [32]), 1e4, 8, torch.float32)
    changed = tokens.clone()
    changed[:, 15] = (changed[:, 15] + 1) % 61  # the last token of a document in row 0, a middle one in row 1
    before, after = model(tokens, c), model(changed, c)
    assert torch.equal(before[0, 16:], after[0, 16:])
    assert torch.equal(before[:, :15], after[:, :15])
    assert not torch.equal(before[1, 16:], after[1, 16:])


def test_positions_restart_and_matter():
    """Rotary angles are relative: a shifted document is the same, a stretched one is not."""
    spec = model_spec()
    model = ready(spec)
    tokens = torch.randint(0, 61, (1, 16), generator=torch.Generator().manual_seed(1))
    position, document = documents([16])
    plain = model(tokens, plain_context(position, document, 1e4, 8, torch.float32))
    shifted = model(tokens, plain_context(position + 100, document, 1e4, 8, torch.float32))
    stretched = model(tokens, plain_context(position * 2, document, 1e4, 8, torch.float32))
    other_base = model(tokens, plain_context(position, document, 5e5, 8, torch.float32))
    torch.testing.assert_close(plain, shifted, atol=1e-4, rtol=1e-4)  # angles of 100 x 1.0 rad: float32 cos differs by 4e-6
    assert (plain - stretched).abs().max() > 1e-3
    assert (plain - other_base).abs().max() > 1e-3


def test_rotation_is_the_published_one():
    """x e^(i t theta) on pairs (i, i + E/2), as in Llama checkpoints."""
    c = plain_context(torch.tensor([[0, 1, 7]]), torch.zeros(1, 3), 100.0, 4, torch.float32)
    theta = torch.tensor([1.0, 100.0 ** (-0.5)])
    angle = torch.tensor([0.0, 1.0, 7.0])[:, None] * theta
    torch.testing.assert_close(c.cos_BsE[0, :, 0], angle.cos())
    torch.testing.assert_close(c.sin_BsE[0, :, 0], angle.sin())


def test_whole_decoder_equals_plain_torch():
    """The same mathematics from textbook operations, layer by layer."""
    spec = model_spec(tied_embeddings=False)
    model = ready(spec)
    tokens = torch.randint(0, 61, (3, 12), generator=torch.Generator().manual_seed(1))
    position, document = documents([12], [4, 8], [12])
    ours = model(tokens, plain_context(position, document, 1e4, 8, torch.float32))
    torch.testing.assert_close(ours, plain_decoder(model, tokens, position, document), atol=ROUNDING_FP32, rtol=ROUNDING_FP32)


def plain_decoder(model, tokens, position, document):
    spec, W = model.spec, dict(model.named_parameters())
    sees = (document[:, :, None] == document[:, None, :]).tril()[:, None]
    theta = spec.rope_base ** (-torch.arange(0, 8, 2) / 8)
    turn = torch.polar(torch.tensor(1.0), position[..., None] * theta)[:, :, None]

    def rope(x):
        y = torch.complex(x[..., :4].contiguous(), x[..., 4:].contiguous()) * turn
        return torch.cat([y.real, y.imag], -1)

    x = W["embed.weight"][tokens]
    for i in range(spec.layers):
        at = f"layers.{i}."
        h = F.rms_norm(x, (32,), W[at + "attention_norm.weight"], 1e-5)
        q, k, v = ((h @ W[f"{at}attention.{n}.weight"].T).unflatten(-1, (-1, 8)) for n in "qkv")
        q = rope(F.rms_norm(q, (8,), W[at + "attention.q_norm.weight"], 1e-5))
        k = rope(F.rms_norm(k, (8,), W[at + "attention.k_norm.weight"], 1e-5))
        k, v = (y.repeat_interleave(2, 2).transpose(1, 2) for y in (k, v))
        a = (q.transpose(1, 2) @ k.mT / math.sqrt(8)).masked_fill(~sees, -math.inf).softmax(-1) @ v
        x = x + a.transpose(1, 2).flatten(-2) @ W[at + "attention.o.weight"].T
        h = F.rms_norm(x, (32,), W[at + "ffn_norm.weight"], 1e-5)
        x = x + (F.silu(h @ W[at + "ffn.gate.weight"].T) * (h @ W[at + "ffn.up.weight"].T)) @ W[at + "ffn.down.weight"].T
    return F.rms_norm(x, (32,), W["norm.weight"], 1e-5)


@pytest.mark.parametrize("kept", [0, 1 << 30])
@pytest.mark.parametrize(("queries", "scores"), [(4, 1), (8, 1 << 20), (5, 300)])
@pytest.mark.parametrize("row", [[40], [7, 19, 14], [1, 33, 6]])
def test_blocks_change_nothing_but_rounding(monkeypatch, row, queries, scores, kept):
    """Blocks of queries, chunks of rows, skipped keys, kept or recomputed weights: all the same attention."""
    position, document = documents(row, [40], row)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(3, 40, h, 8, generator=generator, dtype=torch.float64).requires_grad_() for h in (4, 2, 2))
    c = plain_context(position, document, 1e4, 8, torch.float64)
    expected = attend(q, k, v, c.full)
    gradients = torch.autograd.grad(expected.square().sum(), (q, k, v))
    for name, value in (("BLOCK_QUERIES", queries), ("BLOCK_SCORES", scores), ("KEPT_SCORES", kept), ("KEY_STEP", 2)):
        monkeypatch.setattr(attention, name, value)
    found = attend(q, k, v, c.full)
    torch.testing.assert_close(found, expected)
    for a, b in zip(torch.autograd.grad(found.square().sum(), (q, k, v)), gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_blocks_skip_the_keys_of_earlier_documents(monkeypatch):
    monkeypatch.setattr(attention, "BLOCK_QUERIES", 8)
    monkeypatch.setattr(attention, "KEY_STEP", 4)
    c = plain_context(*documents([18, 22], [17, 23]), 1e4, 8, torch.float32)
    spans = [(b.keys.start, b.keys.stop) for b in attention._blocks(c.full, 2, 2, torch.float32)]
    assert spans == [(0, 8), (0, 16), (0, 24), (16, 32), (16, 40)]


def test_one_document_per_row_needs_no_mask():
    assert plain_context(*documents([8], [8]), 1e4, 8, torch.float32).full.mask_BsT is None
    assert plain_context(*documents([8], [7, 1]), 1e4, 8, torch.float32).full.mask_BsT is not None


def test_attention_gradients_by_finite_differences():
    c = plain_context(*documents([6], [2, 4]), 1e4, 4, torch.float64)
    generator = torch.Generator().manual_seed(0)
    qkv = [torch.randn(2, 6, h, 4, generator=generator, dtype=torch.float64).requires_grad_() for h in (4, 2, 2)]
    assert torch.autograd.gradcheck(lambda q, k, v: attend(q, k, v, c.full), qkv)


def test_bfloat16_attention_is_as_close_to_float64_as_torch():
    """Error of outputs and gradients over that of torch's own kernel, at scores of order one: 1.7 at most was seen.

    Ours rounds scores to bfloat16 (half a unit in 256); QK-norm bounds them by sqrt(E) times the gains.
    """
    c = plain_context(*documents([256], [256]), 1e4, 32, torch.bfloat16)
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(2, 256, h, 32, generator=generator) for h in (4, 2, 2)]
    values[0] /= math.sqrt(32)
    exact = [x.bfloat16().double().requires_grad_() for x in values]
    narrow = [x.detach().bfloat16().requires_grad_() for x in exact]
    grad = torch.randn(2, 256, 4, 32, generator=generator).bfloat16()

    def torchs(q, k, v):
        heads_first = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(*heads_first, is_causal=True, enable_gqa=True, scale=1.0).transpose(1, 2)

    def results(f, inputs):
        out = f(*inputs)
        return [out, *torch.autograd.grad(out, inputs, grad.to(out.dtype))]

    truth = results(torchs, exact)
    for a, b, t in zip(results(lambda *x: attend(*x, c.full), narrow), results(torchs, narrow), truth, strict=True):
        assert (a.double() - t).norm() < 2.5 * (b.double() - t).norm()
