"""Memory of one training process, by component. States are exact; activations are an estimate with a band.

    weights fp32 4 + first moment 4 + second moment 4 + gradient 4 = 16 bytes per parameter
    + 2 bytes per matrix parameter for the bfloat16 copies that the products read

Activations that a backward pass needs, per layer and token, in the products' type (2 bytes in bfloat16): block inputs and
norms 4 D, queries and outputs 2 H E, keys and values 2 K E, feed-forward 3 F; and one fp32 number per head for the softmax.
Without a fused kernel the scores of a micro-batch are kept too: that and what the allocator holds is the upper end.
"""

from __future__ import annotations

from headway.formulas.parameters import count_parameters, parameter_quantities
from headway.formulas.quantity import Quantity, estimate
from headway.recipe.spec import ModelSpec

STATE_BYTES_PER_PARAMETER = 16
CHECKPOINT_BYTES_PER_PARAMETER = 12
LOGIT_CHUNK_TOKENS = 512
PROCESS_BYTES = 300 * 2**20
"""The interpreter with torch loaded (228 MiB measured on CPU) and what its kernels take; mapped data is not counted."""


def state_bytes(parameters: int) -> int:
    """fp32 weights, two moments and gradient."""
    return STATE_BYTES_PER_PARAMETER * parameters


def copy_bytes(model: ModelSpec, compute: str) -> int:
    """bfloat16 copies of the matrices; none when computing in float32."""
    return 2 * count_parameters(model).in_products if compute == "bfloat16" else 0


def activation_bytes_per_token(model: ModelSpec, compute: str) -> int:
    """What backward needs of one token, over all layers, with a fused attention kernel."""
    D, F, H = model.width, model.ffn_width, model.heads
    size = 2 if compute == "bfloat16" else 4
    per_layer = size * (4 * D + 2 * H * model.head_width + 2 * model.kv_heads * model.head_width + 3 * F) + 4 * H
    return model.layers * per_layer


def score_bytes_per_token(model: ModelSpec, sequence_length: int, compute: str) -> int:
    """Attention scores and their softmax, over all layers, where no fused kernel avoids them."""
    size = 2 if compute == "bfloat16" else 4
    return 2 * size * model.layers * model.heads * sequence_length


def logit_bytes(vocabulary: int) -> int:
    """One chunk of logits in fp32, and its gradient."""
    return 2 * 4 * LOGIT_CHUNK_TOKENS * vocabulary


def checkpoint_bytes(parameters: int) -> int:
    """What a checkpoint holds: fp32 weights and two moments."""
    return CHECKPOINT_BYTES_PER_PARAMETER * parameters


def memory_quantities(model: ModelSpec, *, compute: str, sequence_length: int, micro_batch_tokens: int) -> dict[str, Quantity]:
    """States, copies, activations, logits and process, and their sum with its range."""
    parameters = parameter_quantities(model)
    total = parameters["total"]
    state = Quantity(
        "state_bytes", state_bytes(int(total.number())), "bytes", "16 N", {"N": total}, "fp32: weights, m, v, gradient, 4 each"
    )
    products = {"P": parameters["products"]}
    copies = Quantity("copy_bytes", copy_bytes(model, compute), "bytes", "2 P in bfloat16, else 0", products, "bfloat16 copies")
    activations = _activations(model, compute, sequence_length, micro_batch_tokens)
    logits = Quantity(
        "logit_bytes",
        logit_bytes(model.vocabulary),
        "bytes",
        "2 x 4 x chunk x V",
        {"chunk": LOGIT_CHUNK_TOKENS, "V": model.vocabulary},
        "chunked linear cross-entropy, fp32 chunk and gradient",
    )
    process = estimate("process_bytes", PROCESS_BYTES, "bytes", "constant", {}, "torch on CPU", (0.75, 2.0))
    parts = {"state": state, "copies": copies, "activations": activations, "logits": logits, "process": process}
    return parts | {"total": sum_of("memory_bytes", parts, "bytes")}


def _activations(model: ModelSpec, compute: str, sequence_length: int, micro_batch_tokens: int) -> Quantity:
    per_token = activation_bytes_per_token(model, compute)
    tokens = max(sequence_length, micro_batch_tokens // sequence_length * sequence_length)
    low = per_token * tokens
    high = 2 * low + score_bytes_per_token(model, sequence_length, compute) * tokens
    return Quantity(
        "activation_bytes",
        (low * high) ** 0.5,
        "bytes",
        "micro-batch tokens x bytes per token; geometric mean of the range",
        {"micro_batch_tokens": tokens, "bytes_per_token": per_token},
        "low: fused attention, nothing else kept; high: twice that, and all scores kept",
        low,
        high,
    )


def sum_of(name: str, parts: dict[str, Quantity], unit: str) -> Quantity:
    """The sum, with the sum of the ranges: the widest it can be, when all parts err in the same direction."""
    low = sum(part.number() if part.low is None else part.low for part in parts.values())
    high = sum(part.number() if part.high is None else part.high for part in parts.values())
    value = sum(part.number() for part in parts.values())
    exact = all(not part.is_estimate for part in parts.values())
    inputs = {part.name: part for part in parts.values()}
    return Quantity(name, value, unit, "sum", inputs, "", None if exact else low, None if exact else high)
