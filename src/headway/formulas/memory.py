"""Memory of one training process, by component, at its peak: the end of a forward pass, or the first block's backward.

state        16 bytes per parameter: fp32 weights, two moments, gradient                                    exact
             12 of Muon's matrices, which have one moment; 4 of balancing biases, which loads move
copies       2 bytes per matrix parameter: what the products read in bfloat16 (not routers, which read fp32)  exact
activations  what forward keeps, counted from the model                       open only in where documents begin
working      the loss's chunk buffers and head gradient (exact), or a block's backward (measured factor)
process      interpreter, torch, threads                                                                 measured
allocator    freed blocks that the heap does not give back                                               measured
"""

from __future__ import annotations

from headway.formulas.activations import Pass, block_backward_bytes, kept_bytes, logit_bytes, loss_chunk_tokens
from headway.formulas.parameters import parameter_quantities
from headway.formulas.quantity import Input, Quantity, estimate
from headway.recipe.mup import is_muon
from headway.recipe.roles import Role, parameter_shapes
from headway.recipe.spec import ModelSpec, OptimizerSpec

STATE_BYTES_PER_PARAMETER = 16
PROCESS_BYTES = 350 * 2**20
"""On CPU: 225 MiB after imports, 340 to 360 MiB beside the tensors once the model is initialised and threads have started."""
PROCESS_SPREAD = (0.64, 1.3)
ALLOCATOR_SHARE = (0.0, 0.2, 0.4)
"""Of activations and working memory, on top of them: least, typical, most. Seen at four micro batches: 0.1 to 0.4."""


def block_spread(model: ModelSpec) -> tuple[float, float]:
    """Of a block's backward against ``block_backward_bytes``, measured: dense with a gate 0.7 to 1.2, the others 0.39 to 1.55."""
    plain = model.gated and model.latent is None and model.experts is None and not model.block.startswith("parallel")
    return (0.7, 1.2) if plain and model.attention_softcap is None else (0.35, 1.6)


def state_bytes(parameters: int) -> int:
    """fp32 weights, two moments and gradient."""
    return STATE_BYTES_PER_PARAMETER * parameters


def copied_parameters(model: ModelSpec) -> int:
    """Matrices that products read as bfloat16 copies: of blocks and heads for further tokens, and the head (tied: the embedding
    as one). Gains and biases have copies too, which are left out: they are few."""
    head = model.vocabulary * model.width
    return head + sum(shape.count for shape in parameter_shapes(model) if shape.role in (Role.MATRIX, Role.RESIDUAL))


def copy_bytes(model: ModelSpec, compute: str) -> int:
    """bfloat16 copies of the matrices; none when computing in float32."""
    return 0 if compute == "float32" else 2 * copied_parameters(model)


def memory_quantities(one: Pass, optimizer: OptimizerSpec | None = None) -> dict[str, Quantity]:
    """The components for a process that computes ``one``, and their sum with its range. ``optimizer``: by default AdamW."""
    state = trained_state(one.model, optimizer)
    copied, passed = copied_parameters(one.model), parameter_quantities(one.model)["products"]
    products: dict[str, Input] = {"P": passed if passed.value == copied else copied}
    copies = Quantity(
        "copy_bytes", copy_bytes(one.model, one.compute), "bytes", "2 P in bfloat16, else 0", products, "bfloat16 copies"
    )
    activations, working = _activations(one), _working(one)
    parts = {
        "state": state,
        "copies": copies,
        "activations": activations,
        "working": working,
        **process_and_allocator(activations, working),
    }
    return parts | {"total": sum_of("memory_bytes", parts, "bytes")}


def process_and_allocator(activations: Quantity, working: Quantity) -> dict[str, Quantity]:
    """What stands beside the tensors."""
    process = estimate("process_bytes", PROCESS_BYTES, "bytes", "constant", {}, "torch on CPU, measured", PROCESS_SPREAD)
    return {"process": process, "allocator": _allocator(activations, working)}


