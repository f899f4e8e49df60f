"""bfloat16 compute over float32 master weights.

    master (float32, named parameters)  --refresh: one cast per step-->  compute copies (bfloat16 leaves)
              .grad (float32)           <--after each backward: add----  their gradients (bfloat16), dropped at once

Casting happens once per update and never per micro-batch; gradients of micro-batches are summed in float32. The
embedding is read from the master itself: its gradient sums over all occurrences of a token, which bfloat16 cannot hold.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headway.base.errors import ConfigError
from headway.model.context import Context
from headway.model.decoder import Decoder, Weight

COMPUTE_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class ComputeModel:
    """What a step runs: ``forward`` for hidden states, ``head_weight`` for the loss, ``refresh`` after an update.

    Gradients arrive in ``.grad`` of ``decoder``'s parameters, accumulated in float32 over backward passes.
    """

    def __init__(self, decoder: Decoder, compute: str):
        if compute not in COMPUTE_DTYPES:
            raise ConfigError(f"unknown compute precision {compute!r}", f"known: {', '.join(COMPUTE_DTYPES)}")
        self.decoder, self.spec, self.dtype = decoder, decoder.spec, COMPUTE_DTYPES[compute]
        self._masters: list[Tensor] = []
        self._copies: list[Tensor] = []
        self._model = decoder if self.dtype == torch.float32 else self._build_copy()
        self.refresh()

    @property
    def head_weight(self) -> Tensor:
        """V D, in the compute dtype."""
        return self._model.head_weight

    def forward(self, tokens_BT: Tensor, context: Context) -> Tensor:
        """Hidden states after the final norm, B T D, in the compute dtype."""
        return self._model(tokens_BT, context)

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the master weights into the compute copies. Call it after every change of the masters."""
        if self._copies:
            torch._foreach_copy_(self._copies, self._masters)

    def _build_copy(self) -> Decoder:
        with torch.device("meta"):
            model = Decoder(self.spec)
        if model.head is None:  # tied: the head still needs its own compute copy, the embedding stays the master
            model.head = Weight(1)
        for name, master in self.decoder.named_parameters():
            if name != "embed.weight":
                _place(model, name, self._copy_of(master))
        _place(model, "embed.weight", self.decoder.embed.weight)
        if self.spec.tied_embeddings:
            _place(model, "head.weight", self._copy_of(self.decoder.embed.weight))
        return model

    def _copy_of(self, master: Tensor) -> nn.Parameter:
        copy = nn.Parameter(torch.empty_like(master, dtype=self.dtype))
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
