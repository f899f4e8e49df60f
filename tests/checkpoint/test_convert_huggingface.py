"""Weights under the names of transformers: its model computes what our decoder computes, and the way back loses no bit."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from checkpoint_cases import same
from convert_cases import (
    STATE,
    flip,
    loaded,
    make_run,
    make_spec,
    nothing_left,
    read_index,
    to,
    trained_state,
    write_source,
)

from headway.base.errors import ConfigError, RunError
from headway.checkpoint.convert.architectures import our_name, stage_of, their_name
from headway.checkpoint.convert.architectures.defaults import DEFAULTS
from headway.checkpoint.convert.architectures.families import BY_TYPE, FAMILIES
from headway.checkpoint.convert.architectures.reading import recognise
from headway.model.context import make_context
from headway.recipe.roles import parameter_shapes
from headway.recipe.spec import ExpertsSpec, LatentSpec, MupSpec, YarnSpec
from headway.store.manifest import load_manifest

LOGITS = 1e-4
"""Relative to the largest logit: float32 sums in another order, through two layers. Seen: below 2e-6."""

DECODERS = {
    "qk_norm": {},
    "no qk_norm": {"qk_norm": False},
    "tied": {"tied_embeddings": True},
    "no qk_norm, tied, every head its own keys": {"qk_norm": False, "tied_embeddings": True, "kv_heads": 4},
    "narrow heads": {"head_width": 4, "norm_epsilon": 1e-2},
}


def parameters(state):
    return {name: tensor for name, tensor in state.items() if name.startswith("param/")}


@pytest.mark.parametrize("model", DECODERS.values(), ids=DECODERS)
@pytest.mark.parametrize("step", [12, 30], ids=["first stage", "stage with another rope base"])
def test_transformers_computes_the_same_logits(tmp_path, model, step):
    transformers = pytest.importorskip("transformers")
    spec = make_spec(**model)
    decoder, state = trained_state(spec)
    make_run(tmp_path / "run", spec, state, steps=(step,))
    facts = to(tmp_path / "run", tmp_path / "out", "huggingface")
    assert facts["config"] is True
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", output_loading_info=True, attn_implementation="eager"
    )
    assert {key: list(value) for key, value in info.items() if value} == {}, "every tensor found its place, none is missing"
    assert type(theirs).__name__ == ("Qwen3ForCausalLM" if spec.model.qk_norm else "LlamaForCausalLM")
    assert theirs.dtype == torch.float32
    assert_same_logits(decoder, theirs, stage_of(spec, step))


def assert_same_logits(decoder, theirs, stage):
    spec = decoder.spec
    tokens = torch.randint(0, spec.vocabulary, (3, stage.sequence_length), generator=torch.Generator().manual_seed(1))
    position = torch.arange(stage.sequence_length).expand_as(tokens)
    context = make_context(position, torch.zeros_like(tokens), spec, stage.rope, torch.float32)
    with torch.no_grad():
        ours = decoder.logits(decoder(tokens, context))
        found = theirs(tokens).logits
    assert ours.std() > 0.5, "weights far from initial ones: logits that differ"
    assert (found - ours).abs().max() < LOGITS * ours.abs().max()


LATENT = LatentSpec(query_rank=12, kv_rank=16, nope_width=8, rope_width=4, value_width=6)
EXPERTS = ExpertsSpec(experts=4, top_k=2, width=16)
SIGMOID = dataclasses.replace(EXPERTS, shared=1, dense_layers=1, router_bias=True, score="sigmoid", scale=2.5)
WIDE = {"heads": 4, "kv_heads": 4, "head_width": 6}
OTHERS = {
    "GPT2LMHeadModel": {**WIDE, "qk_norm": False, "ffn": "gelu", "norm": "layernorm", "bias": "all", "position": "learned"}
    | {"positions": 32, "tied_embeddings": True},
    "DeepseekV3ForCausalLM": {"latent": LATENT, "head_width": 12, "kv_heads": 4, "qk_norm": False, "experts": SIGMOID}
    | {"norm_epsilon": 1e-6, "mtp_layers": 1},
    "MixtralForCausalLM": {"qk_norm": False, "experts": EXPERTS},
    "Gemma2ForCausalLM": {"qk_norm": False, "ffn": "geglu", "block": "sandwich", "logit_softcap": 9.0, "tied_embeddings": True}
    | {"window": 8, "full_attention_every": 2},
    "Olmo2ForCausalLM": {"qk_norm_over": "all", "block": "post"},
    "Phi3ForCausalLM": {"qk_norm": False, "rotary_width": 4},
    "Qwen3ForCausalLM": {"mup": MupSpec(base_width=12, base_layers=1, depth_alpha=0.5, attention_multiplier=4.0)},
}
YARN = YarnSpec(factor=4.0, original=8, fast=2.0)
WITHOUT_YARN = ("GPT2LMHeadModel", "Phi3ForCausalLM")


def other_spec(kind):
    """Of two stages, the second with YaRN where the architecture has it."""
    spec = make_spec(**OTHERS[kind])
    later = spec.stages[1] if kind in WITHOUT_YARN else dataclasses.replace(spec.stages[1], yarn=YARN)
    return dataclasses.replace(spec, stages=(spec.stages[0], later))


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("step", [12, 30], ids=["first stage", "stage with YaRN"])
def test_other_architectures_from_file_to_file(tmp_path, kind, step):
    """A run, its export, the model that transformers loads from the files, and the way back."""
    transformers = pytest.importorskip("transformers")
    spec = other_spec(kind)
    decoder, state = trained_state(spec)
    make_run(tmp_path / "run", spec, state, steps=(step,))
    facts = to(tmp_path / "run", tmp_path / "out", "huggingface")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", attn_implementation="eager")
    assert type(theirs).__name__ == kind
    assert_same_logits(decoder, theirs, stage_of(spec, step))
    to(tmp_path / "out", tmp_path / "back", "headway")
    back = loaded(tmp_path / "back", parameters(state))
    if kind == "Gemma2ForCausalLM" or spec.model.mup is not None:
        assert facts["notes"], "what was computed is said"
    else:
        assert not facts["notes"]
        assert same(back, parameters(state))


def test_every_tensor_finds_its_place(tmp_path):
    transformers = pytest.importorskip("transformers")
    for kind in OTHERS:
        spec = other_spec(kind)
        make_run(tmp_path / kind, spec, trained_state(spec)[1])
        to(tmp_path / kind, tmp_path / (kind + ".out"), "huggingface", dtype="bf16")
        theirs, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / (kind + ".out"), output_loading_info=True)
        wrong = {key: [name for name in value if ".layers.2." not in str(name)] for key, value in info.items()}
        assert not any(wrong.values()), (kind, wrong)  # 2: the head for a further token, behind the two layers
        assert theirs.dtype == torch.bfloat16


def test_options_that_no_architecture_computes_are_refused_by_name(tmp_path):
    spec = make_spec(qk_norm=False, block="post-add", embedding_norm=True)
    make_run(tmp_path / "run", spec, trained_state(spec)[1])
    with pytest.raises(RunError, match=r'block = "post-add" has no place there(.|\n)*embedding_norm = true has no place there'):
        to(tmp_path / "run", tmp_path / "out", "huggingface")
    assert nothing_left(tmp_path, "run")


def test_the_stages_of_the_case_above_differ():
    spec = make_spec()
    assert [stage_of(spec, step).rope_base for step in (0, 12, 16, 17, 30, 32)] == [1e4, 1e4, 1e4, 7e4, 7e4, 7e4]
    with pytest.raises(RunError, match="ends at step 32"):
        stage_of(spec, 33)


@pytest.mark.parametrize("model", DECODERS.values(), ids=DECODERS)
def test_there_and_back_bit_for_bit(tmp_path, model):
    spec = make_spec(**model)
    _, state = trained_state(spec)
    make_run(tmp_path / "run", spec, state)
    to(tmp_path / "run", tmp_path / "out", "huggingface", shard_bytes=1 << 20)
    to(tmp_path / "out", tmp_path / "back", "headway")
    assert same(loaded(tmp_path / "back", parameters(state)), parameters(state))
    converted = load_manifest(tmp_path / "back").state["converted"]
    assert converted["holds"].startswith("parameters only")
    assert converted["config"]["rope_theta"] == 10_000.0
    assert (load_manifest(tmp_path / "back").segment, load_manifest(tmp_path / "back").step) == (1, 0)


def test_what_has_no_place_there_is_named(tmp_path):
    spec = make_spec()
    _, state = trained_state(spec)
    state["count/updates"] = torch.tensor(3)
    make_run(tmp_path / "run", spec, state)
    facts = to(tmp_path / "run", tmp_path / "out", "huggingface")
    count = len(parameters(state))
    assert {item["what"]: item["tensors"] for item in facts["left_out"]} == {
        "m/": count,
        "v/": count,
        "count/": 1,
        "state": 0,
        "tokenizer": 0,
    }
    index = read_index(tmp_path / "out")
    assert len(index["weight_map"]) == count
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in parameters(state).values())


def test_shards_are_bounded_and_indexed(tmp_path):
    spec = make_spec(vocabulary=9001)
    _, state = trained_state(spec)
    make_run(tmp_path / "run", spec, state)
    facts = to(tmp_path / "run", tmp_path / "out", "huggingface", shard_bytes=1 << 20)
    files = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert files == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert facts["files"] == 2
    assert set(read_index(tmp_path / "out")["weight_map"].values()) == set(files)


@pytest.mark.parametrize(("dtype", "wanted"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
def test_weights_change_their_dtype_only_when_asked(tmp_path, dtype, wanted):
    from safetensors.torch import load_file

    values = {"param/embed.weight": torch.randn(61, 24), "param/norm.weight": torch.randn(24).bfloat16()}
    source = write_source(tmp_path / "checkpoints", values, (2, 2))
    facts = to(source, tmp_path / "out", "huggingface", dtype=dtype)
    found = load_file(tmp_path / "out" / "model-00001-of-00001.safetensors")
    assert same(
        found,
        {
            "model.embed_tokens.weight": values["param/embed.weight"].to(wanted),
            "model.norm.weight": values["param/norm.weight"].to(wanted),
        },
    )
    rounded = [item for item in facts["left_out"] if item["what"] == "bits"]
    assert rounded == ([{"what": "bits", "why": "rounded to BF16", "tensors": 1}] if dtype == "bf16" else [])
    plain = to(source, tmp_path / "plain", "huggingface")
    assert {t.dtype for t in load_file(tmp_path / "plain" / "model-00001-of-00001.safetensors").values()} == {
        torch.float32,
        torch.bfloat16,
    }
    assert [item["what"] for item in plain["left_out"]] == ["state", "tokenizer"]


def test_rounding_is_to_nearest_even_and_keeps_what_is_not_finite(tmp_path):
    from safetensors.torch import load_file

    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0x7F800000, 0x80000001], np.uint32)
    source = write_source(tmp_path / "checkpoints", {"param/norm.weight": torch.from_numpy(bits.view(np.float32).copy())})
    to(source, tmp_path / "out", "huggingface", dtype="bf16")
    found = load_file(tmp_path / "out" / "model-00001-of-00001.safetensors")["model.norm.weight"].view(torch.int16).tolist()
    assert [value & 0xFFFF for value in found] == [0x3F80, 0x3F82, 0x3F81, 0x7F80, 0x7F80, 0x8000]


def test_config_is_left_out_where_no_spec_is_known(tmp_path):
    source = write_source(tmp_path / "checkpoints", {"param/embed.weight": torch.randn(5, 4)})
    facts = to(source, tmp_path / "out", "huggingface")
    assert "config.json is left out" in facts["notes"][0]
    assert not (tmp_path / "out" / "config.json").exists()
    to(tmp_path / "out", tmp_path / "back", "headway")


def test_a_checkpoint_of_another_run_gets_no_config_of_this_one(tmp_path):
    spec = make_spec()
    _, state = trained_state(spec)
    run = make_run(tmp_path / "run", spec, state)
    other = make_run(tmp_path / "other", dataclasses.replace(spec, seed=4), state)
    (run.checkpoints / "g0001-s00000012").rename(run.checkpoints / "mine")
    (other.checkpoints / "g0001-s00000012").rename(run.checkpoints / "g0001-s00000012")
    facts = to(f"{run.root}:g0001-s00000012", tmp_path / "out", "huggingface")
    assert facts["config"] is False


def test_parameters_that_are_not_the_specs_are_refused(tmp_path):
    spec = make_spec()
    _, state = trained_state(spec)
    state["param/layers.1.ffn.up.weight"] = torch.zeros(3, 3)
    make_run(tmp_path / "run", spec, state)
    with pytest.raises(RunError, match=r"layers\.1\.ffn\.up\.weight: \(3, 3\), by the spec \(40, 24\)"):
        to(tmp_path / "run", tmp_path / "out", "huggingface")
    assert nothing_left(tmp_path, "run")


@pytest.mark.parametrize(
    "name", ["param/layers.0.ffn.experts.up.weight", "param/layers.0.attention.q.bias", "param/positions.weight"]
)
def test_parameters_without_a_name_there_are_refused(tmp_path, name):
    source = write_source(tmp_path / "checkpoints", {name: torch.zeros(3)})
    with pytest.raises(RunError, match="has no place there"):
        to(source, tmp_path / "out", "huggingface")
    none = write_source(tmp_path / "others", {"m/x": torch.zeros(3)})
    with pytest.raises(RunError, match="holds no parameters"):
        to(none, tmp_path / "out", "huggingface")


def test_names_map_one_to_one():
    for model in DECODERS.values():
        ours = ["param/" + p.name for p in parameter_shapes(make_spec(layers=12, **model).model)]
        theirs = [their_name(name) for name in ours]
        assert None not in theirs
        assert len(set(theirs)) == len(ours)
        assert [our_name(str(name)) for name in theirs] == ours
    for name in ("layers.0.ffn.up.weight", "m/embed.weight", "param/layers.00.ffn.up.weight", "param/layers.0.x", "param/layers"):
        assert their_name(name) is None
    for name in ("model.layers.0.self_attn.q_proj.bias", "model.layers.x.mlp.up_proj.weight", "embed", "layers.0.x"):
        assert our_name(name) is None


# --- what others wrote


def hub(folder, config, tensors, file="model.safetensors"):
    from safetensors.torch import save_file

    folder.mkdir()
    save_file(tensors, folder / file, metadata={"format": "pt"})
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("kind", ["Qwen3", "Llama"])
def test_models_that_transformers_saved_are_read(tmp_path, kind):
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 61, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = getattr(transformers, f"{kind}Config")(**sizes, num_key_value_heads=2, head_dim=8, max_position_embeddings=32)
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    model.save_pretrained(tmp_path / "theirs", max_shard_size="5KB")
    facts = to(tmp_path / "theirs", tmp_path / "ours", "headway", step=7)
    expected = {str(our_name(name)): tensor.detach() for name, tensor in model.state_dict().items()}
    assert same(loaded(tmp_path / "ours", expected), expected)
    assert (facts["from"], load_manifest(tmp_path / "ours").step) == ("huggingface", 7)


PLAIN_YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16}
SIZES = {"vocab_size": 61, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
QWEN3 = {"model_type": "qwen3", **SIZES, "head_dim": 8}
LLAMA = {"model_type": "llama", **SIZES}


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"model_type": "gemma"}, "model_type = 'gemma'"),
        ({"model_type": "llama"}, "vocab_size is missing"),
        ({**LLAMA, "attention_bias": True}, "attention_bias = True, mlp_bias = False"),
        ({**LLAMA, "hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({**LLAMA, "clip_qkv": 8.0}, r"clip_qkv = 8\.0"),
        ({**LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "RoPE of type 'linear'"),
        ({**LLAMA, "rope_parameters": {"rope_type": "llama3"}}, "RoPE of type 'llama3'"),
        ({**LLAMA, "rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "YaRN without factor or original_max_position"),
        ({**LLAMA, "rope_parameters": PLAIN_YARN | {"attention_factor": 1.0}}, "another growth of scores"),
        ({**LLAMA, "rope_parameters": PLAIN_YARN | {"truncate": False}}, "ramp begins and ends between pairs"),
        (
            {**QWEN3, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
            "full attention in layers that",
        ),
        ({**QWEN3, "attention_bias": True}, "attention_bias = True"),
        ({**QWEN3, "model_type": "gemma2", "query_pre_attn_scalar": 24}, "query_pre_attn_scalar that is not head_dim"),
        ({**QWEN3, "quantization_config": {"bits": 4}}, "quantization_config"),
        ({**SIZES, "model_type": "cohere", "logit_scale": 0.0625}, r"logit_scale = 0\.0625"),
        ({**SIZES, "model_type": "gpt_neox", "hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ([1], "no JSON object"),
    ],
)
def test_models_that_compute_something_else_are_refused(tmp_path, config, why):
    folder = hub(tmp_path / "theirs", config, {"model.norm.weight": torch.ones(4)})
    with pytest.raises(RunError, match=why):
        to(folder, tmp_path / "ours", "headway")


def test_tensors_that_the_configuration_asks_for_must_be_there(tmp_path):
    folder = hub(tmp_path / "theirs", LLAMA, {"model.norm.weight": torch.ones(24), "model.other.weight": torch.ones(4)})
    with pytest.raises(RunError, match=r"model\.other\.weight has no place(.|\n)*lm_head\.weight is missing"):
        to(folder, tmp_path / "ours", "headway")


def test_tensors_of_other_shapes_than_the_configuration_says_are_refused(tmp_path):
    transformers = pytest.importorskip("transformers")
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, num_key_value_heads=4))
    model.save_pretrained(tmp_path / "theirs")
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    (tmp_path / "theirs" / "config.json").write_text(json.dumps(config | {"intermediate_size": 41}))
    with pytest.raises(RunError, match=r"mlp\.gate_proj\.weight is \(40, 24\), by config\.json \(41, 24\)"):
        to(tmp_path / "theirs", tmp_path / "ours", "headway")


def test_gpt2_as_it_was_published_is_read(tmp_path):
    """Names without the prefix, tables of masks, no word about what is the same in all of them."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=61, n_positions=32, n_embd=24, n_layer=2, n_head=4)
    model = transformers.GPT2LMHeadModel(config)
    published = {
        name.removeprefix("transformer."): t.clone() for name, t in model.state_dict().items() if name != "lm_head.weight"
    }
    published["h.0.attn.bias"] = torch.ones(1, 1, 32, 32).tril()
    plain = {"model_type": "gpt2", "n_ctx": 32, "n_positions": 32, "n_embd": 24, "n_layer": 2, "n_head": 4, "vocab_size": 61}
    folder = hub(tmp_path / "theirs", plain | {"activation_function": "gelu_new", "summary_type": "cls_index"}, published)
    facts = to(folder, tmp_path / "ours", "headway")
    assert [(item["what"], item["tensors"]) for item in facts["left_out"]] == [("*.attn.bias", 1)]
    spec = make_spec(**OTHERS["GPT2LMHeadModel"], ffn_width=96)
    found = loaded(tmp_path / "ours", {f"param/{p.name}": torch.empty(p.shape) for p in parameter_shapes(spec.model)})
    q, k, v = (found[f"param/layers.1.attention.{part}.weight"] for part in "qkv")
    assert torch.equal(torch.cat((q, k, v)), published["h.1.attn.c_attn.weight"].T)
    assert torch.equal(found["param/layers.1.ffn.up.weight"], published["h.1.mlp.c_fc.weight"].T)


