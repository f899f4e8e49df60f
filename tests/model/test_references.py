"""Our decoder against transformers: every family at toy size, with the same weights, both ways through the real mapping.

What is compared is what is shipped: names, layouts and ``config.json`` are those of ``headway checkpoint convert``. Weights are
all random (``reference_models``), and rows are longer than the windows.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from reference_models import (
    CASES,
    EXPERTS,
    SIGMOID,
    YARN,
    deepseek,
    exported,
    imported,
    imported_gradients,
    on_disk,
    our_decoder,
    our_logits,
    random_state,
    their_config,
    their_model,
    tokens,
    toy,
)
from torch import Tensor

from headway.base.errors import RunError
from headway.checkpoint.convert.architectures import Chosen, choose, read_configuration
from headway.checkpoint.convert.architectures.families import FAMILIES
from headway.formulas.parameters import count_parameters
from headway.model.context import make_context
from headway.recipe.load import load_recipe
from headway.recipe.resolve import resolve_model
from headway.recipe.roles import Role, parameter_shapes
from headway.recipe.spec import MupSpec

LOGITS = 1e-5
"""Largest difference over the largest logit, float32. Seen: 6e-6 at most; sums run in another order, through 3 or 4 layers."""

GRADIENTS = 1e-5
"""Norm of the difference over the norm of each parameter's gradient, float32. Seen: 7e-6 at most."""

LEAST_GRADIENT = 1e-2
"""Of the largest norm among all parameters: less counts as so much. A key's bias without RoPE has the gradient 0 and rounding."""

PACKED = 1e-5
"""Logits and gradients of packed rows against each document alone, measured alike. Seen: 1.3e-6 at most."""


@pytest.fixture
def transformers():
    """Theirs, without words; tests that need it skip where it is not installed."""
    module = pytest.importorskip("transformers", minversion="5.24", reason="transformers 5.24 is not installed (extra: dev)")
    module.logging.set_verbosity_error()
    module.logging.disable_progress_bar()
    return module


def sum_of_losses(logits_BTV: Tensor, tokens_BT: Tensor) -> Tensor:
    """Cross-entropy of each next token within the row."""
    return F.cross_entropy(logits_BTV[:, :-1].flatten(0, 1).float(), tokens_BT[:, 1:].flatten(), reduction="sum")


def gradients(module: torch.nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


def off(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).abs().max() / expected.abs().max()).item()


def most_off(found: dict[str, Tensor], expected: dict[str, Tensor]) -> tuple[float, str]:
    """The parameter whose gradient differs most, by norm."""
    least = LEAST_GRADIENT * max(value.norm().item() for value in expected.values())
    return max(((found[name] - value).norm().item() / max(value.norm().item(), least), name) for name, value in expected.items())


def their_gradients(chosen: Chosen, model: torch.nn.Module) -> dict[str, Tensor]:
    """By our names. Buffers have none, and heads for further tokens are no part of their model."""
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    nothing = {name: torch.zeros(shape) for name, shape in chosen.shapes().items()}
    return imported_gradients(chosen, nothing | on_disk(model, found))


@pytest.mark.parametrize("case", CASES)
def test_logits_and_gradients_are_those_of_transformers(transformers, case):
    family, spec = CASES[case]
    chosen, state = choose(spec), random_state(spec)
    assert chosen.family.model_type == family
    ours, theirs, tokens_BT = our_decoder(spec, state), their_model(chosen, exported(chosen, state)), tokens(spec)
    found, expected = our_logits(ours, tokens_BT), theirs(tokens_BT).logits
    assert found.std() > 1, "logits that differ"
    assert off(found, expected) < LOGITS
    sum_of_losses(found, tokens_BT).backward()
    sum_of_losses(expected, tokens_BT).backward()
    by_theirs = their_gradients(chosen, theirs)
    trained = [p.name for p in parameter_shapes(spec) if p.role is not Role.BALANCE and not p.name.startswith("mtp.")]
    assert sorted(gradients(ours)) == sorted(trained), "all have a gradient"
    error, name = most_off(gradients(ours), {name: by_theirs[name] for name in trained})
    assert error < GRADIENTS, name


