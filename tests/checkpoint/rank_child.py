"""Real ranks for the tests of checkpoints: ``python rank_child.py PLAN.json`` forks one process per rank, over gloo.

A small regression, sharded as the plan says, trained with AdamW and saved with the real ``Saver``. Losses and digests of ranks
come back in the plan's directory. PLAN: {run, segment, layout, from, steps, saves, drill}.

    layouts   one | fsdp2 | fsdp3 | fsdp2xtp2 | hsdp2x2 | pp2
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from headway.base import failpoints
from headway.checkpoint.load import Sources, load_state
from headway.checkpoint.saver import Place, SavePolicy, Saver
from headway.rundir.layout import RunDirectory

WIDTH, FFN, OUT, BLOCKS, BATCH = 16, 24, 13, 2, 12
WORLDS = {"one": 1, "fsdp2": 2, "fsdp3": 3, "fsdp2xtp2": 4, "hsdp2x2": 4, "pp2": 2}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, FFN, bias=False), nn.Linear(FFN, WIDTH, bias=False)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class Model(nn.Module):
    """Every rank builds the whole of it alike; layouts keep their part."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(7, WIDTH, bias=False)
        self.blocks = nn.ModuleDict({str(i): Block() for i in range(BLOCKS)})
        self.head = nn.Linear(WIDTH, OUT, bias=False)

    def forward(self, x):
        h = self.enter(x)
        for block in self.blocks.values():
            h = block(h)
        return self.head(h)


