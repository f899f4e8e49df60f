"""Digests of earlier recipes and runs stay: what came after the first release is left out at its default."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.recipe import interventions_section, preparation, schema, spec
from headway.recipe.digests import ADDED, recipe_content
from headway.recipe.fields import Section
from headway.recipe.load import load_recipe
from headway.recipe.resolve import resolve

FIRST = {
    "Capability": "name weight evaluation",
    "Alternative": "option verdict",
    "Objective": "why decision alternatives capabilities languages context latency memory licence hardware deadline "
    "hard_constraints acceptable_failure_risk privacy audit replacement_nodes checkpoint_every another_experiment_if freeze_if",
    "Tokenizer": "kind vocabulary document_token",
    "Latent": "query_rank kv_rank nope_width rope_width value_width",
    "Experts": "experts top_k width shared dense_layers every router_bias groups groups_per_token",
    "Yarn": "factor original fast slow",
    "Mup": "base_width base_layers depth_alpha attention_multiplier",
    "Model": "layers width heads kv_heads head_width ffn_width rope_base norm_epsilon qk_norm tied_embeddings init_std",
    "Source": "name kind path include field licence provenance cap_epochs",
    "Generator": "program version recipe",
    "Verifier": "program version what how",
    "Data": "seed held_out chunk dtype sources",
    "MixtureRule": "kind temperature size_power scores axis epochs sources",
    "RampPhase": "start batch",
    "Rate": "warmup shape start end",
    "Infill": "rate spm sources",
    "Gate": "name metric comparison threshold deadline unresolved",
    "Stage": "name tokens sequence batch ramp rate mixture rope_base entry_gates exit_gates",
    "Optimizer": "kind peak_rate beta1 beta2 epsilon weight_decay clip_norm",
    "Stability": "z_loss",
    "Precision": "compute",
    "Evaluation": "every tokens_per_source prompts sample_tokens",
    "SpikePolicy": "rewind_steps skip_batches recurrence_rate_factor",
    "Permission": "what by",
    "Interventions": "spikes permissions owner",
    "Text": "unicode control trailing_space",
    "Extensions": "keep drop",
    "Code": "vendored generated",
    "Languages": "keep unknown",
    "Secrets": "policy",
    "Personal": "policy kinds",
    "Quality": "least_characters least_letters most_digits longest_word mean_line most_repeated_lines",
    "Repeats": "words times",
    "Axis": "field scale least most unknown",
    "QualityAxes": "correctness coherence density authority parse_integrity difficulty harm",
    "Contamination": "registry words overlap shortest",
    "Duplicates": "compare",
    "NearDuplicates": "threshold words permutations seed",
    "Lines": "copies shortest keep_conventions",
    "Repositories": "depth most",
    "Prepare": "text extensions code languages secrets personal quality repeats contamination duplicates near_duplicates lines "
    "repositories",
    "Recipe": "kind schema_version name seed objective tokenizer model data stages optimizer stability precision evaluation "
    "interventions",
}
"""Keys of each section in the release that it came with. Frozen: a key that comes later goes into ``ADDED``, not here."""

FIRST_OF_SPEC = {
    "TokenizerSpec": "kind vocabulary document_token digest",
    "LatentSpec": "query_rank kv_rank nope_width rope_width value_width",
    "YarnSpec": "factor original fast slow",
    "MupSpec": "base_width base_layers depth_alpha attention_multiplier",
    "ExpertsSpec": "experts top_k width shared dense_layers every router_bias groups groups_per_token",
    "ModelSpec": "layers width heads kv_heads head_width ffn_width vocabulary rope_base norm_epsilon qk_norm tied_embeddings "
    "init_std",
    "SourceSpec": "name tokens chunk_tokens target_share digest cap_epochs licence",
    "BatchPhase": "first_sequence batch_sequences",
    "RateSpec": "warmup_tokens shape start end",
    "PackedSpec": "bins target_share digest",
    "InfillSpec": "rate spm sources tokens seed",
    "MixtureRuleSpec": "kind sources tokens weights temperature size_power epochs scores",
    "StageSpec": "name tokens sequence_length sequences phases rate quanta rope_base entry_gates exit_gates",
    "OptimizerSpec": "kind peak_rate beta1 beta2 epsilon weight_decay clip_norm",
    "StabilitySpec": "z_loss",
    "PrecisionSpec": "compute",
    "EvaluationSpec": "every_tokens tokens_per_source prompts sample_tokens",
    "Spec": "name seed data_seed objective tokenizer model sources stages optimizer stability precision evaluation "
    "manifest_digest recipe_digest parent interventions kind schema_version",
}
NEVER_SAVED = {"RopeSpec"}  # a view of other fields
OF_BUILT_DATA = {"PackedSpec"}

RECIPE = """\
kind = "recipe"
name = "everything"
objective.capabilities = [{ name = "c", weight = 1 }]
objective.alternatives = [{ option = "a", verdict = "b" }]
interventions.permissions = [{ what = "restart", by = "automatic" }]
interventions.spikes = {}
[tokenizer]
vocabulary = 512
fim_tokens = ["<p>", "<s>", "<m>"]
[model]
layers = 2
width = 64
heads = 4
latent = { kv_rank = 16, nope_width = 8, rope_width = 4, value_width = 6 }
experts = { experts = 8, top_k = 2, width = 32 }
yarn = { factor = 4, original = 64 }
mup = { base_width = 32 }
[data.prepare]
extensions = {}
code = {}
languages = { keep = ["en"] }
secrets = {}
personal = {}
quality = {}
repeats = {}
contamination = { registry = "registry.json" }
duplicates = {}
near_duplicates = {}
lines = {}
repositories = {}
quality_axes = { density = {} }
[[data.sources]]
name = "a"
kind = "undisclosed"
synthetic = true
generator = { program = "p" }
verifier = { program = "v" }
[[stages]]
name = "main"
tokens = "20k"
sequence = 64
ramp = [{ from = 0, batch = 512 }, { from = "10k", batch = 1024 }]
mixture_rule = { kind = "temperature", temperature = 2 }
infill = { rate = 0.5 }
exit_gates = [{ name = "g", metric = "m", comparison = "<", threshold = 1 }]
[optimizer]
peak_rate = 1e-3
[evaluation]
every = "20k"
"""
"""Has every section, and of the added keys only those that are sections."""
GIVEN = {
    "Model": {"latent", "experts", "yarn", "mup"},
    "Data": {"prepare"},
    "Stage": {"mixture_rule", "infill"},
    "Tokenizer": {"fim_tokens"},
}
GIVEN |= {"Prepare": {"quality_axes"}, "Source": {"synthetic", "generator", "verifier"}}
PLACES = {"Source": {"path"}, "Contamination": {"registry"}}
"""Where texts lie is in no digest; what they say is in the manifest's."""
GIVEN |= {"ModelSpec": GIVEN["Model"], "StageSpec": {"yarn", "mixture_rule", "infill"}}