def perturbed(model: torch.nn.Module, seed: int = 7) -> None:
    """Weights far from initial ones, gains and biases too. All are parameters but the router's bias."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            std = 1.5 * tensor.shape[-1] ** -0.5 if tensor.ndim > 1 else 0.3
            tensor.add_(std * torch.randn(tensor.shape, generator=generator))


@pytest.mark.parametrize("case", [case for case in CASES if not CASES[case][1].mtp_layers])
def test_models_of_transformers_are_read(transformers, case):
    """The opposite direction, from their own file: configuration and tensors of a model that never was ours."""
    _, spec = CASES[case]
    theirs = getattr(transformers, choose(spec).family.causal)(their_config(choose(spec))).eval()
    perturbed(theirs)
    config = json.loads(theirs.config.to_json_string())
    chosen = read_configuration(config, "theirs")
    assert dataclasses.replace(chosen.model, ffn_width=spec.ffn_width) == dataclasses.replace(spec, **defaults(chosen.model))
    state = imported(chosen, on_disk(theirs, theirs.state_dict()))
    tokens_BT = tokens(spec, seed=8)
    with torch.no_grad():
        found, expected = our_logits(our_decoder(chosen.model, state), tokens_BT), theirs(tokens_BT).logits
    assert off(found, expected) < LOGITS


def defaults(model):
    """What a configuration does not tell, or tells otherwise: of training, or without a meaning for the family."""
    read = {"qk_norm_over": model.qk_norm_over, "rope_base": model.rope_base}
    return read if model.position == "learned" else {"qk_norm_over": model.qk_norm_over}


@pytest.mark.parametrize("case", CASES)
def test_there_and_back(case):
    """Bit for bit, where values are only moved; else to rounding."""
    _, spec = CASES[case]
    chosen, state = choose(spec), random_state(spec)
    back = imported(chosen, exported(chosen, state))
    assert list(back) == list(state)
    for name, value in state.items():
        if chosen.family.model_type == "gemma2":
            torch.testing.assert_close(back[name], value, rtol=1e-6, atol=1e-6)
        else:
            assert torch.equal(back[name], value), name


@pytest.mark.parametrize("case", CASES)
def test_names_and_shapes_are_those_of_transformers(transformers, case):
    """All of theirs and no other, on the meta device."""
    _, spec = CASES[case]
    chosen = choose(dataclasses.replace(spec, mtp_layers=0))
    with torch.device("meta"):
        model = getattr(transformers, chosen.family.causal)(their_config(chosen))
    theirs = {n: tuple(t.shape) for n, t in on_disk(model, model.state_dict()).items()}
    aliases = chosen.family.names(chosen.model).aliases
    theirs = {aliases.get(name, name): shape for name, shape in theirs.items() if chosen.duplicate(name) is None}
    assert chosen.shapes() == theirs


# --- bfloat16

BF16_LOGITS = 0.05
"""Root mean square over a token's logits of the difference from theirs, relative; of the median token. Seen: 0 to 0.039."""
BF16_OVER_THEIRS = 1.25
"""Our distance from the float32 logits over theirs, alike: neither rounds much more often. Seen: 0.52 to 1.03.

Of the median token, for a router whose scores nearly tie sends a token elsewhere after one more rounding, on either side.
"""

BF16 = [case for case in CASES if "," not in case or "yarn" in case]


def rms_off(found: Tensor, expected: Tensor) -> float:
    by_token = (found.float() - expected.float()).square().mean(-1) / expected.float().square().mean(-1)
    return by_token.sqrt().median().item()


@pytest.mark.parametrize("case", BF16)
def test_bfloat16_logits_are_as_near(transformers, case):
    _, spec = CASES[case]
    chosen, state = choose(spec), random_state(spec)
    half = {name: tensor.bfloat16() for name, tensor in state.items()}
    exact = {name: tensor.float() for name, tensor in half.items()}
    tokens_BT = tokens(spec, rows=4)
    with torch.no_grad():
        reference = our_logits(our_decoder(spec, exact), tokens_BT)
        found = our_logits(our_decoder(spec, half, torch.bfloat16), tokens_BT)
        theirs = {name: tensor.bfloat16() for name, tensor in exported(chosen, exact).items()}
        expected = their_model(chosen, theirs, torch.bfloat16)(tokens_BT).logits
    assert rms_off(found, expected) < BF16_LOGITS
    assert rms_off(found, reference) < BF16_OVER_THEIRS * rms_off(expected, reference)