def test_tensors_that_our_decoder_has_not_are_refused(tmp_path):
    tensors = {"model.norm.weight": torch.ones(4), "model.layers.0.self_attn.q_proj.bias": torch.ones(4)}
    with pytest.raises(RunError, match=r"q_proj\.bias has no place in our decoder"):
        to(hub(tmp_path / "theirs", None, tensors), tmp_path / "ours", "headway")


def test_tables_of_angles_are_left_out(tmp_path):
    tensors = {"model.norm.weight": torch.ones(4), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    facts = to(hub(tmp_path / "theirs", None, tensors), tmp_path / "ours", "headway")
    assert [(item["what"], item["tensors"]) for item in facts["left_out"]] == [("*.rotary_emb.inv_freq", 1)]


@pytest.mark.parametrize(
    "index",
    [{"weight_map": {"model.norm.weight": "../x"}}, {"weight_map": [1]}, [], {"weight_map": {"other": "model.safetensors"}}],
)
def test_an_index_that_does_not_fit_is_refused(tmp_path, index):
    folder = hub(tmp_path / "theirs", None, {"model.norm.weight": torch.ones(4)})
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(RunError, match=r"model\.safetensors\.index\.json cannot be read"):
        to(folder, tmp_path / "ours", "headway")


def test_a_flipped_bit_in_what_we_exported_is_refused(tmp_path):
    source = write_source(tmp_path / "checkpoints", {"param/norm.weight": torch.randn(400)})
    to(source, tmp_path / "out", "huggingface")
    flip(tmp_path / "out" / "model-00001-of-00001.safetensors", -700)
    with pytest.raises(RunError, match="digest differs"):
        to(tmp_path / "out", tmp_path / "back", "headway")


def test_any_format_into_any_other(tmp_path):
    values = {"param/embed.weight": torch.randn(61, 24), "param/norm.weight": torch.randn(24)}
    last = write_source(tmp_path / "checkpoints", values)
    for number, form in enumerate(["dcp", "safetensors", "dcp", "headway", "safetensors", "huggingface", "dcp", "headway"]):
        to(last, tmp_path / str(number), form)
        last = tmp_path / str(number)
        if number == 4:
            to(last, tmp_path / "with state", "headway")
            assert load_manifest(tmp_path / "with state").state == STATE
    assert same(loaded(last, values), values)
    assert load_manifest(last).state["converted"]["from"] == "huggingface"


def test_a_dtype_that_is_unknown_is_refused(tmp_path):
    source = write_source(tmp_path / "checkpoints", {"param/norm.weight": torch.ones(4, dtype=torch.int32)})
    with pytest.raises(ConfigError, match="--dtype fp8"):
        to(source, tmp_path / "out", "huggingface", dtype="fp8")
    with pytest.raises(RunError, match="is I32"):
        to(source, tmp_path / "out", "huggingface", dtype="bf16")


# --- what a file leaves out

ASKED = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4}
ASKED_GPT2 = {"vocab_size": 64, "n_embd": 32, "n_layer": 4, "n_head": 4}
NOT_READ = {"layer_types", "no_rope_layers", "rope_parameters", "max_window_layers", "mlp_only_layers"}
"""Made anew from what was given: compared as a model."""


