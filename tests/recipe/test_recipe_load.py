"""Reading recipes: every problem at once, each with its line, the rule and the nearest known key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headway.base.errors import EXIT_CONFIG, ConfigError
from headway.recipe.checks import divisors
from headway.recipe.load import load_deployment, load_recipe, name_in_commands, preset_names

GOOD = """\
kind = "recipe"
name = "tiny"
seed = 7

[tokenizer]
vocabulary = 512

[model]
layers = 2
width = 64
heads = 4
kv_heads = 2

[data]
held_out = "2k tokens"

[[data.sources]]
name = "code"
kind = "python-stdlib"

[[data.sources]]
name = "prose"
kind = "pydoc-topics"
cap_epochs = 2

[[stages]]
name = "main"
tokens = "64k"
sequence = 128
batch = "1k"
rate = { warmup = "4k", shape = "constant" }
mixture = { code = 3, prose = 1 }

[[stages]]
name = "anneal"
tokens = "16k"
sequence = 128
ramp = [
  { from = "0", batch = "1k" },
  { from = "8k", batch = "2k" },
]
[stages.rate]
shape = "linear"
[stages.mixture]
code = 0.5
prose = 0.5

[optimizer]
peak_rate = 1e-3

[evaluation]
every = "20k"
"""


@pytest.fixture
def problems(tmp_path: Path):
    """Problems of the good recipe after replacing texts, as ``line -> seen``."""

    def find(*changes: tuple[str, str], overrides: tuple[str, ...] = ()) -> dict[str, str]:
        text = GOOD
        for old, new in changes:
            assert old in text, old
            text = text.replace(old, new, 1)
        path = tmp_path / "r.toml"
        path.write_text(text)
        with pytest.raises(ConfigError) as error:
            load_recipe(path, overrides)
        return {p.where.removeprefix(f"{path}:"): f"{p.seen} | {p.rule} | {p.way_out}" for p in error.value.problems}

    return find


def test_good_recipe_and_presets_load(tmp_path):
    (tmp_path / "r.toml").write_text(GOOD)
    loaded = load_recipe(tmp_path / "r.toml")
    assert loaded.recipe.stages[1].ramp[1].start == 8_000
    assert loaded.recipe.data.held_out == 2_000
    assert {"demo", "small"} <= set(preset_names())
    for name in preset_names():
        assert load_recipe(name).recipe.name == name


def test_unknown_key_names_the_nearest(problems):
    assert problems(("kv_heads = 2", "kvheads = 2")) == {
        "12": "unknown key model.kvheads | keys here are layers, width, heads, kv_heads, head_width, ffn_width, rope_base, "
        "norm_epsilon, qk_norm, tied_embeddings, init_std, ffn, norm, block, bias, position, positions, qk_norm_over, "
        "embedding_norm, window, full_attention_every, latent, experts, mtp_layers, mtp_weight, rotary_share, yarn, nope_every, "
        "logit_softcap, attention_softcap, dropout, init, mup, nominal_parameters | did you mean kv_heads?"
    }


def test_key_of_the_other_file_names_that(problems, tmp_path):
    seen = problems(overrides=("supervise.hang_floor=1min",))["--set supervise.hang_floor=1min"]
    assert "supervise belongs to the deployment: into its file, or --set deployment.supervise..." in seen
    (tmp_path / "d.toml").write_text('kind = "deployment"\nschema_version = 1\n[model]\nlayers = 3\n')
    with pytest.raises(ConfigError, match="model belongs to the recipe"):
        load_deployment(tmp_path / "d.toml")


def test_key_in_the_wrong_table_names_its_place(problems):
    assert "did you mean optimizer.weight_decay?" in problems(("heads = 4", "heads = 4\nweight_decay = 0.1"))["12"]


@pytest.mark.parametrize(
    ("old", "new", "line", "seen"),
    [
        ('tokens = "64k"', 'tokens = "30min"', "28", "'30min' is not a number of tokens"),
        ('tokens = "64k"', 'tokens = "64 GiB"', "28", "'64 GiB' is not a number of tokens"),
        ('tokens = "64k"', "tokens = 1.5", "28", "not a whole number"),
        ('tokens = "64k"', "tokens = -5", "28", "at least 1"),
        ('{ warmup = "4k", s', '{ warmup = "4 stages", s', "31", "'4 stages' is not a number of tokens"),
        ('{ warmup = "4k", s', '{ warmup = "4.5 steps", s', "31", "'4.5 steps' is not a whole number"),
        ('{ warmup = "4k", s', '{ warmup = "-4 steps", s', "31", "'-4 steps' is not a number of steps"),
        ('{ warmup = "4k", s', '{ tail = "30min", s', "31", "'30min' is not a number of tokens"),
        ("peak_rate = 1e-3", 'peak_rate = "1e-3"', "49", "a number without quotes"),
        ("peak_rate = 1e-3", "peak_rate = nan", "49", "a finite number"),
        ("layers = 2", "layers = true", "9", "a whole number without quotes"),
        ("seed = 7", "schema_version = true", "3", "schema_version is 1"),
        ("seed = 7", "schema_version = 1.0", "3", "schema_version is 1"),
        ("seed = 7", "schema_version = 2", "3", "written for another version of Headway"),
        ("seed = 7", 'objective.deadline = "soon"', "3", "'soon' is no day"),
        ("seed = 7", 'objective.deadline = "20270131"', "3", "is no day"),
        ("sequence = 128", "sequence = 1", "29", "sequence is at least 2"),
        ("vocabulary = 512", "vocabulary = 256", "6", "vocabulary is at least 257"),
        ("seed = 7", "seed = -1", "3", "at least 0"),
        ('"python-stdlib"', '"python-stdlb"', "19", "did you mean python-stdlib?"),
        ('name = "tiny"', 'name = "a/b"', "2", "a text with no slash"),
        ('name = "tiny"', 'name = "."', "2", "is not . or .."),
        ('name = "tiny"', 'name = ".."', "2", "is not . or .."),
        ('name = "tiny"', r'name = "a\u0007b"', "2", "no control character"),
        ('name = "tiny"', r'name = "a\u0000b"', "2", "is not text"),
        ('name = "tiny"', r'name = "\u001b[31m"', "2", "no control character"),
    ],
)
def test_wrong_units_and_types(problems, old, new, line, seen):
    found = problems((old, new))
    assert list(found) == [line]
    assert seen in found[line]


def test_all_problems_at_once_with_their_lines(problems):
    found = problems(
        ("kv_heads = 2", "kv_heads = 3"),  # heads % kv_heads
        ('held_out = "2k tokens"', 'held_out = "2k minutes"'),  # wrong unit, in the section that names the sources
        ("mixture = { code = 3, prose = 1 }", "mixture = { cod = 3, prose = 1 }"),  # unknown source
        ('{ from = "8k", batch = "2k" },', '{ form = "8k", batch = "2k" },'),  # misspelt inside a list of tables
        ("peak_rate = 1e-3", "peak_rates = 1e-3"),  # misspelt required key
    )
    assert sorted(found, key=int) == ["12", "15", "32", "40", "48", "49"]
    assert "4 query heads cannot share 3" in found["12"]
    assert "choose kv_heads among 1, 2, 4" in found["12"]
    assert "did you mean code?" in found["32"]
    assert "did you mean from?" in found["40"] or "stages.1.ramp.1.from is missing" in found["40"]
    assert "optimizer.peak_rate is missing" in found["48"]
    assert "did you mean peak_rate?" in found["49"]


def test_missing_section_and_empty_list(problems):
    assert "evaluation is missing" in next(iter(problems(('[evaluation]\nevery = "20k"\n', "")).values()))
    found = problems(overrides=("data.sources=[]",))
    assert "a list of at least one" in found["--set data.sources=[]"]


@pytest.mark.parametrize(
    ("changes", "line", "seen"),
    [
        ([('warmup = "4k"', 'warmup = "70k"')], "31", "the warm-up of 70,000 tokens is longer than stage 'main' with 64,000"),
        ([('from = "8k"', 'from = "0"')], "40", "phase 1 begins at 0 tokens, after 0"),
        ([('from = "8k"', 'from = "16k"')], "40", "stage 'anneal' ends at 16,000"),
        ([('from = "0"', 'from = "1k"')], "39", "the first phase begins at 0"),
        ([('batch = "1k"\nrate', "rate")], "27", "neither batch nor ramp"),
        ([("ramp = [", 'batch = "1k"\nramp = [')], "39", "both batch and ramp"),
        ([('batch = "1k"\nrate', 'batch = "64"\nrate')], "30", "smaller than one sequence of 128"),
        ([('shape = "linear"', 'shape = "inverse_sqrt"')], "43", "an inverse root never reaches zero"),
        ([('shape = "constant"', 'shape = "constant", end = 0.5')], "31", "a constant ends where it starts"),
        ([("peak_rate = 1e-3", "peak_rate = 1e-3\nmatrix_rate = 0.02")], "50", "matrix_rate = 0.02 beside kind = 'adamw'"),
        ([("heads = 4\nkv_heads = 2", "heads = 5\nkv_heads = 5")], "11", "does not divide into 5 heads"),
        ([("kv_heads = 2", "kv_heads = 2\nhead_width = 15")], "13", "heads have an even width"),
        ([('name = "anneal"', 'name = "main"')], "35", "2 stages are named 'main'"),
        ([('name = "prose"', 'name = "code"')], "22", "2 sources are named 'code'"),
        ([("code = 3, prose = 1", "code = 0, prose = 0")], "32", "has no weight"),
        ([('kind = "pydoc-topics"', 'kind = "text-tree"')], "23", "has no path"),
        ([("vocabulary = 512", "vocabulary = 70_000"), ("[data]\n", '[data]\ndtype = "uint16"\n')], "15", "does not fit uint16"),
    ],
)
def test_contradictions_across_fields(problems, changes, line, seen):
    found = problems(*changes)
    assert line in found, found
    assert seen in found[line]


def test_capability_weights_sum_to_one(problems):
    text = '[[objective.capabilities]]\nname = "a"\nweight = 0.6\n[tokenizer]'
    assert "sum to 0.6" in problems(("[tokenizer]", text))["5"]


def test_syntax_error_names_the_line(tmp_path):
    path = tmp_path / "r.toml"
    path.write_text(GOOD.replace('tokens = "64k"', "tokens = 64k"))
    with pytest.raises(ConfigError) as error:
        load_recipe(path)
    assert error.value.problems[0].where == f"{path}:28"
    assert "tokens = 64k" in error.value.problems[0].rule
    assert error.value.exit_code == EXIT_CONFIG


def test_file_that_is_not_there_not_text_or_not_a_file(tmp_path):
    with pytest.raises(ConfigError, match="there is no recipe at"):
        load_recipe(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match="is a directory"):
        load_recipe(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'kind = "recipe"\nname = "\xe9"\n')
    with pytest.raises(ConfigError, match=r"latin\.toml:2: the text is not UTF-8"):
        load_recipe(tmp_path / "latin.toml")
    with pytest.raises(ConfigError, match="did you mean demo"):
        load_recipe("dmo")


def test_overrides_are_read_as_toml_or_text(tmp_path):
    (tmp_path / "r.toml").write_text(GOOD)
    sets = [
        "model.layers=8",
        "stages.0.tokens=2M",
        "name=other run",
        "stages.1.ramp.1.batch=4k",
        "model.qk_norm=false",
        "data.seed=3",
    ]
    recipe = load_recipe(tmp_path / "r.toml", sets).recipe
    assert (recipe.model.layers, recipe.stages[0].tokens, recipe.name) == (8, 2_000_000, "other run")
    assert (recipe.stages[1].ramp[1].batch, recipe.model.qk_norm, recipe.data.seed) == (4_000, False, 3)


def test_override_problems_name_the_override(problems):
    found = problems(
        overrides=(
            "model.layrs=8",
            "modle.width=3",
            "stages.7.tokens=2M",
            "stages.main.tokens=2M",
            "foo",
            "seed.x=1",
            "model.heads=x",
        )
    )
    assert "did you mean layers?" in found["--set model.layrs=8"]
    assert "did you mean model?" in found["--set modle.width=3"]
    assert "a list of 2: it has no 7" in found["--set stages.7.tokens=2M"]
    assert "it has no 'main'" in found["--set stages.main.tokens=2M"]
    assert "no key or no value" in found["--set foo"]
    assert "seed is a value" in found["--set seed.x=1"]
    assert "a whole number without quotes" in found["--set model.heads=x"]


def test_an_override_cannot_smuggle_in_other_keys(problems):
    assert (
        "a whole number without quotes" in problems(overrides=("model.layers=8\nwidth = 1",))["--set model.layers=8\nwidth = 1"]
    )


def test_every_field_of_both_schemas_has_a_description():
    from headway.recipe.deployment import Deployment
    from headway.recipe.problems import _inner_model
    from headway.recipe.schema import Recipe

    def walk(model):
        for name, field in model.model_fields.items():
            assert field.description, (model, name)
            inner = _inner_model(field.annotation)
            if inner:
                walk(inner)

    walk(Recipe)
    walk(Deployment)


# --- values beyond all bounds: one clear error, at once -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("model.layers=1000000000", "at most 10,000"),
        ("model.heads=10000000000", "at most 65,536"),
        ("model.kv_heads=65537", "at most 65,536"),
        ("model.width=16777217", "at most 2^24"),
        ("model.ffn_width=16777217", "at most 2^24"),
        ("model.head_width=16777218", "at most 16,777,216"),
        ("tokenizer.vocabulary=2147483649", "at most 2,147,483,648"),
        ("stages.0.sequence=1073741825", "2 to 2^30"),
        ("stages.0.tokens=4611686018427387904", "less than 4,611,686,018,427,387,904"),
        ("evaluation.sample_tokens=65537", "at most 65,536"),
        ("optimizer.epsilon=1e-46", "less is 0 in float32"),
        ("optimizer.epsilon=2.0", "at most 1"),
        ("optimizer.peak_rate=1e-46", "less is 0 in float32"),
        ("optimizer.weight_decay=10.1", "at most 10"),
        ("optimizer.clip_norm=1e-46", "vanish in float32"),
        ("optimizer.beta1=1.0", "below 1"),
        ("optimizer.beta2=1.0", "below 1"),
        ("stability.z_loss=1.1", "at most 1"),
        ("model.init_std=1e-46", "1e-12 to 10"),
        ("model.init_std=10.1", "1e-12 to 10"),
        ("model.norm_epsilon=9e-13", "at least 1e-12"),
        ("model.rope_base=1.9", "2 to 1e12"),
        ("stages.1.rope_base=1.9", "2 to 1e12"),
        ("stages.0.rate.start=11", "at most 10"),
    ],
)
def test_sizes_and_rates_have_bounds_that_are_named(problems, override, said):
    found = problems(overrides=(override,))
    assert list(found) == [f"--set {override}"]
    assert said in found[f"--set {override}"]


def test_the_way_out_of_many_heads_is_found_without_counting():
    assert divisors(36) == [1, 2, 3, 4, 6, 9, 12, 18, 36]
    assert divisors(1) == [1]
    assert len(divisors(10**10)) == 121  # by the root of the number, not the number


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("layers = 2", "layers = " + "9" * 5_000, ":9", "a value cannot be read"),
        ("layers = 2", "layers = 0x" + "f" * 5_000, ":9", "beyond 64 bits"),
        ("layers = 2", "layers = " + "[" * 5_000 + "]" * 5_000, "", "nested too deep"),
        ("layers = 2", "layers = " + "[" * 100 + "]" * 100, ":9", "nested too deep"),
        ("layers = 2", "layers" + ".a" * 3_000 + " = 1", ":9", "nested too deep"),
        ("{ code = 3", r'{ "a\u0000" = 3', ":32", "is not text"),
    ],
)
def test_what_no_schema_can_look_at_is_one_clear_error(tmp_path, old, new, line, said):
    path = tmp_path / "r.toml"
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(ConfigError, match=said) as caught:
        load_recipe(path)
    (problem,) = caught.value.problems
    assert problem.where == f"{path}{line}"
    assert len(str(problem)) < 1_000


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("model.layers=" + "9" * 5_000, "the value cannot be read"),
        ("model.layers=0x" + "f" * 5_000, "beyond 64 bits"),
        ("model.layers=" + "[" * 5_000 + "]" * 5_000, "the value cannot be read"),
        ("model.layers" + ".a" * 5_000 + "=1", "is a value"),
        ("x" + ".a" * 5_000 + "=1", "nested too deep"),
        ("stages.\u00b2.tokens=5", "it has no '\u00b2'"),
        ("stages.\u0663.tokens=5", "it has no '\u0663'"),
        (f"stages.{'1' * 5_000}.tokens=5", "is a list of 2"),
        ("name=a/b:\u00b2", "a text with no slash"),
        ("name=a/b:" + "1" * 5_000, "a text of at most 100 characters"),
        ('name="a\\u0000b"', "is not text"),
        ("evaluation.prompts=['caf\udce9']", "is not text"),
        ("name=caf\udce9", "is not text"),
    ],
)
def test_overrides_of_any_kind_are_one_clear_error(problems, override, said):
    ((where, seen),) = problems(overrides=(override,)).items()
    assert said in seen
    assert len(where + seen) < 1_000
    (where + seen).encode()  # can be printed


def test_a_recipe_is_read_once_and_not_without_end(tmp_path):
    (tmp_path / "long.toml").write_bytes(b"#" * 2**20 + b"\n")
    for path in (tmp_path / "long.toml", Path("/dev/zero")):
        with pytest.raises(ConfigError, match="longer than 1 MiB"):
            load_recipe(path)


def test_digest_is_of_meaning_not_of_text(tmp_path):
    def digest(text: str, *overrides: str) -> str:
        (tmp_path / "r.toml").write_text(text)
        return load_recipe(tmp_path / "r.toml", overrides).digest

    base = digest(GOOD)
    assert digest("# a comment\n" + GOOD.replace('"64k"', "64_000")) == base
    assert digest(GOOD, "stability.z_loss=1e-4") == base  # the default, spelt out
    assert digest(GOOD, "data.sources.0.path=/somewhere/else") == base  # where text lies is not what it says
    assert digest(GOOD, "stability.z_loss=1e-3") != base
    assert digest(GOOD, "model.layers=3") != base


def test_a_stage_without_a_rate_stays_at_the_peak(tmp_path):
    rate = 'rate = { warmup = "4k", shape = "constant" }\n'
    assert rate in GOOD
    (tmp_path / "bare.toml").write_text(GOOD.replace(rate, ""))
    (tmp_path / "empty.toml").write_text(GOOD.replace(rate, "rate = {}\n"))
    bare, empty = (load_recipe(tmp_path / f"{name}.toml") for name in ("bare", "empty"))
    assert bare.recipe.stages[0].rate.model_dump() == {
        "warmup": 0,
        "shape": "constant",
        "start": 1.0,
        "end": None,
        "tail": 0,
        "batch_rule": "none",
    }
    assert bare.digest == empty.digest


def test_commands_call_a_preset_by_its_name_and_a_file_by_its_path(tmp_path):
    assert name_in_commands(load_recipe("demo").path) == "demo"
    for path in ("recipes/demo.toml", str(tmp_path / "demo.toml"), "mine.toml", "/elsewhere/recipes/demo.toml", ""):
        assert name_in_commands(path) == path


def test_a_run_without_held_out_text_is_refused_before_its_data_is_built():
    with pytest.raises(ConfigError) as caught:
        load_recipe("demo", ["data.held_out=0"])
    (problem,) = caught.value.problems
    assert problem.seen == "no tokens are held out"
    assert problem.where == "--set data.held_out=0"


SLIPS = [
    *("kind=nothing", "schema_version=2", "name=[]", "name=''", "seed=1.5", "seed=-1", "objective.languages=en"),
    *("objective.deadline=2027-02-30", "objective.acceptable_failure_risk=2", "tokenizer=5", "tokenizer.document_token=''"),
    *("tokenizer.vocabulary=300.5", "model.layers=many", "model.qk_norm=1", "model.init_std=nan", "model.ffn=swigelu"),
    *("data.held_out=30min", "data.sources=[]", "stages.0.mixture=3", "stages.0.tokens={}", "optimizer.peak_rate=1.0"),
    *("optimizer.beta1=fast", "evaluation.every=0", "interventions.permissions=[1]", "stages.0.rate.nope=1", "model.latent.x=1"),
    f"name={'x' * 101}",
]


@pytest.mark.parametrize("slip", SLIPS)
def test_every_problem_has_a_rule_and_a_way_out_in_our_words(problems, slip):
    for text in problems(overrides=(slip,)).values():
        seen, rule, way_out = text.split(" | ", 2)
        assert all((seen, rule, way_out)), text
        assert not re.search("input should|greater than|less than or|valid|string should|pydantic", text.lower()), text