# --- documents

LENGTHS = [(1, 17, 22), (25, 15), (40,)]
"""Documents of each row: longer and shorter than the windows, one of a single token."""


@pytest.mark.parametrize("case", CASES)
def test_packed_documents_are_each_as_if_alone(case):
    _, spec = CASES[case]
    state, tokens_BT = random_state(spec), tokens(spec, rows=len(LENGTHS))
    document_BT = torch.stack([torch.repeat_interleave(torch.arange(len(row)), torch.tensor(row)) for row in LENGTHS])
    packed, alone = our_decoder(spec, state), our_decoder(spec, state)
    found = our_logits(packed, tokens_BT, document_BT)
    weight_BTV = torch.randn(found.shape, generator=torch.Generator().manual_seed(3))
    (found * weight_BTV).sum().backward()
    for row, lengths in enumerate(LENGTHS):
        end = 0
        for length in lengths:
            at, end = (slice(row, row + 1), slice(end, end + length)), end + length
            expected = our_logits(alone, tokens_BT[at])
            (expected * weight_BTV[at]).sum().backward()
            assert off(found[at], expected) < PACKED
    error, name = most_off(gradients(packed), gradients(alone))
    assert error < PACKED, name


# --- heads for further tokens


def test_heads_for_further_tokens_are_theirs(transformers):
    from transformers.modeling_layers import MtpModel

    spec = deepseek(mtp_layers=1)
    chosen, state = choose(spec), random_state(spec)
    theirs, ours, tokens_BT = their_model(chosen, exported(chosen, state)), our_decoder(spec, state), tokens(spec)
    further = MtpModel(theirs, 1)
    load_further(further, exported(chosen, state), spec.layers)
    context = make_context(torch.arange(40).expand(2, -1), torch.zeros_like(tokens_BT), spec, spec.rope, torch.float32)
    with torch.no_grad():
        found = ours.hidden(tokens_BT, context).further_BTD[0]
        hidden_BTD = theirs.model(tokens_BT).last_hidden_state
        expected = further.forward_layer(0, hidden_BTD[:, :-1], torch.arange(39)[None], None, input_ids=tokens_BT[:, 1:])
    assert off(found[:, :-1], expected) < LOGITS


def load_further(further: torch.nn.Module, tensors: dict[str, Tensor], layers: int) -> None:
    """As ``MtpModel.from_pretrained`` does it, but from memory."""
    prefix = f"model.layers.{layers}."
    own = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    fused = {f"layers.0.{name}": value for name, value in fuse_experts(own)}
    missing, unexpected = further.load_state_dict(fused, strict=False)
    assert not unexpected, unexpected
    assert all(name.startswith(("embed_tokens", "shared_head")) for name in missing), missing


