"""The model of one rank: parameters divided over tp, sharded over the ranks that have other tokens, initial weights in place.

    logical tensor --tp: cut_dimension--> part --FSDP2: rows over dp_shard x cp--> local rows (float32, with moments)
                                           ^                                          |
                                           '-- gathered for a block, in its dtype <---'     gradients: summed in float32

Experts under ep are divided by their axis first, and their states lie over fewer ranks: those that have the same experts.

Blocks are gathered one by one; what stands around them (embedding, final norm, head) is one group. A group is gathered in the
type that its products run in where that is one; where some parameters of it compute wider, it is gathered as wide, and each is
rounded where it is used (``weight.read``). The result is that of ``precision.ComputeModel``, bit for bit up to the order of sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard

from headway.model.away import Away
from headway.model.block import Block
from headway.model.context import Context
from headway.model.decoder import Decoder, Hidden, Piece
from headway.model.host_memory import HostMemory, HostMemoryBeside
from headway.model.init import initialise_part
from headway.model.loss import LossSums, OutputRule, Vocabulary, loss_sums
from headway.model.precision import COMPUTE_DTYPES
from headway.model.ranks import ALONE, WHOLE_ROWS, Ranks
from headway.model.routing import Router
from headway.model.token_loss import token_losses
from headway.model.weight import Norm, Weight
from headway.parallel.context_parallel import BalancedChunks
from headway.parallel.divide import cut_dimension, is_of_experts, part
from headway.parallel.expert import ExpertExchange
from headway.parallel.host_exchange import exchange_on_host
from headway.parallel.mesh import Mesh
from headway.parallel.state import LocalParts, rectangle_of
from headway.parallel.tensor import TensorRanks
from headway.recipe.roles import parameter_shapes
from headway.recipe.spec import ModelSpec, PrecisionSpec
from headway.recipe.trainable import parameter_precisions


class ShardedModel:
    """What a step runs on a rank of ``mesh``; the same methods as ``precision.ComputeModel``.

    ``memory_type`` is what a dry run replaces.
    """

    memory_type: type[HostMemory] = HostMemoryBeside

    def __init__(self, spec: ModelSpec, precision: PrecisionSpec, seed: int, mesh: Mesh, piece: Piece | None = None):
        """``piece``: of a pipeline, whose weights stay gathered through a step (``parallel/pipeline.py``)."""
        self.spec, self.mesh = spec, mesh
        self.reshards = mesh.axes.zero == 3 and piece is None and mesh.axes.dp_shard * mesh.axes.cp > 1
        kinds = parameter_precisions(spec, precision)
        self.dtypes = {name: COMPUTE_DTYPES[kind] for name, kind in kinds.items()}
        self.dtype = COMPUTE_DTYPES[precision.compute]
        self.ranks = ranks_of(mesh)
        with torch.device("meta"):
            self.decoder = Decoder(spec, piece)
        self.decoder.stream_dtype = self.dtype
        self.decoder.recompute(mesh.axes.recompute)
        self.away = Away(self.memory_type()) if mesh.axes.offload.activations else None
        if self.away is not None:
            self.decoder.put_away(self.away)
        for name, module in _parameter_modules(self.decoder):
            module.dtype = self.dtypes[f"{name}.weight"]
        self._divide()
        self._shard()
        self.decoder.to_empty(device=mesh.device)
        self.parts = LocalParts(mesh.stage, self.decoder)
        self._initialise(seed)

    def _initialise(self, seed: int) -> None:
        """This rank's parts only: no rank ever holds the whole."""
        shapes = {shape.name: shape for shape in parameter_shapes(self.spec)}
        for name, parameter in self.parts.sharded.items():
            initialise_part(self.parts.local[name].detach(), shapes[name], rectangle_of(parameter).offset, self.spec, seed)

    def _divide(self) -> None:
        """Experts over ep; over tp, what ``divide.py`` says."""
        for name, parameter in list(self.decoder.named_parameters()):
            over_ep = self.mesh.axes.ep > 1 and is_of_experts(name)
            over = ([(self.mesh.ep, 0)] if over_ep else []) + (
                [(self.mesh.tp, cut_dimension(name))] if self.mesh.axes.tp > 1 else []
            )
            if over and parameter.requires_grad:
                divided = _divided(parameter, self.mesh.experts if over_ep else self.mesh.tp, over)
                owner, _, leaf = name.rpartition(".")
                setattr(self.decoder.get_submodule(owner), leaf, nn.Parameter(divided))

    def _shard(self) -> None:
        """Bottom up; every module is told to sum: neither the factor nor the sum reaches modules below (CONTRACTS section 4)."""
        decoder = self.decoder
        self._balance = {p for p in decoder.parameters() if not p.requires_grad}
        blocks = [*cast("Iterable[Block]", decoder.layers), *cast("Iterable[Block]", decoder.mtp)]
        for block in blocks:
            for router in (module for module in block.modules() if isinstance(module, Router)):
                self._group(router, self.mesh.states, reshard=self.reshards)
            if self.mesh.axes.ep > 1 and block.experts is not None:
                block.experts.exchange = ExpertExchange(self.mesh.ep.get_group())
                self._group(block.experts, self.mesh.expert_states, reshard=self.reshards)
            self._group(block, self.mesh.states, reshard=self.reshards)
        self._group(decoder, self.mesh.states, reshard=False)
        for module in self._groups():
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)

    def _group(self, module: nn.Module, states: DeviceMesh, *, reshard: bool) -> None:
        grouped = {p for inner in module.modules() if isinstance(inner, FSDPModule) for p in inner.parameters()}
        names = {parameter: name for name, parameter in self.decoder.named_parameters()}
        dtypes = {self.dtypes[names[p]] for p in module.parameters() if p not in grouped | self._balance}
        if module is self.decoder and self.spec.tied_embeddings:
            dtypes.add(torch.float32)
        gathered = dtypes.pop() if len(dtypes) == 1 else torch.float32
        policy = MixedPrecisionPolicy(param_dtype=gathered, reduce_dtype=torch.float32, cast_forward_inputs=False)
        fully_shard(
            module,
            mesh=states,
            reshard_after_forward=reshard,
            mp_policy=policy,
            ignored_params=self._balance,
            shard_placement_fn=partial(_sharded_dimension, shards=states.size(-1)),
        )
        if self.mesh.device == "cpu":
            exchange_on_host(cast(FSDPModule, module), self.mesh.shared_memory(states))

    def _groups(self) -> Iterator[FSDPModule]:
        return (module for module in self.decoder.modules() if isinstance(module, FSDPModule))

    @property
    def head_weight(self) -> Tensor:
        """This rank's rows, in the type that the head computes in."""
        return self.decoder.head_weight.to(self.dtypes["head.weight"])

    def forward(self, tokens_BT: Tensor, context: Context) -> Tensor:
        return self.decoder(tokens_BT, context)

    def hidden(self, tokens_BT: Tensor, context: Context) -> Hidden:
        return self.decoder.hidden(tokens_BT, context)

    def from_head(self, x: Tensor) -> Tensor:
        return x

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """N V, float32, of hidden states that every rank has."""
        product_NV = F.linear(hidden_ND.to(self.dtypes["head.weight"]), self.head_weight).float()
        return OutputRule.of(self.spec).logits(self.ranks.all_columns(product_NV))

    def loss(self, hidden_BtD: Tensor, targets_BT: Tensor, mask_BT: Tensor | None, z_weight: float) -> LossSums:
        """Of this rank's chunks of the rows; targets and mask come of whole rows. The same on all ranks that share the tokens."""
        chunks = self.ranks.chunks
        targets_Bs, mask_Bs = chunks.mine(targets_BT), None if mask_BT is None else chunks.mine(mask_BT)
        vocabulary = Vocabulary(self.ranks, self.ranks.first_row(self.spec.vocabulary))
        hidden_BsD, output = self.ranks.all(hidden_BtD), OutputRule.of(self.spec)
        return loss_sums(hidden_BsD, self.head_weight, targets_Bs, mask_Bs, z_weight, output, vocabulary=vocabulary)

    def token_losses(self, hidden_BtD: Tensor, targets_BT: Tensor) -> Tensor | None:
        """Nats of each target of this rank's chunks of the rows, B s; targets come of whole rows."""
        vocabulary = Vocabulary(self.ranks, self.ranks.first_row(self.spec.vocabulary))
        targets_Bs, output = self.ranks.chunks.mine(targets_BT), OutputRule.of(self.spec)
        return token_losses(self.ranks.all(hidden_BtD), self.head_weight, targets_Bs, output, vocabulary=vocabulary)

    def refresh(self) -> None:
        """After a change of the weights: nothing that was gathered before it is read again."""
        for module in self._groups():
            module.reshard()

    def begin_micro_batch(self, *, is_last: bool) -> None:
        """With zero 2 and 3 gradients are scattered to their shards behind each, else behind the last, as replicas add them."""
        decoder = cast(FSDPModule, self.decoder)
        decoder.set_requires_gradient_sync(is_last or self.mesh.axes.scatters_each_pass)
        decoder.set_requires_all_reduce(is_last)

    def take_gradients(self) -> None:
        """After the last backward pass: into ``.grad`` of the parts that the update changes."""
        self.parts.take_gradients()


