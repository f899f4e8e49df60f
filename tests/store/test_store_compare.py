"""Comparing checkpoints: against numpy over whole arrays, for any two layouts; what is read, and what cannot be subtracted."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_cases import flip_bit, make_run

from headway.base.errors import RunError
from headway.store import compare as comparing
from headway.store.assemble import CARRIERS
from headway.store.compare import DTYPE, ONLY_A, ONLY_B, SHAPE, VALUES, compare, row_groups
from headway.store.decode import decode
from headway.store.manifest import DTYPE_BYTES
from headway.store.save import ManifestFields, Rectangle, commit, saving, write_rank


def rectangles(name, dtype, bits, cuts):
    """``bits`` cut along its first axis at ``cuts``; one rectangle per piece."""
    edges = [0, *cuts, len(bits)] if bits.ndim else [0, 1]
    for first, last in itertools.pairwise(edges):
        part = np.ascontiguousarray(bits[first:last]) if bits.ndim else bits
        yield Rectangle(
            name=name,
            dtype=dtype,
            global_shape=bits.shape,
            offset=(first, *(0,) * (bits.ndim - 1)) if bits.ndim else (),
            shape=part.shape,
            data=part.reshape(-1).view(np.uint8),
        )


def store(root, tensors, cuts=()):
    """A checkpoint of {name: (dtype, bits)}; each cut begins the rows of another rank."""
    run = make_run(root)
    world = len(cuts) + 1
    ranks = [[] for _ in range(world)]
    for name, (dtype, bits) in tensors.items():
        for rank, part in enumerate(rectangles(name, dtype, bits, [cut for cut in cuts if bits.ndim and cut < len(bits)])):
            ranks[rank].append(part)
    with saving(run.checkpoints, 1, 1) as directory:
        for rank, parts in enumerate(ranks):
            write_rank(directory, parts, 1, 1, rank, world)
        commit(directory, ManifestFields(segment=1, step=1, world=world, state={}))
    return directory


def floats(values):
    return ("F32", np.asarray(values, np.float32).view(np.uint32))


# --- numbers


@pytest.mark.parametrize(
    ("dtype", "name"), [("BF16", "bfloat16"), ("F16", "float16"), ("F8_E4M3", "float8_e4m3fn"), ("F8_E5M2", "float8_e5m2")]
)
def test_every_bit_pattern_is_the_number_that_torch_reads(dtype, name):
    torch = pytest.importorskip("torch")
    size = DTYPE_BYTES[dtype]
    bits = np.arange(1 << (8 * size), dtype=np.uint32).astype(CARRIERS[size])
    signed = torch.from_numpy(bits.view(np.int16 if size == 2 else np.uint8).copy())
    expected = signed.view(getattr(torch, name)).to(torch.float64).numpy()
    assert np.array_equal(decode(bits, dtype), expected, equal_nan=True)


@pytest.mark.parametrize("dtype", sorted(DTYPE_BYTES))
def test_every_dtype_that_can_be_saved_can_be_compared(tmp_path, dtype):
    one = np.arange(7, dtype=np.uint64).astype(CARRIERS[DTYPE_BYTES[dtype]])
    other = one.copy()
    other[3] ^= 1
    found = compare(store(tmp_path / "a", {"x": (dtype, one)}), store(tmp_path / "b", {"x": (dtype, other)}))
    (difference,) = found.differences
    assert (difference.what, difference.distance.differing, difference.distance.elements) == (VALUES, 1, 7)
    assert difference.distance.max_abs > 0


@pytest.mark.parametrize(("dtype", "kind"), [("I64", np.int64), ("U64", np.uint64)])
def test_large_integers_are_subtracted_exactly(tmp_path, dtype, kind):
    one = np.array([2**62, 2**62 + 7], kind)
    found = compare(
        store(tmp_path / "a", {"x": (dtype, one.view(np.uint64))}),
        store(tmp_path / "b", {"x": (dtype, (one + 1).view(np.uint64))}),
    )
    assert found.differences[0].distance.max_abs == 1.0


# --- against numpy


@st.composite
def pairs(draw):
    """Two arrays of one shape that differ here and there, and how each is cut."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=0, max_size=3)))
    seed, share = draw(st.integers(0, 999)), draw(st.sampled_from([0.0, 0.1, 1.0]))
    random = np.random.default_rng(seed)
    a = random.standard_normal(shape).astype(np.float32)
    b = np.where(random.random(shape) < share, a + random.standard_normal(shape).astype(np.float32), a).astype(np.float32)
    for values, nans in ((a, draw(st.integers(0, 2))), (b, draw(st.integers(0, 2)))):
        values.reshape(-1)[:nans] = np.nan
    cuts = [
        sorted(draw(st.sets(st.integers(1, max(1, shape[0] - 1)), max_size=2))) if shape and shape[0] > 1 else [] for _ in "ab"
    ]
    return a, b, cuts