def fuse_experts(tensors: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """One layer's tensors as transformers holds them in memory."""
    outside = {"enorm.weight": "enorm.weight", "hnorm.weight": "hnorm.weight", "eh_proj.weight": "eh_proj.weight"}
    outside["shared_head.norm.weight"] = "post_norm.weight"
    experts = 1 + max(int(name.split(".")[2]) for name in tensors if name.startswith("mlp.experts."))
    for name, value in tensors.items():
        if not name.startswith("mlp.experts."):
            yield outside.get(name, f"mtp_block.{name}"), value
    part = {which: torch.stack([tensors[f"mlp.experts.{i}.{which}_proj.weight"] for i in range(experts)]) for which in PARTS}
    yield "mtp_block.mlp.experts.gate_up_proj", torch.cat((part["gate"], part["up"]), 1)
    yield "mtp_block.mlp.experts.down_proj", part["down"]


PARTS = ("gate", "up", "down")


# --- presets

PRESETS = {
    "llama3-8b": "llama",
    "llama3-70b": "llama",
    "llama3-405b": "llama",
    "olmo2-7b": "olmo2",
    "olmo2-13b": "olmo2",
    "olmo2-32b": "olmo2",
    "smollm3-3b": "smollm3",
    "gpt2-124m": "gpt2",
    "deepseek-v3": "deepseek_v3",
    "demo": "qwen3",
    "small": "qwen3",
}


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_have_exactly_the_parameters_of_transformers(transformers, preset):
    from transformers.modeling_layers import MtpModel

    recipe = load_recipe(preset).recipe
    spec = resolve_model(recipe.model, recipe.tokenizer.vocabulary)
    chosen, count = choose(spec), count_parameters(spec)
    assert chosen.family.model_type == PRESETS[preset]
    with torch.device("meta"):
        model = getattr(transformers, chosen.family.causal)(their_config(chosen))
        further = MtpModel(model, spec.mtp_layers).layers if spec.mtp_layers else None
    assert stored(model) == count.total
    assert (0 if further is None else stored(further)) == count.mtp


def stored(module: torch.nn.Module) -> int:
    """Parameters, and buffers that files hold, each once."""
    names = module.state_dict().keys()
    found = {id(t): t.numel() for n, t in (*module.named_parameters(), *module.named_buffers()) if n in names}
    return sum(found.values())


# --- what no architecture computes

REFUSED = {
    "post-add": (toy(block="post-add"), 'block = "post-add"'),
    "learned positions and swiglu": (toy(position="learned", positions=48), 'position = "learned"'),
    "no positions": (toy(position="none"), 'position = "none"'),
    "norm of the embedding": (toy(embedding_norm=True), "embedding_norm = true"),
    "layernorm alone": (toy(norm="layernorm"), 'norm = "layernorm"'),
    "geglu": (toy(ffn="geglu"), 'ffn = "geglu"'),
    "logit softcap": (toy(logit_softcap=5.0), "logit_softcap = 5"),
    "attention softcap": (toy(attention_softcap=5.0), "attention_softcap = 5"),
    "yarn beside a partial rotary": (toy(rotary_width=8, yarn=YARN), "yarn"),
    "latent without experts": (deepseek(experts=None), "experts = false"),
    "latent with another epsilon": (deepseek(norm_epsilon=1e-5), "norm_epsilon = 1e-05"),
    "sigmoid experts, grouped attention": (
        toy(experts=SIGMOID),
        'experts.score = "sigmoid"',
    ),
    "shared experts by softmax": (toy(experts=dataclasses.replace(EXPERTS, shared=1)), "experts.shared = 1"),
    "no shared expert": (deepseek(experts=dataclasses.replace(SIGMOID, shared=0)), "experts.shared = 0"),
    "heads for further tokens": (toy(mtp_layers=1), "mtp_layers = 1"),
    "two-norm parallel swiglu (PaLM)": (toy(norm="layernorm", block="parallel-two-norms"), 'block = "parallel-two-norms"'),
}


@pytest.mark.parametrize("case", REFUSED)
def test_options_that_nobody_computes_are_named(case):
    spec, said = REFUSED[case]
    with pytest.raises(RunError) as refused:
        choose(spec)
    assert any(problem.seen.startswith(said) for problem in refused.value.problems), str(refused.value)


def test_every_family_has_a_case():
    assert {family for family, _ in CASES.values()} == {family.model_type for family in FAMILIES}


# --- multipliers


@pytest.mark.parametrize("case", ["llama", "qwen3", "olmo2", "mixtral", "gemma2", "llama, tied, biases"])
def test_multipliers_are_folded_on_the_way_out(transformers, case):
    _, spec = CASES[case]
    spec = dataclasses.replace(spec, mup=MupSpec(base_width=24, base_layers=2, depth_alpha=0.7, attention_multiplier=5.0))
    chosen, state = choose(spec), random_state(spec)
    tokens_BT = tokens(spec)
    with torch.no_grad():
        found = our_logits(our_decoder(spec, state), tokens_BT)
        expected = their_model(chosen, exported(chosen, state))(tokens_BT).logits
    assert off(found, expected) < LOGITS