def ranks_of(mesh: Mesh) -> Ranks:
    """What a rank exchanges with those that work on the same rows."""
    chunks = BalancedChunks(mesh.group("cp")) if mesh.axes.cp > 1 else WHOLE_ROWS
    if mesh.axes.tp > 1:
        return TensorRanks(mesh.group("tp"), chunks)
    return ALONE if chunks is WHOLE_ROWS else Ranks(chunks)


def _divided(parameter: Tensor, mesh: DeviceMesh, over: list[tuple[DeviceMesh, int | None]]) -> DTensor:
    """This rank's part of a parameter on meta: of each axis of ``mesh``, which dimension is cut over it (None: none is)."""
    lengths = list(parameter.shape)
    for axis, dimension in over:
        if dimension is not None:
            own = part(lengths[dimension], axis.get_local_rank(), axis.size())
            lengths[dimension] = own.stop - own.start
    return DTensor.from_local(
        torch.empty(lengths, dtype=parameter.dtype, device="meta"),
        mesh,
        [Replicate() if dimension is None else Shard(dimension) for _, dimension in over],
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def _sharded_dimension(parameter: nn.Parameter, shards: int) -> Shard | None:
    """Rows (None); of experts that are fewer than ``shards`` the dimension behind, or most ranks would hold nothing."""
    local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
    few = local.dim() == 3 and local.shape[0] < shards
    return Shard(1) if few and local.shape[1] % shards == 0 else None


def _parameter_modules(decoder: Decoder) -> Iterator[tuple[str, Weight | Norm]]:
    for name, module in decoder.named_modules():
        if isinstance(module, Weight | Norm):
            yield name, module