def trained_state(model: ModelSpec, optimizer: OptimizerSpec | None) -> Quantity:
    """Letters beyond N stand only where there is something that they count."""
    stored, shapes = parameter_quantities(model)["stored"], parameter_shapes(model)
    muon = sum(shape.count for shape in shapes if optimizer is not None and is_muon(shape, optimizer))
    balance = sum(shape.count for shape in shapes if shape.role is Role.BALANCE)
    terms = [("4 M", "M", muon, 4), ("12 B", "B", balance, 12)]
    used = [term for term in terms if term[2]]
    value = state_bytes(int(stored.number())) - sum(count * bytes_ for _, _, count, bytes_ in used)
    inputs: dict[str, Input] = {"N": stored} | {letter: count for _, letter, count, _ in used}
    source = "fp32: weights, m, v, gradient, 4 each"
    if used:
        source += "; M: Muon's matrices, no v; B: balancing biases, weights alone"
    return Quantity("state_bytes", value, "bytes", " - ".join(["16 N", *(text for text, *_ in used)]), inputs, source)


def _activations(one: Pass) -> Quantity:
    low, high = kept_bytes(one)
    return Quantity(
        "activation_bytes",
        (low + high) / 2,
        "bytes",
        "tensors that forward keeps for a micro-batch of so many tokens, counted; middle of the range",
        {"micro_batch_tokens": one.tokens, "sequence_length": one.sequence_length},
        "counted tensor by tensor. low: documents as short as a block of queries; high: one document and a mask",
        low,
        high,
    )


def _working(one: Pass) -> Quantity:
    vocabulary = one.model.vocabulary
    inputs = {"C": min(loss_chunk_tokens(vocabulary), one.tokens), "V": vocabulary, "D": one.model.width}
    formula = "fp32 logits, softmax and gradients of a chunk of C tokens, and the head's gradient 4 V D"
    logits = Quantity("logit_bytes", logit_bytes(one), "bytes", formula, inputs, "model.loss, counted")
    block, (least, most) = block_backward_bytes(one), block_spread(one.model)
    spread = (block * least, block * most)
    low, value, high = (max(logits.number(), bytes_) for bytes_ in (spread[0], block, spread[1]))
    return Quantity(
        "working_bytes",
        value,
        "bytes",
        f"the larger of the loss and of one block's backward, {_block_formula(one.model)}",
        {"logit_bytes": logits, "block_backward_bytes": block},
        "counted (loss), measured (block)",
        low,
        high,
    )


def _block_formula(model: ModelSpec) -> str:
    """As ``block_backward_bytes``; k, F: of experts where the last block has them."""
    if model.has_experts(model.layers - 1):
        return "tokens x max(12 D, 12 H E, 3 k F element size, 12 k D (8 k D in float32))"
    return "tokens x max(12 D, 12 H E, 3 F element size)"


def _allocator(activations: Quantity, working: Quantity) -> Quantity:
    low, middle, high = ALLOCATOR_SHARE
    return Quantity(
        "allocator_bytes",
        middle * (activations.number() + working.number()),
        "bytes",
        f"{middle:g} x (activations + working)",
        {"activation_bytes": activations, "working_bytes": working},
        "measured: resident memory less what the tensors take",
        low,
        high * (activations.at("high") + working.at("high")),
    )


def sum_of(name: str, parts: dict[str, Quantity], unit: str) -> Quantity:
    """The sum, with the sum of the ranges: the widest it can be, when all parts err in the same direction."""
    low, high = sum(part.at("low") for part in parts.values()), sum(part.at("high") for part in parts.values())
    value = sum(part.number() for part in parts.values())
    exact = all(not part.is_estimate for part in parts.values())
    inputs = {part.name: part for part in parts.values()}
    return Quantity(name, value, unit, "sum", inputs, "", None if exact else low, None if exact else high)
