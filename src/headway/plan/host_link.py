"""What goes over the host's link in a step, each way: as planned, and as this engine keeps it, tensor by tensor.

    moments        all that a rank has, to their parameters and back
    activations    what the blocks of a rank keep of every micro-batch, to host memory in the forward pass, back in the backward

Planned activations are those of fused kernels everywhere (``memory/activations.py``). Those of this engine's modules are counted
in ``formulas/activations.py``; beside them, torch's attention keeps the logarithm of each softmax's sum.
"""

from __future__ import annotations

from collections.abc import Iterator

from headway.base.errors import ConfigError
from headway.formulas.activations import Pass, layer_bytes_per_token
from headway.formulas.rank_memory import Share, of_tensor_rank
from headway.plan.held import held, stage_run
from headway.plan.memory.model import moments_bytes, pass_bytes
from headway.plan.memory.stages import Stage, stages
from headway.plan.work import Layout, Recompute, Work
from headway.recipe.roles import norms_of_block

TENSOR_BY_TENSOR = "every tensor that this engine's modules keep (formulas/activations.py)"


def refuse_uncounted(work: Work, layout: Layout) -> None:
    """ConfigError for activations in host memory that are not counted tensor by tensor."""
    model = work.model
    if not layout.offload.activations or layout.recompute is Recompute.FULL:
        return
    open_ = {
        f"recompute {layout.recompute}": layout.recompute is not Recompute.NONE,
        f"cp {layout.cp}": layout.cp > 1,
        "a window": model.window is not None,
        "capped scores": model.attention_softcap is not None,
        "float8": work.precision == "float8",
        "latents": model.latent is not None,
        f"tp {layout.tp} with experts": not Share(tp=layout.tp).takes(model),
    }
    found = [what for what, is_so in open_.items() if is_so]
    if found:
        raise ConfigError(
            f"--layout offload={layout.offload} with {' and '.join(found)}",
            "what blocks keep there is not counted tensor by tensor",
            "offload=optimizer, or recompute=full; headway plan has it, and headway prove and headway run carry it out",
            "--layout",
        )


def planned_moments(work: Work, layout: Layout) -> float:
    return moments_bytes(work, layout, _stage(work, layout)) if layout.offload.moments else 0.0


def planned_activations(work: Work, layout: Layout) -> float:
    """Of all micro-batches."""
    return layout.micro_batches(work.batch) * pass_bytes(work, layout, _stage(work, layout))


def kept_activations(work: Work, layout: Layout) -> float:
    """The same, as this engine keeps them."""
    model = work.model
    one = Pass(model=model, compute=work.precision, sequence_length=work.sequence, rows=layout.micro_batch)
    per_token = sum(_of_block(one, layout, routed) for routed in _blocks(work, layout))
    return layout.micro_batches(work.batch) * work.rank_tokens(layout) * per_token


def _blocks(work: Work, layout: Layout) -> Iterator[bool]:
    """Of the rank's blocks, those of heads for further tokens too: whether they have experts."""
    yield from map(work.model.has_experts, held(work.model, layout).layers)


def _of_block(one: Pass, layout: Layout, routed: bool) -> float:
    """Per token. Norms' inputs are those of a tensor rank's own tokens, what they make is of all of the group's."""
    model, size = one.model, one.element_bytes
    if layout.recompute is Recompute.FULL:
        return size * model.width / layout.tp
    part = of_tensor_rank(one, layout.tp).model
    split = size * model.width * norms_of_block(model)[0] * (1 - 1 / layout.tp)
    return layer_bytes_per_token(part, one.compute, routed=routed) - split + 4 * part.heads


def _stage(work: Work, layout: Layout) -> Stage:
    return stages(work.model, layout.pp, layout.virtual, layout.tp, layout.ep)[stage_run(work.model, layout)]
