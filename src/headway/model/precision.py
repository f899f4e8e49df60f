"""Compute precision by module over float32 master weights.

    master (float32, named parameters)  --refresh: one cast per step-->  compute copies (bfloat16 leaves)
              .grad (float32)           <--after each backward: add----  their gradients (bfloat16), dropped at once

Casting happens once per update and never per micro-batch; gradients of micro-batches are summed in float32. Some parameters are
read from the master itself: embeddings, whose gradient sums over all occurrences of a token, which bfloat16 cannot hold;
routers, where a rounded score sends a token elsewhere; and every module that the recipe computes in float32.

float8 is no type of weights: copies are bfloat16, and projections of blocks multiply through ``float8.py``. Which they are, and
which parameter computes in what, says ``recipe/trainable.py``.
"""

from __future__ import annotations

from typing import Protocol, cast

import torch
from torch import Tensor, nn

from headway.base.errors import ConfigError
from headway.model.away import Away
from headway.model.context import Context
from headway.model.decoder import Decoder, Hidden
from headway.model.float8 import make_product
from headway.model.loss import LossSums, OutputRule, loss_sums
from headway.model.ranks import ALONE, Ranks
from headway.model.token_loss import token_losses
from headway.model.weight import Weight
from headway.recipe.spec import ModelSpec, PrecisionSpec
from headway.recipe.trainable import parameter_precisions


class Computes(Protocol):
    """The model of one process or of one rank, as steps and evaluations run it."""

    spec: ModelSpec
    dtype: torch.dtype  # of what passes between modules
    ranks: Ranks  # that share the tokens

    @property
    def decoder(self) -> Decoder: ...
    def forward(self, tokens_BT: Tensor, context: Context) -> Tensor: ...
    def hidden(self, tokens_BT: Tensor, context: Context) -> Hidden: ...
    def logits(self, hidden_ND: Tensor) -> Tensor: ...
    def loss(self, hidden_BTD: Tensor, targets_BT: Tensor, mask_BT: Tensor | None, z_weight: float) -> LossSums: ...
    def token_losses(self, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor | None: ...
    def begin_micro_batch(self, *, is_last: bool) -> None: ...
    def take_gradients(self) -> None: ...
    def refresh(self) -> None: ...
    def from_head(self, x: Tensor) -> Tensor: ...


COMPUTE_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float8": torch.bfloat16}
"""Precision -> type of the weights that are read, and of what passes between modules."""


class ComputeModel:
    """What a step runs: ``hidden`` for the loss, ``forward`` and ``logits`` for evaluation, ``refresh`` after an update.

    Gradients arrive in ``.grad`` of ``decoder``'s parameters, accumulated in float32 over backward passes.
    """

    ranks: Ranks = ALONE

    def __init__(self, decoder: Decoder, precision: PrecisionSpec, recompute: str = "none", away: Away | None = None):
        """``recompute``, ``away``: what its blocks compute again, and where they keep the rest (None: where it is)."""
        if unknown := sorted({precision.compute, *precision.modules.values()} - COMPUTE_DTYPES.keys()):
            raise ConfigError(f"unknown compute precision {unknown[0]!r}", f"known: {', '.join(COMPUTE_DTYPES)}")
        self.decoder, self.spec = decoder, decoder.spec
        self.precisions = parameter_precisions(decoder.spec, precision)
        self.dtypes = {name: COMPUTE_DTYPES[kind] for name, kind in self.precisions.items()}
        self.dtype = COMPUTE_DTYPES[precision.compute]
        self._masters: list[Tensor] = []
        self._copies: list[Tensor] = []
        self._model = decoder if set(self.dtypes.values()) == {torch.float32} else self._build_copy()
        self._model.recompute(recompute)
        if away is not None:
            self._model.put_away(away)
        self.refresh()

    @property
    def head_weight(self) -> Tensor:
        """V D, in its compute dtype."""
        return self._model.head_weight

    def forward(self, tokens_BT: Tensor, context: Context) -> Tensor:
        """Hidden states after the final norm, B T D, in the compute dtype."""
        return self._model(tokens_BT, context)

    def hidden(self, tokens_BT: Tensor, context: Context) -> Hidden:
        """The same with those of the heads for further tokens."""
        return self._model.hidden(tokens_BT, context)

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """N V, float32."""
        return self._model.logits(hidden_ND)

    def loss(self, hidden_BTD: Tensor, targets_BT: Tensor, mask_BT: Tensor | None, z_weight: float) -> LossSums:
        """Sums of the loss over targets, without logits of all tokens at once."""
        return loss_sums(hidden_BTD, self.head_weight, targets_BT, mask_BT, z_weight, OutputRule.of(self.spec))

    def token_losses(self, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor | None:
        """Nats of each target, B T; of a rank, those of its chunks of the rows; None: on ranks without the head."""
        return token_losses(hidden_BTD, self.head_weight, targets_BT, OutputRule.of(self.spec))

    def begin_micro_batch(self, *, is_last: bool) -> None:
        """Alone there is nobody to add gradients with."""

    def take_gradients(self) -> None:
        """They are in ``.grad`` of the masters already."""

    def from_head(self, x: Tensor) -> Tensor:
        """What the rank with the head made of its losses, for all ranks of a pipeline: alone, it is here."""
        return x

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the master weights into the compute copies. Call it after every change of the masters."""
        if self._copies:
            torch._foreach_copy_(self._copies, self._masters)

    def _build_copy(self) -> Decoder:
        with torch.device("meta"):
            model = Decoder(self.spec)
        if model.head is None:  # tied: the head has a compute copy of its own, the embedding stays the master
            model.head = Weight(1)
            _place(model, "head.weight", self._in(self.dtypes["head.weight"], self._embedding))
        for name, master in self.decoder.named_parameters():
            _place(model, name, self._in(self.dtypes[name], master))
        self._mark_float8(model)
        model.stream_dtype = self.dtype
        return model

    @property
    def _embedding(self) -> nn.Parameter:
        assert self.decoder.embed is not None, "it is whole"
        return self.decoder.embed.weight

    def _mark_float8(self, model: Decoder) -> None:
        if marked := [name for name, kind in self.precisions.items() if kind == "float8"]:
            product = make_product(self._embedding.device)
            for name in marked:
                cast(Weight, model.get_submodule(name.removesuffix(".weight"))).float8 = product

    def _in(self, dtype: torch.dtype, master: nn.Parameter) -> nn.Parameter:
        """A compute copy of ``master``, or itself where nothing is to be cast."""
        if dtype == master.dtype:
            return master
        copy = nn.Parameter(torch.empty_like(master, dtype=dtype))
        copy.register_post_accumulate_grad_hook(_GradientTo(master))
        self._masters.append(master)
        self._copies.append(copy)
        return copy


class _GradientTo:
    """Adds a compute copy's gradient to its master's and drops it."""

    def __init__(self, master: Tensor):
        self.master = master

    def __call__(self, copy: Tensor) -> None:
        assert copy.grad is not None
        if self.master.grad is None:
            self.master.grad = copy.grad.to(self.master.dtype)
        else:
            self.master.grad.add_(copy.grad)
        copy.grad = None


def _place(model: Decoder, name: str, parameter: nn.Parameter) -> None:
    owner, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(owner), leaf, parameter)