AS_BEFORE = {
    "beacon": ("a094ed127aa2bce6", "799753cfa7f93615"),
    "demo": ("2feb5e0bd7e327dc", "0f0a780d252320b7"),
    "gpt2-124m": ("9c1c6695a9658e01", "ae59c3fad37c0ee8"),
    "llama3-405b": ("864b3ffd97954dc8", "d67a027bb57c22d3"),
    "llama3-70b": ("9fa0a3be495d58dd", "1f55ab6d5d8d04de"),
    "llama3-8b": ("a13ea8121f0da7ed", "545373f6cf05ac5e"),
    "palm-540b": ("1a6dabaa00ee09ae", "bd05e2a8c9fa0b0c"),
    "small": ("2800b3616e8f159a", "8c12f77d6a34cd63"),
}
"""Of the Spec and of the recipe, as the first release made them. Change knowingly: other digests, other runs."""


def sections() -> dict[str, type[Section]]:
    found = vars(schema) | vars(preparation) | vars(interventions_section)
    return {n: c for n, c in found.items() if isinstance(c, type) and issubclass(c, Section) and c is not Section}


def saved_classes() -> dict[str, type]:
    classes = {n: c for n, c in vars(spec).items() if isinstance(c, type) and dataclasses.is_dataclass(c)}
    return {name: cls for name, cls in classes.items() if name not in NEVER_SAVED}


@pytest.fixture
def everything(tmp_path: Path):
    (tmp_path / "r.toml").write_text(RECIPE)
    return load_recipe(tmp_path / "r.toml")


@pytest.mark.parametrize("name", AS_BEFORE)
def test_presets_have_the_digests_of_the_first_release(name: str):
    loaded = load_recipe(name)
    found = (resolve(loaded, None).digest(), loaded.digest)
    assert tuple(digest.removeprefix("sha256:")[:16] for digest in found) == AS_BEFORE[name]


def test_every_key_is_of_the_first_release_or_known_as_added():
    assert set(FIRST) == set(sections())
    for name, cls in sections().items():
        assert set(cls.model_fields) - ADDED.get(name, set()) == set(FIRST[name].split()), name
    assert set(FIRST_OF_SPEC) == set(saved_classes())
    for name, cls in saved_classes().items():
        fields = {field.name for field in dataclasses.fields(cls)}
        assert fields - spec.ADDED.get(cls, frozenset()) == set(FIRST_OF_SPEC[name].split()), name