def bits_of(values):
    return values.view(np.uint32) if values.ndim else values.reshape(1).view(np.uint32).reshape(())


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(pair=pairs())
def test_property_any_two_layouts_give_what_numpy_gives(tmp_path_factory, monkeypatch, pair):
    monkeypatch.setattr(comparing, "GROUP_BYTES", 40)  # several groups, also within a chunk
    monkeypatch.setattr(comparing, "PIECE_ELEMENTS", 3)
    a, b, cuts = pair
    root = tmp_path_factory.mktemp("pair")
    left = store(root / "a", {"x": ("F32", bits_of(a))}, cuts[0])
    right = store(root / "b", {"x": ("F32", bits_of(b))}, cuts[1])
    found = compare(left, right)
    differing = int((bits_of(a) != bits_of(b)).sum())
    assert found.equal == (differing == 0)
    if not differing:
        return
    delta = np.abs(a.astype(np.float64) - b)
    known, norm = delta[~np.isnan(delta)], math.sqrt(np.nansum(a.astype(np.float64) ** 2))
    far = found.differences[0].distance
    assert (far.elements, far.differing) == (a.size, differing)
    assert (far.nan_a, far.nan_b) == (np.isnan(a).sum(), np.isnan(b).sum())
    assert far.max_abs == max(known, default=0.0)
    length = math.sqrt(np.sum(known**2))
    assert far.relative_l2 == pytest.approx(length / norm if norm else math.inf if length else 0.0)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (5, 3), (2, 3, 4), (3, 1000)])
def test_groups_of_rows_tile_a_tensor_and_are_no_larger_than_they_must(shape, monkeypatch):
    monkeypatch.setattr(comparing, "GROUP_BYTES", 64)
    seen = np.zeros(shape, int)
    for offset, part in row_groups(shape, 4):
        seen[tuple(slice(o, o + n) for o, n in zip(offset, part))] += 1
        assert math.prod(part) * 4 <= 64 or part[0] == 1
    assert (seen == 1).all()


def test_an_empty_tensor_is_the_same_however_it_is_cut(tmp_path):
    empty = ("F32", np.zeros((0, 3), np.uint32))
    full = floats(np.ones((4, 2)))
    assert compare(store(tmp_path / "a", {"x": empty, "y": full}), store(tmp_path / "b", {"x": empty, "y": full}, [2])).equal


# --- what differs


def test_names_shapes_and_dtypes(tmp_path):
    ones, halves = np.ones((2, 2), np.float32), np.full((2, 2), 0.5, np.float32)
    a = {"gone": floats(ones), "same": floats(ones), "shape": floats(ones), "type": floats(halves)}
    b = {"more": floats(ones), "same": floats(ones), "shape": floats(np.ones(4)), "type": ("BF16", np.full((2, 2), 0x3F00, "u2"))}
    found = compare(store(tmp_path / "a", a), store(tmp_path / "b", b))
    assert {item.name: item.what for item in found.differences} == {
        "gone": ONLY_A,
        "more": ONLY_B,
        "shape": SHAPE,
        "type": DTYPE,
    }
    by_name = {item.name: item for item in found.differences}
    assert by_name["type"].distance.differing == 0, "one half is one half in both"
    assert by_name["shape"].distance is None
    assert (found.tensors, found.by_digest, found.equal) == (5, 1, False)


def test_minus_zero_is_another_bit_and_no_distance(tmp_path):
    found = compare(store(tmp_path / "a", {"x": floats([0.0, 1.0])}), store(tmp_path / "b", {"x": floats([-0.0, 1.0])}))
    far = found.differences[0].distance
    assert (far.differing, far.max_abs, far.relative_l2) == (1, 0.0, 0.0)


def test_infinities(tmp_path):
    found = compare(
        store(tmp_path / "a", {"x": floats([np.inf, 1.0]), "y": floats([0.0, 0.0])}),
        store(tmp_path / "b", {"x": floats([1.0, 1.0]), "y": floats([0.0, 2.0])}),
    )
    x, y = (item.distance for item in found.differences)
    assert (x.max_abs, x.relative_l2) == (math.inf, math.inf)
    assert (y.max_abs, y.relative_l2) == (2.0, math.inf), "a difference from nothing"


def test_nan_is_counted_also_where_both_are_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(comparing, "PIECE_ELEMENTS", 2)
    a, b = [np.nan, 1.0, 1.0, np.nan], [np.nan, 1.0, 1.0, 2.0]
    found = compare(store(tmp_path / "a", {"x": floats(a)}), store(tmp_path / "b", {"x": floats(b)}))
    far = found.differences[0].distance
    assert (far.nan_a, far.nan_b, far.differing, far.max_abs) == (2, 1, 1, 0.0)


# --- what is read


def test_equal_digests_are_not_read_and_said_so(tmp_path, monkeypatch):
    tensors = {"x": floats(np.ones((4, 3))), "y": floats(np.zeros(5))}
    a, b = store(tmp_path / "a", tensors, [2]), store(tmp_path / "b", tensors, [2])
    monkeypatch.setattr(comparing, "fill", lambda *_: pytest.fail("it was read"))
    found = compare(a, b)
    assert (found.equal, found.by_digest, found.bytes_read) == (True, 2, 0)


def test_other_cuts_are_read_and_found_equal(tmp_path):
    tensors = {"x": floats(np.ones((4, 3)))}
    found = compare(store(tmp_path / "a", tensors), store(tmp_path / "b", tensors, [1, 2]))
    assert (found.equal, found.by_digest, found.bytes_read) == (True, 0, 2 * 48)


@pytest.mark.parametrize("side", ["a", "b"])
def test_what_is_read_is_verified(tmp_path, side):
    tensors = {"x": floats(np.ones((4, 3)))}
    places = {"a": store(tmp_path / "a", tensors), "b": store(tmp_path / "b", tensors, [1])}
    path = places[side] / "rank00000.safetensors"
    flip_bit(path, path.stat().st_size - 1)
    with pytest.raises(RunError, match="digest differs"):
        compare(places["a"], places["b"])
