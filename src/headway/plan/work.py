"""What one optimizer step is, for the models of memory, time and communication: a Work on a Layout over a Cluster.

    Work        model, sequence length, batch, arithmetic         what is computed: the recipe's side
    Layout      mesh axes, micro-batch, recomputation, sharding   how it is cut: the deployment's side
    Cluster     chip, how many, which links                       where

A mesh has pp x dp_replicate x dp_shard x cp x tp devices. Tensor-parallel ranks are neighbours, then cp, dp_shard,
dp_replicate, and pipeline stages outermost. Experts are laid over dp_shard x cp. States are sharded over dp_shard x cp.

    batch sequences = micro_batch x micro_batches x dp          dp = dp_replicate x dp_shard
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter

from headway.formulas.chips import Chip
from headway.formulas.quantity import Spread
from headway.formulas.recompute import Recompute
from headway.recipe.deployment import AXES
from headway.recipe.offload import Offload
from headway.recipe.spec import ModelSpec

EXPERT_IMBALANCE = 1.2
"""Tokens of the fullest expert rank over the mean, with a balancing loss or bias: assumed."""
EXPERT_IMBALANCE_RANGE: Spread = (1.0, 2.0)
"""From perfect balance to twice the mean."""
MOMENT_BYTES = 8
"""Both moments of Adam in fp32; what a Work's optimizer bytes exceed it by is the fp32 master copy."""
SIZES = ("tp", "cp", "pp", "virtual", "dp_replicate", "dp_shard", "ep")
"""Of a layout, in the order in which people write them."""
_axes = attrgetter(*AXES)


class Pipeline(StrEnum):
    """Order of micro-batches through pipeline stages."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"
    ZERO_BUBBLE = "zero-bubble"


class Loss(StrEnum):
    """How logits become a loss. What each holds per logit stands in ``LOGIT_BYTES`` of ``memory/activations.py``."""

    EAGER = "eager"  # torch as it stands: a fp32 copy, its log-softmax and its gradient beside the logits
    IN_PLACE = "in-place"  # one fp32 copy that is worked on in place, and its gradient (Megatron)
    COMPILED = "compiled"  # one pass: logits and their gradient in the products' type


@dataclass(frozen=True, kw_only=True)
class Implementation:
    """What the kernels do. The defaults are today's; runs of 2020 to 2022 had neither flash attention nor overlap."""

    flash: bool = True  # scores never reach memory
    flash_generation: int | None = None  # FlashAttention 1, 2 or 3; None: the newest that the chip has
    fused: bool = True  # chains of elementwise operations are compiled into one pass
    dropout: bool = False  # masks are kept, one byte per element
    chunked_loss: bool = False  # logits of a few thousand tokens at a time
    loss: Loss = Loss.IN_PLACE
    keeps_logits: bool = False  # a pipeline's last stage keeps all micro-batches' and joins them (torch until 2025)
    overlap: bool = True  # gradients are reduced and weights gathered while blocks compute
    overlap_ep: bool = False  # exchanges with experts run beside another micro-batch's computation (DualPipe)
    overlap_tp: bool = False  # tensor-parallel collectives are cut up and hidden behind the products beside them


@dataclass(frozen=True, kw_only=True)
class Work:
    """One optimizer step. ``batch`` is global, in sequences."""

    model: ModelSpec
    sequence: int
    batch: int
    precision: str = "bfloat16"  # of matrix products: bfloat16, float16, float8
    implementation: Implementation = Implementation()
    weight_bytes: int = 2  # what products read, per parameter
    gradient_bytes: int = 4
    optimizer_bytes: int = 12  # fp32 master copy and two moments, of a parameter that has both
    one_moment: float = 0.0  # share of the parameters with one of them only: Muon's matrices

    @property
    def tokens(self) -> int:
        return self.batch * self.sequence

    @property
    def moment_bytes(self) -> float:
        """Per parameter, on average: taken to be the same in every stage and shard."""
        return min(MOMENT_BYTES, self.optimizer_bytes) * (1 - self.one_moment / 2)

    @property
    def master_bytes(self) -> int:
        return self.optimizer_bytes - min(MOMENT_BYTES, self.optimizer_bytes)

    @property
    def context(self) -> float:
        """What stands for s in attention formulas: the whole sequence, an upper bound where packed documents are masked."""
        return float(self.sequence)

    @property
    def element_bytes(self) -> int:
        """Of activations, in memory and between ranks: eight-bit products keep and exchange them in sixteen."""
        return 4 if self.precision == "float32" else 2

    def rank_tokens(self, layout: Layout) -> float:
        """Of one micro-batch on one rank: a context rank's part of its sequences."""
        return layout.micro_batch * self.sequence / layout.cp


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Sizes of the mesh axes and how a step is carried out on them."""

    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1
    virtual: int = 1  # model chunks per pipeline rank
    pipeline: Pipeline = Pipeline.ONE_F_ONE_B
    micro_batch: int = 1  # sequences of one forward pass of a replica
    zero: int = 3  # 0: replicas hold everything; 1: optimizer, 2: and gradients, 3: and weights are sharded
    recompute: Recompute = Recompute.NONE
    sequence_parallel: bool = True  # norms and residual stream are split over tp too
    offload: Offload = Offload.NONE  # what lies in host memory while it is not needed

    @property
    def world(self) -> int:
        return math.prod(_axes(self))

    @property
    def dp(self) -> int:
        return self.dp_replicate * self.dp_shard

    @property
    def shards(self) -> int:
        """Ranks that share the states."""
        return self.dp_shard * self.cp

    def micro_batches(self, batch: int) -> int:
        """Forward passes of the busiest replica; replicas that have fewer pad."""
        return -(-batch // (self.dp * self.micro_batch))

    def shown(self) -> str:
        """``tp 8 pp 16 dp 128``: the axes that are larger than one."""
        sizes = [f"{axis} {getattr(self, axis)}" for axis in SIZES if getattr(self, axis) > 1] or ["one device"]
        order = [str(self.pipeline)] if self.pp > 1 and self.pipeline is Pipeline.ZERO_BUBBLE else []
        moved = [f"offload {self.offload}"] if self.offload is not Offload.NONE else []
        kept = [f"micro-batch {self.micro_batch}", f"zero {self.zero}", f"recompute {self.recompute}", *moved]
        return ", ".join([*sizes, *order, *kept])


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """``chips`` of one kind. ``domain`` chips share the fast links (a node, a rack); ``network`` is bytes/s per chip beyond."""

    chip: Chip
    chips: int
    domain: int
    network: float  # bytes per second of one chip to other domains, one direction

    def inside(self, group: int, stride: int) -> int:
        """Of a group of ``group`` ranks, ``stride`` apart, those that lie in one domain."""
        return min(group, max(1, self.domain // stride))

    def spans(self, group: int, stride: int) -> int:
        """Domains that such a group lies in: 1 means the fast links suffice."""
        return -(-group // self.inside(group, stride))