def build(layout: str):
    """(model, rank's share of the batch as (index, count), holders)."""
    torch.manual_seed(11)
    model = Model()
    world, rank = WORLDS[layout], int(os.environ["RANK"])
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if layout in ("fsdp2", "fsdp3"):
        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
        for block in model.blocks.values():
            fully_shard(block, mesh=mesh)
        return fully_shard(model, mesh=mesh), (rank, world), None
    if layout == "hsdp2x2":
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        return fully_shard(model, mesh=mesh), (rank, world), None
    if layout == "fsdp2xtp2":
        from torch.distributed.tensor import Replicate
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        plan = {"enter": ColwiseParallel(output_layouts=Replicate()), "head": RowwiseParallel(input_layouts=Replicate())}
        for name in model.blocks:
            plan |= {f"blocks.{name}.up": ColwiseParallel(), f"blocks.{name}.down": RowwiseParallel()}
        parallelize_module(model, mesh["tp"], plan)
        return fully_shard(model, mesh=mesh["dp"]), (rank // 2, 2), None
    if layout == "pp2":
        groups = [dist.new_group([r]) for r in range(2)]
        keep = ("enter", "blocks.0") if rank == 0 else ("blocks.1", "head")
        for name in ("enter", "head"):
            if name not in keep:
                delattr(model, name)
        for name in list(model.blocks):
            if f"blocks.{name}" not in keep:
                del model.blocks[name]
        return model, (0, 1), groups[rank]
    return model, (0, 1), None


def batch(step: int, share: tuple[int, int]):
    generator = torch.Generator().manual_seed(1000 + step)
    x, y = torch.randn(BATCH, 7, generator=generator), torch.randn(BATCH, OUT, generator=generator)
    index, count = share
    rows = slice(index * BATCH // count, (index + 1) * BATCH // count)
    return x[rows], y[rows]


def forward_backward(model: nn.Module, layout: str, step: int, share: tuple[int, int]) -> float:
    """The global mean loss; gradients are in place."""
    x, y = batch(step, share)
    if layout == "pp2":
        return pipeline_step(model, x, y)
    loss = (model(x) - y).square().mean()
    loss.backward()
    total = loss.detach().clone()
    if dist.get_world_size() > 1:
        dist.all_reduce(total)
        total /= dist.get_world_size()
    return float(total)


def pipeline_step(model: nn.Module, x, y) -> float:
    """Two stages, one micro-batch: activations go forward, their gradients back."""
    total = torch.zeros(())
    if dist.get_rank() == 0:
        h = model.blocks["0"](model.enter(x))
        dist.send(h.detach(), 1)
        back = torch.empty_like(h)
        dist.recv(back, 1)
        h.backward(back)
    else:
        h = torch.empty(BATCH, WIDTH)
        dist.recv(h, 0)
        h.requires_grad_()
        loss = (model.head(model.blocks["1"](h)) - y).square().mean()
        loss.backward()
        dist.send(h.grad, 0)
        total = loss.detach().clone()
    dist.broadcast(total, 1)
    return float(total)


def state_of(model: nn.Module, optimizer: torch.optim.AdamW) -> dict[str, torch.Tensor]:
    flat = {}
    for name, parameter in model.named_parameters():
        state = optimizer.state[parameter]
        flat |= {f"param/{name}": parameter.detach(), f"m/{name}": state["exp_avg"], f"v/{name}": state["exp_avg_sq"]}
    return flat


def make_optimizer(model: nn.Module) -> torch.optim.AdamW:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    for parameter in model.parameters():
        zeros = {"exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}
        optimizer.state[parameter] = {"step": torch.tensor(0.0), **zeros}
    return optimizer


def work(plan: dict, here: Path) -> None:
    torch.set_num_threads(1)
    layout, rank, world = plan["layout"], int(os.environ["RANK"]), WORLDS[plan["layout"]]
    store = f"file://{here}/store-{plan['segment']}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world, timeout=timedelta(seconds=20))
    run = RunDirectory.open(Path(plan["run"]))
    failpoints.arm(run.root, rank)
    model, share, holders = build(layout)
    optimizer = make_optimizer(model)
    place = Place(run=run, segment=plan["segment"], rank=rank, world=world)
    if holders is not None:
        place = Place(run=run, segment=plan["segment"], rank=rank, world=world, holder=0, holders=1)
    seconds = {"commit_seconds": plan.get("commit_seconds", 10), "linger_seconds": plan.get("linger_seconds", 5)}
    saver = Saver(place, SavePolicy(keep_last=9, when_busy="wait", **seconds))
    step, result = 0, {"losses": {}, "outcomes": [], "from_memory": []}
    if plan.get("from"):
        images = saver.images(plan["from"]) if plan.get("memory") else {}
        sources = Sources(images=images, together=True, holders=holders, appears_seconds=5)
        loaded = load_state(run.checkpoints / plan["from"], state_of(model, optimizer), sources)
        step, result["from_memory"] = loaded.manifest.step, list(loaded.from_memory)
        for state in optimizer.state.values():
            state["step"].fill_(float(loaded.manifest.state["updates"]))
    saver.attach(state_of(model, optimizer))
    saver.prepare()
    result["shards"] = shards(state_of(model, optimizer))
    while step < plan["steps"]:
        failpoints.hit("step.begin", step + 1)
        result["losses"][step + 1] = forward_backward(model, layout, step + 1, share)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if step in plan["saves"]:
            saver.save(step, state_of(model, optimizer), {"updates": step})
        result["outcomes"] += [(o.kind, o.step, str(o.fields.get("error", ""))) for o in saver.poll()]
    result["outcomes"] += [(o.kind, o.step, str(o.fields.get("error", ""))) for o in saver.settle()]
    saver.close(stays=bool(plan.get("stays")))
    (here / f"result-{plan['segment']}-{rank}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


def shards(state: dict[str, torch.Tensor]) -> dict[str, list]:
    """Where each local tensor lies, and a digest of its bits."""
    from headway.checkpoint.rectangles import bytes_view
    from headway.store.manifest import hash_blocks

    told = {}
    for name, tensor in state.items():
        offset, local = (0,) * tensor.ndim, tensor
        if hasattr(tensor, "device_mesh"):
            from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

            _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
            local = tensor.to_local()
        told[name] = [list(offset), list(local.shape), list(hash_blocks(bytes_view(local)))]
    return told


def main() -> int:
    path = Path(sys.argv[1])
    plan = json.loads(path.read_text())
    children = {}
    for rank in range(WORLDS[plan["layout"]]):
        pid = os.fork()
        if pid == 0:
            os.environ["RANK"] = str(rank)
            code = 1
            try:
                work(plan, path.parent)
                code = 0
            except BaseException:
                (path.parent / f"error-{plan['segment']}-{rank}.txt").write_text(traceback.format_exc())
            os._exit(code)
        children[pid] = rank
    ends = {}
    while children:
        pid, status = os.wait()
        ends[children.pop(pid)] = os.waitstatus_to_exitcode(status)
    (path.parent / f"ends-{plan['segment']}.json").write_text(json.dumps(ends))
    return 0


if __name__ == "__main__":
    sys.exit(main())
