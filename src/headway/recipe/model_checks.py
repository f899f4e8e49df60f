"""Rules across the fields of a model, and between a model and the stages that train it.

heads       divide; even widths where RoPE turns pairs
latent      has keys for every head, widths of its own, no biases
experts     at least top-k of them, a layer that has them, a router that learns
positions   a table where positions are learned, long enough for every stage and for texts that are decoded
yarn        of the model and of every stage: beside RoPE, slow before fast
nominal     the size that a model is called by is about its size
window      no longer than the sequences; nothing about windows without one
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING

from headway.base.units import format_count
from headway.recipe.findings import Finding, divisors, found
from headway.recipe.idle_keys import check_idle
from headway.recipe.lines import KeyPath
from headway.recipe.resolved_model import resolve_model
from headway.recipe.roles import block_shapes, input_shapes, output_shapes
from headway.recipe.spec import ModelSpec

if TYPE_CHECKING:
    from headway.recipe.schema import Evaluation, Experts, Latent, Model, Stage, Yarn

MOST_ROUNDED = 0.1
"""Names round: 8.03 B are called 8B, 405.9 B 400B."""


def check_model(model: Model) -> Iterator[Finding]:
    if model.latent is not None:
        yield from _check_latent(model, model.latent)
    else:
        yield from _check_heads(model)
    yield from _check_experts(model)
    yield from _check_options(model)
    yield from _check_positions(model)
    yield from _check_yarn(("model", "yarn"), model.yarn, model.position)
    yield from _check_mup(model)
    yield from check_idle(("model",), model)
    if model.experts is not None:
        yield from check_idle(("model", "experts"), model.experts)


def _check_heads(model: Model) -> Iterator[Finding]:
    kv_heads = model.kv_heads or model.heads
    if model.heads % kv_heads:
        yield found(
            ("model", "kv_heads"),
            f"{model.heads} query heads cannot share {kv_heads} key and value heads",
            "heads must be a multiple of kv_heads",
            f"choose kv_heads among {', '.join(map(str, divisors(model.heads)))}",
        )
    if model.head_width is None and model.width % model.heads:
        yield found(
            ("model", "heads"),
            f"a width of {model.width} does not divide into {model.heads} heads",
            "without head_width, width must be a multiple of heads",
            "change width or heads, or give head_width",
        )
    elif model.position == "rope" and (model.head_width or model.width // model.heads) % 2:
        yield found(
            ("model", "heads" if model.head_width is None else "head_width"),
            f"a head is {model.head_width or model.width // model.heads} wide",
            "RoPE turns pairs of values: heads have an even width",
            "choose an even head_width",
        )


def _check_latent(model: Model, latent: Latent) -> Iterator[Finding]:
    if model.kv_heads not in (None, model.heads):
        yield found(
            ("model", "kv_heads"),
            f"kv_heads = {model.kv_heads} beside latent attention of {model.heads} heads",
            "latent attention makes keys and values for every head from the rank that they share",
            "remove kv_heads",
        )
    width = latent.nope_width + latent.rope_width
    if model.head_width not in (None, width):
        yield found(
            ("model", "head_width"),
            f"head_width = {model.head_width} beside latent attention, whose queries are {width} wide",
            "with latent, a head's width is nope_width + rope_width",
            "remove head_width",
        )
    if model.position == "rope" and (latent.rope_width == 0 or latent.rope_width % 2):
        yield found(
            ("model", "latent", "rope_width"),
            f"rope_width is {latent.rope_width}",
            "RoPE turns pairs of values: rope_width is even and not 0",
            'choose an even rope_width, or position = "none"',
        )
    elif model.position != "rope" and latent.rope_width:
        yield found(
            ("model", "latent", "rope_width"),
            f"rope_width is {latent.rope_width}, position is {model.position!r}",
            "rope_width is the part of a head that RoPE turns",
            'choose position = "rope", or rope_width = 0',
        )
    if model.bias in ("qkv", "all"):
        yield found(
            ("model", "bias"),
            f"bias = {model.bias!r} beside latent attention",
            "the projections of latent attention have no biases",
            'choose "none", or "norm"',
        )


def _check_experts(model: Model) -> Iterator[Finding]:
    experts = model.experts
    if experts is None:
        return
    if experts.top_k > experts.experts:
        yield found(
            ("model", "experts", "top_k"),
            f"experts fewer than top-k: {experts.experts} experts, {experts.top_k} chosen for every token",
            "a token passes top_k different experts of a layer",
            f"top_k is at most {experts.experts}",
        )
    if experts.top_k == 1 and experts.normalise and experts.experts > 1:
        yield found(
            ("model", "experts", "top_k"),
            "top_k = 1 with normalise = true",
            "one score divided by itself is 1, whatever the router says: it would never learn from the loss",
            "write normalise = false, or top_k = 2 or more",
        )
    yield from _check_groups(experts)
    if experts.dense_layers + experts.every > model.layers:
        first = experts.dense_layers + experts.every
        yield found(
            ("model", "experts", "dense_layers" if experts.dense_layers else "every"),
            f"no layer has experts: the first would be layer {first:,} of {model.layers:,}",
            "after dense_layers, every n-th layer has experts",
            f"dense_layers + every is at most {model.layers:,}; without experts, remove model.experts",
        )


def _check_groups(experts: Experts) -> Iterator[Finding]:
    if experts.experts % experts.groups:
        yield found(
            ("model", "experts", "groups"),
            f"{experts.experts} experts do not divide into {experts.groups} groups",
            "groups are equal parts of the experts",
            f"choose groups among {', '.join(map(str, divisors(experts.experts)))}",
        )
        return
    if experts.groups_per_token > experts.groups:
        yield found(
            ("model", "experts", "groups_per_token"),
            f"a token's experts lie in at most {experts.groups_per_token} groups, and there are {experts.groups}",
            "groups_per_token is at most groups; 0: anywhere",
            "lower it, or remove it",
        )
    reach = experts.groups_per_token * experts.experts // experts.groups
    if experts.groups_per_token and reach < experts.top_k <= experts.experts:
        yield found(
            ("model", "experts", "groups_per_token"),
            f"{experts.groups_per_token} groups hold {reach} experts, a token passes {experts.top_k}",
            "the groups of a token hold its top_k experts",
            "raise groups_per_token",
        )


def _check_options(model: Model) -> Iterator[Finding]:
    """Options that say nothing, or not enough, beside others."""
    if model.bias == "norm" and model.norm != "layernorm":
        yield found(
            ("model", "bias"), f'bias = "norm" beside norm = {model.norm!r}', "only a layernorm has a bias", 'choose "none"'
        )
    if (model.position == "learned") != (model.positions is not None):
        learned = model.position == "learned"
        yield found(
            ("model", "position" if learned else "positions"),
            f"position is {model.position!r}, positions {'is not given' if learned else f'= {model.positions:,}'}",
            "positions are the rows of the table that learned positions have",
            "add positions = ..., the longest sequence" if learned else 'remove it, or choose position = "learned"',
        )
    if model.window is not None and model.full_attention_every == 1:
        yield found(
            ("model", "full_attention_every"),
            f"window = {model.window:,} with full_attention_every = 1",
            "then every layer sees all before a token, and none has the window",
            "remove window, or write 0 (no layer) or 2 and more",
        )


def _check_positions(model: Model) -> Iterator[Finding]:
    """What shapes RoPE."""
    if model.position == "rope" and model.nope_every == 1:
        yield found(
            ("model", "nope_every"),
            "nope_every = 1: no layer has positions",
            "every n-th layer goes without, n from 2 on",
            'write position = "none" where none is to have them',
        )
    if model.rotary_share != 1 and model.latent is None and model.position == "rope":
        yield from _check_rotary_share(model)


def _check_yarn(at: KeyPath, yarn: Yarn | None, position: str) -> Iterator[Finding]:
    """Of the model or of a stage, at the key path ``at``."""
    if yarn is None:
        return
    if position != "rope":
        yield found(
            at,
            f"yarn beside position = {position!r}",
            "it shapes RoPE, and this model has none",
            'remove yarn, or choose position = "rope"',
        )
    if yarn.slow >= yarn.fast:
        yield found(
            (*at, "slow"),
            f"slow = {yarn.slow:g} and fast = {yarn.fast:g}",
            "frequencies between slow and fast turns are mixed, so slow is less than fast",
            "lower slow, or leave both out",
        )


def _check_rotary_share(model: Model) -> Iterator[Finding]:
    head = model.head_width or model.width // model.heads
    turned = float(model.rotary_share) * head
    if turned % 2 or turned < 2:
        yield found(
            ("model", "rotary_share"),
            f"rotary_share = {model.rotary_share:g} of a head of {head} turns {turned:g} values",
            "RoPE turns pairs of values: an even number, at least 2",
            f"choose {max(2, 2 * round(turned / 2)) / head:g}",
        )


def _check_mup(model: Model) -> Iterator[Finding]:
    """What the table does not cover is refused by name."""
    if model.mup is not None and model.mup.base_layers is not None and model.block == "post-add":
        yield found(
            ("model", "mup", "base_layers"),
            f"base_layers beside block = {model.block!r}",
            "the rule in depth is for a stream that blocks only add to",
            "remove base_layers, or choose another block",
        )


def check_nominal(model: Model, vocabulary: int) -> Iterator[Finding]:
    """The number that a model is called by stands for N in 6 N D: left behind by a change of shape, it counts another model."""
    called = model.nominal_parameters
    if called is None:
        return
    exact = passed_parameters(resolve_model(model, vocabulary))
    if abs(called / exact - 1) > MOST_ROUNDED:
        yield found(
            ("model", "nominal_parameters"),
            f"nominal_parameters = {called:,}, and a token passes {exact:,} parameters of this shape",
            f"it is the size by which people call the model, at most {100 * MOST_ROUNDED:.0f} % off",
            f'leave it out, or write "{format_count(exact)}"',
        )


def passed_parameters(model: ModelSpec) -> int:
    """What one token passes, embeddings as a whole: of experts top_k, without heads for further tokens."""
    routed = sum(model.has_experts(layer) for layer in range(model.layers))
    share = Fraction(model.experts.top_k, model.experts.experts) if model.experts else Fraction(1)
    kinds = [(input_shapes(model) + output_shapes(model), 1), (block_shapes(model, "layers.", False), model.layers - routed)]
    kinds += [(block_shapes(model, "layers.", True), routed)] if routed else []
    counts = [(shape, times * shape.count) for shapes, times in kinds for shape in shapes]
    return sum(int(count * share) if ".experts." in shape.name else count for shape, count in counts)


def check_context(model: Model, stages: Mapping[int, Stage]) -> Iterator[Finding]:
    """Windows and positions against the stages and their sequences."""
    for index, stage in stages.items():
        yield from _check_yarn(("stages", index, "yarn"), stage.yarn, model.position)
        if stage.rope_base is not None and model.position != "rope":
            yield found(
                ("stages", index, "rope_base"),
                f"rope_base = {stage.rope_base:g} beside position = {model.position!r}",
                "it shapes RoPE, and this model has none",
                'remove rope_base, or choose position = "rope"',
            )
        if model.window is not None and model.window > stage.sequence:
            yield found(
                ("stages", index, "sequence"),
                f"the window of {model.window:,} tokens is longer than a sequence of stage {stage.name!r}, {stage.sequence:,}",
                "a window longer than the context never closes: the layer would see everything all the same",
                f"model.window is at most {stage.sequence:,}; without a window, remove it",
            )
        if model.position == "learned" and model.positions is not None and model.positions < stage.sequence:
            yield found(
                ("stages", index, "sequence"),
                f"sequences of {stage.sequence:,} in stage {stage.name!r}, and {model.positions:,} learned positions",
                "every token of a sequence has a row in the table of positions",
                f"model.positions is at least {stage.sequence:,}",
            )


def check_samples(model: Model, evaluation: Evaluation) -> Iterator[Finding]:
    """Learned positions against the texts that are decoded: of a prompt one token is certain, the one at its head."""
    decoded = evaluation.sample_tokens + 1
    if evaluation.prompts and evaluation.sample_tokens and model.positions is not None and decoded > model.positions:
        yield found(
            ("evaluation", "sample_tokens"),
            f"{evaluation.sample_tokens:,} tokens are decoded behind every prompt, and there are {model.positions:,} positions",
            "every token of a text has a row in the table of positions",
            f"sample_tokens is at most {model.positions - 1:,}, less the prompts' own tokens; 0: none",
        )
