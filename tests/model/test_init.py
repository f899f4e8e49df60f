"""Initial weights: any rectangle equals the cut of the whole; nothing but (seed, name, index) plays a part."""

import hashlib
import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from test_decoder import model_spec

from headway.model import init
from headway.model.counter_random import Words, stream_key
from headway.model.decoder import Decoder
from headway.model.init import initialise, logical_normal
from headway.recipe.mup import init_std
from headway.recipe.roles import parameter_shapes


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_P2_any_rectangle_equals_the_whole(data):
    shape = data.draw(st.sampled_from([(7,), (2100,), (33, 5), (9, 1300), (5, 520), (3, 4, 5), (2, 3, 700), (0, 4), (1, 1)]))
    whole = logical_normal("w", shape, 0.5, 11)
    offset = tuple(data.draw(st.integers(0, s)) for s in shape)
    lengths = tuple(data.draw(st.integers(0, s - o)) for s, o in zip(shape, offset, strict=True))
    cut = whole[tuple(slice(o, o + n) for o, n in zip(offset, lengths, strict=True))]
    assert torch.equal(logical_normal("w", shape, 0.5, 11, offset, lengths), cut)


def test_tiles_and_runs_give_the_same_as_one_pass(monkeypatch):
    whole = logical_normal("w", (600, 700), 1.0, 5)
    cut = whole[3:501, 100:690]
    assert torch.equal(logical_normal("w", (600, 700), 1.0, 5, (3, 100), (498, 590)), cut)  # runs of 590 elements
    monkeypatch.setattr(init, "LONG_RUN_ELEMENTS", 10_000)
    monkeypatch.setattr(init, "TILE_ELEMENTS", 7_000)
    assert torch.equal(logical_normal("w", (600, 700), 1.0, 5, (3, 100), (498, 590)), cut)  # rows in tiles of ten, cut


def test_philox_words_are_the_published_generator():
    """Element i is word i of numpy's Philox4x64 with this key, from counter zero on, and the inverse normal of it."""
    raw = np.random.Philox(key=stream_key(3, "w"), counter=0)
    generator_state = raw.state
    generator_state["state"]["counter"][:] = 0
    generator_state["buffer_pos"] = 4
    raw.state = generator_state
    words = raw.random_raw(512).view(np.uint32)
    uniform = ((words >> 9).astype(np.float64) + 0.5) * 2.0**-22 - 1
    expected = torch.from_numpy(uniform).erfinv() * math.sqrt(2)
    torch.testing.assert_close(logical_normal("w", (1024,), 1.0, 3).double(), expected, rtol=1e-5, atol=1e-6)


def test_seed_and_name_choose_the_stream():
    tensors = [logical_normal(n, (64,), 1.0, s) for n, s in (("a", 1), ("b", 1), ("a", 2), ("a", 12), ("1\0a", 1))]
    for i, a in enumerate(tensors):
        assert all(not torch.equal(a, b) for b in tensors[:i])


def test_distribution():
    x = logical_normal("w", (1 << 20,), 0.02, 1) / 0.02
    count = x.numel()
    assert abs(float(x.mean())) < 4 / math.sqrt(count)
    assert abs(float(x.std()) - 1) < 4 / math.sqrt(2 * count)
    assert abs(float((x**4).mean()) - 3) < 4 * math.sqrt(96 / count)
    assert float((x[1:] * x[:-1]).mean()) < 4 / math.sqrt(count)


def test_every_word_gives_a_finite_value():
    ends = np.array([0, 1, 2**31 - 1, 2**31, 2**32 - 1], np.uint32)
    x = init._normal(ends, 1.0)
    assert x.isfinite().all()
    assert float(x[-1]) == -float(x[0])
    assert 5.0 < float(x[-1]) < 5.5


def filled(spec, seed=7, before=lambda: None):
    model = Decoder(spec)
    before()
    initialise(model, spec, seed)
    return dict(model.named_parameters())


def test_torch_generator_and_what_was_there_before_play_no_part():
    spec = model_spec()
    a = filled(spec, before=lambda: torch.manual_seed(1))
    b = filled(spec, before=lambda: (torch.manual_seed(2), torch.randn(99)))
    assert all(torch.equal(a[name], b[name]) for name in a)
    state = torch.get_rng_state()
    filled(spec)
    assert torch.equal(state, torch.get_rng_state())


def test_order_of_construction_plays_no_part():
    deep, shallow = filled(model_spec(layers=3)), filled(model_spec(layers=2))
    for name, parameter in shallow.items():
        scale = math.sqrt(3 / 2) if name.endswith((".o.weight", ".down.weight")) else 1.0  # residual std falls with depth
        torch.testing.assert_close(deep[name] * scale, parameter)


def test_standard_deviations_follow_the_roles():
    spec = model_spec(width=128, ffn_width=256, vocabulary=512)
    parameters = filled(spec)
    for shape in parameter_shapes(spec):
        std, parameter = init_std(shape, spec), parameters[shape.name]
        if std is None:
            assert torch.equal(parameter, torch.ones_like(parameter))
        else:
            assert float(parameter.detach().std()) == pytest.approx(std, rel=5 / math.sqrt(2 * shape.count))


def test_frozen_values():
    """Change knowingly: every run begins from these. float32 bits up to the last of erfinv, so the words are frozen exactly."""
    words = Words(17, "layers.0.ffn.up.weight")(1_000_003, 4096)
    assert hashlib.sha256(words.astype("<u4").tobytes()).hexdigest()[:16] == "7c824ff4a0cf7fb1"
    values = logical_normal("layers.0.ffn.up.weight", (4, 4), 0.02, 17)[0]
    torch.testing.assert_close(
        values, torch.tensor([0.00116980076, -0.000363397965, -0.00152926485, -0.00601400947]), rtol=1e-6, atol=0
    )
