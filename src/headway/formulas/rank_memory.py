"""Memory of one rank of a run in several processes, at its peak: ``memory.py`` for a part of the model, the tokens, the states.

    state      weights and moments of this rank's shards, 12 bytes per parameter (Muon's matrices 8)
    gradients  of earlier micro-batches: of the shards (zero 2, 3), or whole until the last (zero 0, 1); of one micro-batch none,
               since they come when activations go
    gathered   what products read: every block's weights, or with zero 3 those of two blocks while one is computed backward;
               embedding, last norm and head in float32 throughout, and the head as products read it

    tp         heads, inner widths and vocabulary / tp; what norms read is split too, what products read is whole
    cp         tokens / cp; keys and values of whole rows; scores of own queries

A rank of a pipeline holds other micro-batches than its neighbours: not counted here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headway.formulas.activations import Pass, block_backward_bytes, element_bytes, kept_bytes, kept_scores, logit_bytes
from headway.formulas.memory import block_spread, process_and_allocator, sum_of, trained_state
from headway.formulas.quantity import Input, Quantity, estimate
from headway.recipe.roles import Role, norms_of_block, parameter_shapes
from headway.recipe.spec import ModelSpec, OptimizerSpec

MASTER_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Share:
    """What a rank has of the whole: axes tp and cp, ``shards`` of states (dp_shard x cp), micro-batches of a step."""

    tp: int = 1
    cp: int = 1
    shards: int = 1
    zero: int = 3
    passes: int = 1

    def takes(self, model: ModelSpec) -> bool:
        """Whether the formulas here say what such a rank holds."""
        divides = model.heads % self.tp == model.kv_heads % self.tp == 0  # the engine never copies heads; plans may
        return self.tp == self.cp == 1 or (divides and model.experts is None and model.latent is None)


def rank_quantities(one: Pass, share: Share, optimizer: OptimizerSpec) -> dict[str, Quantity]:
    """The components for a rank whose replica computes ``one``, and their sum with its range."""
    whole = trained_state(one.model, optimizer)
    parameters = sum(shape.count for shape in parameter_shapes(one.model) if shape.role is not Role.BALANCE)
    state = Quantity(
        "weights_and_moments_bytes",
        round((whole.number() - MASTER_BYTES * parameters) / (share.tp * share.shards)),
        "bytes",
        "(state of the model - 4 N) / (tp x shards)",
        {"state_bytes": whole, "N": parameters, "tp": share.tp, "shards": share.shards},
        "weights and moments, float32; gradients apart",
    )
    activations, working = _activations(one, share), _working(one, share)
    parts = {
        "state": state,
        "gradients": _gradients(parameters, share),
        "gathered": _gathered(one, share),
        "activations": activations,
        "working": working,
        **process_and_allocator(activations, working),
    }
    return parts | {"total": sum_of("memory_bytes", parts, "bytes")}


def _gradients(parameters: int, share: Share) -> Quantity:
    name, source = "gradient_bytes", "float32, of the micro-batches before"
    if share.passes == 1:
        return Quantity(name, 0, "bytes", "none: of one micro-batch they come as activations go", {}, source)
    inputs: dict[str, Input] = {"N": parameters, "tp": share.tp}
    if share.zero < 2:
        return Quantity(name, MASTER_BYTES * parameters // share.tp, "bytes", "4 N / tp, whole until the last", inputs, source)
    value = MASTER_BYTES * parameters // (share.tp * share.shards)
    return Quantity(name, value, "bytes", "4 N / (tp x shards)", inputs | {"shards": share.shards}, source)


def _gathered(one: Pass, share: Share) -> Quantity:
    blocks, ends = _divided_parameters(one.model)
    size = element_bytes(one.compute)
    head = 0 if one.compute == "float32" else one.model.vocabulary * one.model.width
    kept = 0 if share.zero == 3 and share.shards > 1 else blocks
    value = (size * kept + MASTER_BYTES * ends + size * head) / share.tp
    formula = "(s M + 4 R + s H) / tp" if kept else "(4 R + s H) / tp"
    inputs: dict[str, Input] = {"R": ends, "H": head, "s": size, "tp": share.tp}
    if kept:
        inputs["M"] = blocks
    source = "M: of blocks; R: embedding, last norm and head, in float32; H: the head as products read it"
    return Quantity("gathered_bytes", round(value), "bytes", formula, inputs, source)


def _divided_parameters(model: ModelSpec) -> tuple[int, int]:
    """Of blocks, and around them."""
    counts = [0, 0]
    for shape in parameter_shapes(model):
        if shape.role is not Role.BALANCE:
            counts[not shape.name.startswith(("layers.", "mtp."))] += shape.count
    return counts[0], counts[1]


def _activations(one: Pass, share: Share) -> Quantity:
    low, high = kept_by_rank(one, share)
    return Quantity(
        "activation_bytes",
        (low + high) / 2,
        "bytes",
        "tensors that forward keeps for a micro-batch of so many tokens on this rank, counted; middle of the range",
        {"micro_batch_tokens": one.tokens, "sequence_length": one.sequence_length, "tp": share.tp, "cp": share.cp},
        "counted tensor by tensor. low: documents as short as a block of queries; high: one document and a mask",
        low,
        high,
    )


def kept_by_rank(one: Pass, share: Share) -> tuple[float, float]:
    """Everything that is alive when the backward pass begins, fewest and most."""
    part = of_tensor_rank(one, share.tp)
    size, tokens = one.element_bytes, one.tokens / share.cp
    low, high = kept_bytes(part)
    fewest, most = (size * count for count in kept_scores(part))
    mask = size * one.tokens * one.sequence_length
    certain = (low - fewest) / share.cp
    split = norms_of_block(one.model)[0] * (one.model.layers + one.model.mtp_layers) + 1 + one.model.mtp_layers
    certain -= tokens * size * one.model.width * split * (1 - 1 / share.tp)
    keys = 2 * size * part.model.kv_heads * one.model.head_width * one.model.layers
    certain += keys * (one.tokens - tokens)
    assert low <= high
    return certain + fewest / share.cp, certain + (most + mask) / share.cp


def of_tensor_rank(one: Pass, tp: int) -> Pass:
    """The same tokens through a tensor rank's part of every layer."""
    model = one.model
    if tp == 1:
        return one
    vocabulary = -(-model.vocabulary // tp)
    divided = replace(model, heads=model.heads // tp, kv_heads=model.kv_heads // tp, ffn_width=model.ffn_width // tp)
    return replace(one, model=replace(divided, vocabulary=vocabulary))


def _working(one: Pass, share: Share) -> Quantity:
    part = of_tensor_rank(one, share.tp)
    loss, (least, most) = logit_bytes(part), block_spread(one.model)
    block = block_backward_bytes(part) / share.cp
    gathered = _block_in_flight(one, share)
    low, value, high = (max(loss, factor * block + gathered) for factor in (least, 1.0, most))
    return estimate(
        "working_bytes",
        value,
        "bytes",
        "the larger of the loss and of one block's backward, with its weights and gradients",
        {"logit_bytes": loss, "block_backward_bytes": block, "block_weights_and_gradients": gathered},
        "counted (loss, weights), measured (block)",
        (low / value, high / value),
    )


def _block_in_flight(one: Pass, share: Share) -> float:
    """Zero 3: weights of this block and the next; its gradients as computed, and in float32 to be summed."""
    if share.shards == 1:
        return 0.0
    blocks, _ = _divided_parameters(one.model)
    block, size = blocks / one.model.layers / share.tp, element_bytes(one.compute)
    weights = 2 * size * block if share.zero == 3 else 0.0
    return weights + (size + MASTER_BYTES) * block