@pytest.mark.parametrize("kind", [family.model_type for family in FAMILIES])
def test_a_key_that_is_left_out_has_the_default_of_transformers(kind):
    transformers = pytest.importorskip("transformers")
    asked = ASKED_GPT2 if kind == "gpt2" else ASKED
    whole = transformers.CONFIG_MAPPING[kind](**asked).to_dict()
    for key, value in DEFAULTS[kind].items():
        if key not in NOT_READ and value is not None and key in whole and not (key == "sliding_window" and whole[key] is None):
            assert whole[key] == value, key
    read = BY_TYPE[kind].keys.values()
    assert not {key for key in read if key in whole} - DEFAULTS[kind].keys() - asked.keys() - {"initializer_range", "head_dim"}
    _, sparse, left_out = recognise({"model_type": kind, **asked})
    _, complete, stated = recognise({key: value for key, value in whole.items() if value is not None or key == "sliding_window"})
    assert sparse is not None
    assert complete is not None
    assert dataclasses.replace(sparse, init_std=complete.init_std) == complete
    assert {text.split(" (left out")[0] for text in left_out} == {
        text for text in stated if "dropout" not in text and "drop" not in text
    }


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        ("gpt_neox", {}, "hidden_act = 'gelu' (left out: the default)"),
        ("cohere", {}, "logit_scale = 0.0625 (left out: the default)"),
        ("mistral", {}, None),
    ],
)
def test_a_default_that_our_decoder_has_not_is_refused(kind, given, said):
    _, model, wrong = recognise({"model_type": kind, **ASKED, **given})
    assert wrong == ([said] if said else [])
    assert kind != "mistral" or (model.window, model.kv_heads) == (4096, 8)


def test_a_window_that_is_switched_on_and_has_no_width():
    transformers = pytest.importorskip("transformers")
    for kind in ("qwen2", "qwen3", "qwen3_moe"):
        given = {**ASKED, "use_sliding_window": True, "max_window_layers": 0}
        _, model, _ = recognise({"model_type": kind, **given})
        assert model.window == transformers.CONFIG_MAPPING[kind](**given).sliding_window == 4096