def pairs(section: Any, plain: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Every section or dataclass of a tree, beside the table that it became."""
    if isinstance(section, tuple):
        for inner, dumped in zip(section, plain, strict=True):
            yield from pairs(inner, dumped)
    elif isinstance(section, Section) or dataclasses.is_dataclass(section):
        yield section, plain
        names = {n: f.alias or n for n, f in type(section).model_fields.items()} if isinstance(section, Section) else None
        for name, key in (names or {field.name: field.name for field in dataclasses.fields(section)}).items():
            if key in plain:
                yield from pairs(getattr(section, name), plain[key])


def test_at_their_defaults_added_keys_are_left_out(everything):
    """Walked over what is really digested: in a key of a section that is added, but not left out, older digests change."""
    seen: set[str] = set()
    for section, plain in pairs(everything.recipe, recipe_content(everything.recipe)):
        name = type(section).__name__
        seen.add(name)
        kept = {key.replace("from", "start") if name == "RampPhase" else key for key in plain}
        wanted = set(FIRST[name].split()) - PLACES.get(name, set())
        assert kept - GIVEN.get(name, set()) == wanted, name
    assert seen == set(sections())


def test_at_their_defaults_added_fields_of_the_spec_are_left_out(everything):
    made = resolve(everything, None)
    seen: set[str] = set()
    for value, plain in pairs(made, made.to_json()):
        name = type(value).__name__
        seen.add(name)
        assert set(plain) - GIVEN.get(name, set()) == set(FIRST_OF_SPEC[name].split()), name
    assert seen == set(saved_classes()) - OF_BUILT_DATA
    assert set(made.objective) == set(FIRST["Objective"].split())
    assert set(made.interventions) == set(FIRST["Interventions"].split())


READ_BESIDE = {"model.mtp_weight": "model.mtp_layers=1", "model.experts.bias_rate": "model.experts.router_bias=true"}
READ_BESIDE["interventions.spikes.most_roll_backs"] = "interventions.spikes.policy=roll_back"
READ_BESIDE |= {f"optimizer.{key}": "optimizer.kind=muon" for key in ("matrix_rate", "momentum", "muon_scale")}


def test_added_keys_that_say_something_are_in_the_digest(everything, tmp_path: Path):
    """Each of them in its own section, the recipe's and the Spec's."""
    for override in (
        "model.mtp_weight=0.1",
        "tokenizer.digits=single",
        "tokenizer.whitespace=lines",
        "tokenizer.sample=1MB",
        "tokenizer.reserved_count=3",
        "tokenizer.fim_tokens=['<a>', '<b>', '<c>']",
        "interventions.damaged_data=quarantine",
        "interventions.spikes.policy=stop",
        "interventions.spikes.threshold=8",
        "interventions.spikes.most_roll_backs=1",
        "model.nope_every=2",
        "model.logit_softcap=30",
        "model.attention_softcap=50",
        "model.dropout=0.1",
        "model.init=fixed",
        "model.experts.score=sigmoid",
        "model.experts.normalise=false",
        "model.experts.scale=2.5",
        "model.experts.bias_rate=0.01",
        "model.experts.balance_loss=0.0001",
        "model.experts.z_loss=0.001",
        "stages.0.yarn={factor=8, original=64}",
        "stages.0.rate.tail=1k",
        "stages.0.rate.batch_rule=sqrt",
        "optimizer.matrix_rate=0.02",
        "optimizer.momentum=0.9",
        "optimizer.muon_scale=spectral",
        "stability.skip_above=10",
        "stability.most_skips=5",
        "precision.modules={head='float32'}",
    ):
        with_it = [text for key, text in READ_BESIDE.items() if override.startswith(f"{key}=")]
        before, changed = (load_recipe(tmp_path / "r.toml", overrides) for overrides in (with_it, [*with_it, override]))
        assert changed.digest != before.digest, override
        assert resolve(changed, None).digest() != resolve(before, None).digest(), override


def test_what_is_done_to_documents_is_in_the_recipes_digest_and_the_place_of_the_registry_is_not(everything, tmp_path: Path):
    digests = [everything.digest]
    for override in (
        "data.prepare.quality.least_letters=0.5",
        "data.prepare.near_duplicates.seed=1",
        "data.prepare.text.unicode=nfc",
        'data.sources.0.without=["quality"]',
    ):
        digests.append(load_recipe(tmp_path / "r.toml", [override]).digest)
    assert len(set(digests)) == len(digests)
    moved = load_recipe(tmp_path / "r.toml", ["data.prepare.contamination.registry=elsewhere/registry.json"])
    assert moved.digest == everything.digest


def test_where_a_tokenizer_lies_is_in_no_digest_and_what_it_may_do_is(everything, tmp_path: Path):
    brought = [
        load_recipe(tmp_path / "r.toml", ["tokenizer.kind=file", *more]).digest
        for more in (["tokenizer.path=a.json"], ["tokenizer.path=b.json"], ["tokenizer.path=a.json", "tokenizer.lossy=true"])
    ]
    assert brought[0] == brought[1] != brought[2]
    assert everything.digest not in brought
