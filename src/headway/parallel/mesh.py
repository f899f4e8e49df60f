"""The mesh of a layout: axes, and the groups of ranks that sum or share over several of them.

    world = pp x dp_replicate x dp_shard x cp x tp         outermost first: neighbours in tp are neighbours in rank
            `-'  `------ replicas -----'
                 `- (replicate) x shards -----'            states are sharded over dp_shard x cp, copied over dp_replicate
                 `---------- batch ------'                 losses are summed over these: each has its own tokens
                 `---------- tokens ---------'             loads of experts too: between layers tp ranks have their own tokens
                      `- shards -'  = expert shards x ep   a layer's experts lie over ep, each part sharded over the rest
    `-------- losses ---------------'                      losses too, wherever in a pipeline they arise

A replica (a place in dp_replicate x dp_shard) has sequences of its own; the ranks of a replica share them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from headway.parallel.shared_memory import SharedMemory
from headway.recipe.offload import Offload

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")


@dataclass(frozen=True, kw_only=True)
class Axes:
    """Sizes of a layout's axes, and what goes with them; the names are those of the deployment."""

    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1
    virtual: int = 1
    pipeline: str = "1f1b"
    zero: int = 3
    recompute: str = "none"
    offload: Offload = Offload.NONE

    @staticmethod
    def of(layout: Mapping[str, Any]) -> Axes:
        """From a resolved deployment's layout; what only plans use is left out."""
        names = {field.name for field in fields(Axes)}
        given = {name: value for name, value in layout.items() if name in names}
        return Axes(**given | {"offload": Offload.of_record(given.get("offload", "none"))})

    @property
    def world(self) -> int:
        return self.pp * self.replicas * self.cp * self.tp

    @property
    def replicas(self) -> int:
        return self.dp_replicate * self.dp_shard

    @property
    def scatters_each_pass(self) -> bool:
        """Gradients of a micro-batch go to their shards at once; else they are summed whole, in float32, until the last one. A
        pipeline sums them whole: it would scatter those of every chunk for every micro-batch."""
        return self.zero >= 2 and self.pp == 1

    def __str__(self) -> str:
        """As records compare it: whatever may change the order of additions."""
        shown = [f"{name} {getattr(self, name)}" for name in (*AXES, "ep", "virtual") if getattr(self, name) > 1]
        shown += ["whole gradients"] if self.dp_shard * self.cp > 1 and self.pp == 1 and not self.scatters_each_pass else []
        shown += [self.pipeline] if self.pp > 1 and self.pipeline != "1f1b" else []
        return " x ".join(shown) or "1 process"


class Mesh:
    """The groups of one layout over the default process group (or its first ``axes.world`` ranks)."""

    def __init__(self, axes: Axes, device: str = "cpu"):
        self.axes, self.device = axes, device
        self._shared: dict[str, SharedMemory | None] = {}  # by group
        self.root: DeviceMesh = init_device_mesh(device, tuple(getattr(axes, name) for name in AXES), mesh_dim_names=AXES)
        self.tp = self.root["tp"]
        shards = self.root["dp_shard", "cp"]._flatten("shards")
        batch = self.root["dp_replicate", "dp_shard", "cp"]._flatten("batch")
        losses = self.root["pp", "dp_replicate", "dp_shard", "cp"]._flatten("losses") if axes.pp > 1 else batch
        self.batch_group, self.losses_group = batch.get_group(), losses.get_group()
        self.stage = self.root["dp_replicate", "dp_shard", "cp", "tp"]._flatten("tokens")  # all ranks that have the same layers
        self.token_group = self.stage.get_group()
        self.states = self._copied(shards)
        if axes.ep > 1:
            divided = shards._unflatten(0, (axes.dp_shard * axes.cp // axes.ep, axes.ep), ("expert_shards", "ep"))
            self.ep, self.expert_states = divided["ep"], self._copied(divided["expert_shards"])
            self.experts = DeviceMesh._concatenate([self.ep, self.tp]) if axes.tp > 1 else self.ep

    def _copied(self, shards: DeviceMesh) -> DeviceMesh:
        """Of states that lie over ``shards``."""
        return DeviceMesh._concatenate([self.root["dp_replicate"], shards]) if self.axes.dp_replicate > 1 else shards

    @property
    def replica(self) -> int:
        """Which of ``axes.replicas`` this rank belongs to."""
        return self.root.get_local_rank("dp_replicate") * self.axes.dp_shard + self.root.get_local_rank("dp_shard")

    def shared_memory(self, states: DeviceMesh) -> SharedMemory | None:
        """Of the ranks that share ``states``; all of them ask for it at once. None where they do not see one memory."""
        group = states.get_group(states.ndim - 1)
        if group.size() == 1 or dist.get_backend(group) != "gloo":
            return None
        if group.group_name not in self._shared:
            self._shared[group.group_name] = SharedMemory.of(group)
        return self._shared[group.group_name]

    def group(self, axis: str) -> dist.ProcessGroup:
        return self.root[axis].get_group()
