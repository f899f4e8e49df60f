"""C10 in miniature: chunks of any layout load into whole tensors and into any other layout, bit for bit."""

from __future__ import annotations

import itertools
from contextlib import ExitStack

import pytest
import torch
from checkpoint_cases import blank, cuts, piece, same, write_ranks
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.base.errors import RunError
from headway.checkpoint.load import load_checkpoint, load_rectangle
from headway.checkpoint.rectangles import local_rectangles, owner
from headway.parallel.group import pretend
from headway.store import assemble
from headway.store.manifest import BLOCK_BYTES
from headway.store.verify import open_checkpoint, verify


def state():
    torch.manual_seed(0)
    return {"param/embedding": torch.randn(255, 6), "m/embedding": torch.randn(255, 6).bfloat16(), "count": torch.tensor(9)}


def grid(name, tensor, splits):
    """The rectangles of a tensor that is cut ``splits[axis]`` times along each axis, in rank order."""
    cells = itertools.product(*(cuts(size, parts) for size, parts in zip(tensor.shape, splits)))
    return [piece(name, tensor, tuple(o for o, _ in cell), tuple(n for _, n in cell)) for cell in cells]


def saved(root, values, splits):
    """A checkpoint whose matrices are cut by ``splits``, each cell by its own rank; rank 0 writes the scalar."""
    ranks = [[] for _ in range(splits[0] * splits[1])]
    for name, tensor in values.items():
        cells = grid(name, tensor, splits) if tensor.ndim == 2 else [piece(name, tensor, (), ())]
        for rank, cell in enumerate(cells):
            ranks[rank].append(cell)
    return write_ranks(root, ranks)


@pytest.mark.parametrize("splits", [(1, 1), (2, 1), (3, 1), (4, 1), (1, 4), (2, 3), (4, 2)])
def test_C10_any_layout_into_whole_tensors(tmp_path, splits):
    values = state()
    directory = saved(tmp_path, values, splits)
    assert verify(directory).ok
    into = blank(values)
    load_checkpoint(directory, into)
    assert same(into, values)


@pytest.mark.parametrize("written", [2, 3, 4])
@pytest.mark.parametrize("wanted", [(2, 1), (3, 1), (4, 1), (3, 2)])
def test_C10_any_layout_into_any_other(tmp_path, written, wanted):
    values = state()
    checkpoint = open_checkpoint(saved(tmp_path, values, (written, 1)))
    for name in ("param/embedding", "m/embedding"):
        for cell in grid(name, values[name], wanted):
            into = torch.full(cell.shape, 7, dtype=values[name].dtype)
            load_rectangle(checkpoint, name, into, cell.offset)
            assert same({"x": into}, {"x": values[name][tuple(slice(o, o + n) for o, n in zip(cell.offset, cell.shape))].clone()})


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(data=st.data())
def test_C10_property_random_grids_and_windows(tmp_path_factory, monkeypatch, data):
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    monkeypatch.setattr(assemble, "GROUP_BYTES", data.draw(st.integers(1, 200)))
    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    tensor = torch.randn(shape)
    edges = [sorted({0, size} | data.draw(st.sets(st.integers(0, size), max_size=3))) for size in shape]
    cells = list(itertools.product(*([(a, b - a) for a, b in itertools.pairwise(e)] for e in edges)))
    order = data.draw(st.permutations(cells))
    rectangles = [piece("x", tensor, tuple(o for o, _ in c), tuple(n for _, n in c)) for c in order]
    world = data.draw(st.integers(1, 3))
    checkpoint = open_checkpoint(write_ranks(tmp_path_factory.mktemp("grid"), [rectangles[rank::world] for rank in range(world)]))
    starts = [data.draw(st.integers(0, size - 1)) for size in shape]
    window = tuple(slice(a, data.draw(st.integers(a + 1, size))) for a, size in zip(starts, shape))
    into = torch.full_like(tensor[window], 7)
    load_rectangle(checkpoint, "x", into, starts)
    assert torch.equal(into, tensor[window])


def test_only_the_blocks_that_are_needed_are_read(tmp_path, monkeypatch):
    tensor = torch.randn(3 * BLOCK_BYTES // 400, 100)  # rows of 400 bytes over three blocks
    directory = write_ranks(tmp_path, [[piece("x", tensor, (0, 0), tuple(tensor.shape))]])
    path = directory / "rank00000.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # damage in the last block
    path.write_bytes(data)
    checkpoint, into = open_checkpoint(directory), torch.zeros(100, 100)
    load_rectangle(checkpoint, "x", into, (50, 0))
    assert torch.equal(into, tensor[50:150])
    with pytest.raises(RunError, match="digest differs"):
        load_rectangle(checkpoint, "x", into, (tensor.shape[0] - 100, 0))


def test_a_destination_beyond_the_tensor_is_an_error(tmp_path):
    tensor = torch.randn(5, 3)
    checkpoint = open_checkpoint(write_ranks(tmp_path, [[piece("x", tensor, (0, 0), (5, 3))]]))
    with pytest.raises(RunError, match="9 of 12 elements"):
        load_rectangle(checkpoint, "x", torch.zeros(4, 3), (2, 0))
    with pytest.raises(RunError, match="never converted"):
        load_rectangle(checkpoint, "x", torch.zeros(5, 3, dtype=torch.float64), (0, 0))


@pytest.fixture
def fake_rank():
    """Play one rank of a group without any communication."""
    with ExitStack() as stack:

        def start(rank, world):
            stack.close()
            stack.enter_context(pretend(rank, world))

        yield start


@pytest.mark.parametrize(
    ("mesh_shape", "axes"),
    [
        ((4,), "S0"),
        ((3,), "S0"),
        ((4,), "S1"),
        ((4,), "R"),
        ((2, 2), "R,S0"),
        ((2, 2), "S0,S1"),
        ((2, 3), "S0,R"),
        ((2, 2), "S0,S0"),
    ],
)
def test_C10_DTensor_rectangles_of_all_ranks_tile_the_state(tmp_path, fake_rank, mesh_shape, axes):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    torch.manual_seed(1)
    values = {"embedding": torch.randn(255, 6), "two_rows": torch.randn(2, 6), "plain": torch.randn(3)}
    placements = [Replicate() if a == "R" else Shard(int(a[1:])) for a in axes.split(",")]
    world = torch.Size(mesh_shape).numel()
    ranks = []
    for rank in range(world):
        fake_rank(rank, world)
        mesh, local = init_device_mesh("cpu", mesh_shape), dict(values)
        for name in ("embedding", "two_rows"):
            whole = values[name]
            shape, offset = compute_local_shape_and_global_offset(whole.shape, mesh, placements)
            part = whole[tuple(slice(o, o + n) for o, n in zip(offset, shape))].contiguous()
            local[name] = DTensor.from_local(part, mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride())
        ranks.append(local_rectangles(local, rank, world))
        assert all(r.data.nbytes for r in ranks[-1]), "a rank without rows writes nothing"
    into = blank(values)
    load_checkpoint(write_ranks(tmp_path, ranks), into)
    assert same(into, values)


def test_partial_sums_are_refused(fake_rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial

    fake_rank(0, 2)
    tensor = DTensor.from_local(torch.zeros(3), init_device_mesh("cpu", (2,)), [Partial()], run_check=False)
    with pytest.raises(RunError, match="partial sums"):
        local_rectangles({"x": tensor}, 0, 2)


def test_owners_spread_over_the_copies():
    owners = [owner(f"param/{layer}", (0, 0), 4) for layer in range(400)]
    assert min(owners.count(rank) for rank in range(4)) > 60
