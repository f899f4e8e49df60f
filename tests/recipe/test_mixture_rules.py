"""Weights by rule, each against its own definition; what cannot be computed is refused with numbers; mixtures within caps."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.base.errors import ConfigError
from headway.recipe.load import load_recipe
from headway.recipe.mixture_rules import apportion, by_quality, by_temperature, refuse_unsized, rule_words, unimax
from headway.recipe.rebalance import NothingFits, rebalance
from headway.recipe.resolve import DataFacts, SourceFacts, resolve
from headway.recipe.spec import QUANTA, Spec

RECIPE = """\
kind = "recipe"
name = "mixed"
tokenizer = { vocabulary = 512 }
model = { layers = 2, width = 64, heads = 4 }
optimizer = { peak_rate = 1e-3 }
evaluation = { every = "20k" }
[data]
sources = [{ name = "a", kind = "undisclosed" }, { name = "b", kind = "undisclosed" }, { name = "c", kind = "undisclosed" }]
[[stages]]
name = "main"
tokens = "64k"
sequence = 64
batch = 1024
"""
SIZES = {"a": 2_000, "b": 10_000, "c": 100_000}


def facts(sizes: dict[str, int] | None = None, quality: dict | None = None, share: float = 1.0) -> DataFacts:
    sizes = sizes or SIZES
    sources = [SourceFacts(n, t, 64, share, f"sha256:{n}", "none", quality=(quality or {}).get(n, {})) for n, t in sizes.items()]
    return DataFacts("sha256:m", "sha256:t", 512, "<|document|>", tuple(sources))


def spec_of(tmp_path: Path, rule: str, known: DataFacts | None, *sets: str) -> Spec:
    (tmp_path / "r.toml").write_text(RECIPE + rule)
    return resolve(load_recipe(tmp_path / "r.toml", list(sets)), known)


def shares(spec: Spec, stage: int = 0) -> list[float]:
    return [q / QUANTA for q in spec.stages[stage].quanta]


# --- the rules ------------------------------------------------------------------------------------------------------------


def test_temperature_is_a_power_of_size(tmp_path):
    for temperature in (1.0, 2.0, 5.0):
        spec = spec_of(tmp_path, f'mixture_rule = {{ kind = "temperature", temperature = {temperature} }}', facts())
        wanted = [n ** (1 / temperature) for n in SIZES.values()]
        assert shares(spec) == pytest.approx([w / sum(wanted) for w in wanted], abs=1 / QUANTA)
        applied = spec.stages[0].mixture_rule
        assert applied is not None
        assert (applied.kind, applied.sources, applied.tokens) == ("temperature", ("a", "b", "c"), tuple(SIZES.values()))
        assert applied.weights == pytest.approx([w / sum(wanted) for w in wanted])


def test_quality_is_exponential_in_the_score_and_a_power_of_size(tmp_path):
    rule = 'mixture_rule = { kind = "quality", temperature = 0.5, size_power = 0.5, axis = "density", scores = { a = 2.0 } }'
    spec = spec_of(
        tmp_path, rule, facts(quality={"a": {"density": 9.0}, "b": {"density": 1.0}, "c": {"density": 0.0, "harm": 5.0}})
    )
    wanted = [math.sqrt(n) * math.exp(2 * s) for n, s in zip(SIZES.values(), (2.0, 1.0, 0.0))]
    assert shares(spec) == pytest.approx([w / sum(wanted) for w in wanted], abs=1 / QUANTA)
    assert spec.stages[0].mixture_rule.scores == (2.0, 1.0, 0.0), "what is stated goes before the axis"


def test_quality_without_a_score_is_refused_and_says_which_axes_there_are(tmp_path):
    rule = 'mixture_rule = { kind = "quality", temperature = 1.0, axis = "authority" }'
    with pytest.raises(ConfigError, match=r"no score is known of b, c\n.*axes in the data: authority, density") as caught:
        spec_of(tmp_path, rule, facts(quality={"a": {"authority": 1.0}, "b": {"density": 1.0}}))
    assert caught.value.problems[0].where.endswith("r.toml:14")


def test_extreme_scores_and_sizes_do_not_overflow():
    assert by_quality([1e12, 1e12], [0.0, 1e6], temperature=0.01, size_power=1.0) == [0.0, 1.0]
    assert by_temperature([1, 10**15], 0.01) == [0.0, 1.0]


def test_unimax_is_the_algorithm_of_the_paper_by_hand(tmp_path):
    assert unimax(90, [8, 40, 400]) == [8, 40, 42]
    assert unimax(30, [8, 40, 400]) == pytest.approx([8, 11, 11])
    assert unimax(3, [8, 40, 400]) == [1, 1, 1]
    spec = spec_of(tmp_path, 'mixture_rule = { kind = "unimax", epochs = 2 }', facts())
    given = [4_000, 20_000, 64_000 - 24_000]
    assert shares(spec) == pytest.approx([g / 64_000 for g in given], abs=1 / QUANTA)


@given(st.floats(1, 1e13), st.lists(st.floats(0, 1e13, allow_subnormal=False), min_size=1, max_size=12))
def test_unimax_is_as_even_as_caps_allow(budget, allowed):
    """Nothing beyond what is allowed; whoever has less than another has all it may have."""
    given_ = unimax(budget, allowed)
    assert all(g <= a for g, a in zip(given_, allowed))
    assert math.fsum(given_) == pytest.approx(min(budget, math.fsum(allowed)), rel=1e-9)
    for k, g in enumerate(given_):
        assert g == allowed[k] or g >= max(given_) * (1 - 1e-9)


def test_unimax_counts_what_stages_before_have_read(tmp_path):
    second = (
        '[[stages]]\nname = "end"\ntokens = "32k"\nsequence = 64\nbatch = 1024\nmixture_rule = { kind = "unimax", epochs = 2 }\n'
    )
    spec = spec_of(tmp_path, "mixture = { a = 3, b = 7, c = 90 }\n" + second, facts())
    trained = spec.stages[0].sequences * 64
    left = [2 * SIZES["a"] - 0.03 * trained, 2 * SIZES["b"] - 0.07 * trained]
    assert shares(spec, 1)[:1] == pytest.approx([left[0] / 32_000], abs=2e-4)
    assert shares(spec, 1)[1] == pytest.approx((32_000 - left[0]) / 2 / 32_000, abs=2e-4)


def test_unimax_beyond_its_epochs_is_refused_with_epochs_that_do(tmp_path):
    rule = 'mixture_rule = { kind = "unimax", epochs = 1, sources = ["a", "b"] }'
    with pytest.raises(
        ConfigError, match=r"unimax with epochs = 1 has 12k tokens left for a stage of 64k \(a 2,000, b 10k\)"
    ) as caught:
        spec_of(tmp_path, rule, facts())
    named = float(caught.value.problems[0].way_out.split("raise epochs to ")[1].split(",")[0])
    assert 64 / 12 <= named < 64 / 12 * 1.01
    spec_of(tmp_path, rule.replace("epochs = 1", f"epochs = {named}"), facts())


def test_sources_that_take_no_part_get_nothing(tmp_path):
    spec = spec_of(tmp_path, 'mixture_rule = { kind = "temperature", temperature = 1.0, sources = ["a", "b"] }', facts())
    assert spec.stages[0].quanta[2] == 0
    assert shares(spec)[0] == pytest.approx(1 / 6, abs=1 / QUANTA)


def test_padding_enters_by_the_target_share(tmp_path):
    """Half of b's tokens count: its size is half as large, and it gets twice the sequences for its share."""
    even = facts({"a": 5_000, "b": 10_000, "c": 5_000})
    padded = dataclasses.replace(
        even, sources=(even.sources[0], dataclasses.replace(even.sources[1], target_share=0.5), even.sources[2])
    )
    spec = spec_of(tmp_path, 'mixture_rule = { kind = "temperature", temperature = 1.0 }', padded)
    assert spec.stages[0].quanta == (16_384, 32_768, 16_384)
    assert spec.stages[0].mixture_rule.weights == pytest.approx([1 / 3] * 3)


# --- before the data is built ---------------------------------------------------------------------------------------------


def test_a_draft_takes_the_declared_inventory_and_refuses_where_there_is_none(tmp_path):
    rule = 'mixture_rule = { kind = "temperature", temperature = 1.0 }'
    sets = [f"data.sources.{k}.inventory={n}" for k, n in enumerate(SIZES.values())]
    declared, unknown = spec_of(tmp_path, rule, None, *sets), spec_of(tmp_path, rule, None, *sets[:2])
    assert declared.stages[0].quanta == spec_of(tmp_path, rule, facts()).stages[0].quanta
    refuse_unsized(declared, lambda path: "")
    assert "sizes unknown" in rule_words(unknown.stages[0])
    with pytest.raises(ConfigError, match=r"stage main: its mixture follows .* nobody knows that of c\n"):
        refuse_unsized(unknown, lambda path: "r.toml:14")


def test_a_rule_is_in_the_digests_and_the_built_spec_reads_back(tmp_path):
    specs = [spec_of(tmp_path, f'mixture_rule = {{ kind = "temperature", temperature = {t} }}', facts()) for t in (1.0, 2.0)]
    assert specs[0].recipe_digest != specs[1].recipe_digest
    for spec in specs:
        assert Spec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ('mixture_rule = { kind = "temperature" }', "temperature without temperature"),
        ('mixture_rule = { kind = "unimax" }', "unimax without epochs"),
        ('mixture_rule = { kind = "unimax", epochs = 2, temperature = 3.0 }', "temperature beside kind = 'unimax'"),
        ('mixture_rule = { kind = "temperature", temperature = 2.0, axis = "harm" }', "axis beside kind = 'temperature'"),
        ('mixture_rule = { kind = "quality", temperature = 2.0 }', "quality without scores"),
        ('mixture_rule = { kind = "unimax", epochs = 2 }\nmixture = { a = 1 }', "both mixture and mixture_rule"),
        ('mixture_rule = { kind = "unimax", epochs = 2, sources = ["A"] }', "mixes 'A', which is no source"),
        ('mixture_rule = { kind = "quality", temperature = 1.0, scores = { d = 1.0 } }', "mixes 'd', which is no source"),
        ("", "the mixture of stage 'main' has no weight"),
    ],
)
def test_what_a_rule_needs_and_does_not_read_is_told(tmp_path, rule, said):
    with pytest.raises(ConfigError) as caught:
        spec_of(tmp_path, rule, facts())
    assert any(said in problem.seen for problem in caught.value.problems), caught.value


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=40).filter(any), st.integers(40, QUANTA))
def test_parts_sum_to_the_whole_and_lie_within_one_of_their_share(wanted, total):
    parts = apportion([Fraction(w) for w in wanted], total)
    assert sum(parts) == total
    assert all((p > 0) is (w > 0) for p, w in zip(parts, wanted))
    if all(w * total >= sum(wanted) for w in wanted if w):
        assert all(abs(p - Fraction(w * total, sum(wanted))) < 1 for p, w in zip(parts, wanted))


# --- caps -----------------------------------------------------------------------------------------------------------------

ASKED = ((32_768, 19_661, 13_107), (6_554, 32_768, 26_214))


def beyond_by(allowed: dict[int, float]):
    """A source may have so many quanta over all stages."""
    return lambda mixtures: frozenset(k for k, most in allowed.items() if sum(stage[k] for stage in mixtures) > most)


def test_nothing_moves_where_all_fit():
    assert rebalance(ASKED, beyond_by({0: 10**6})) == ASKED


def test_what_is_freed_goes_to_the_others_in_proportion():
    given_ = rebalance(ASKED, beyond_by({0: 19_661}))
    for asked, stage in zip(ASKED, given_):
        assert sum(stage) == QUANTA
        assert stage[0] == pytest.approx(asked[0] / 2, abs=1)
        assert stage[1] / stage[2] == pytest.approx(asked[1] / asked[2], rel=1e-3)
    assert 19_661 - 4 <= sum(stage[0] for stage in given_) <= 19_661


def test_who_is_beyond_its_cap_by_what_was_freed_is_limited_too():
    given_ = rebalance(ASKED, beyond_by({0: 10_000, 1: 55_000}))
    assert 10_000 - 4 <= sum(stage[0] for stage in given_) <= 10_000
    assert 55_000 - 4 <= sum(stage[1] for stage in given_) <= 55_000
    assert sum(stage[2] for stage in given_) == 2 * QUANTA - sum(sum(stage[:2]) for stage in given_)


def test_a_stage_without_another_source_stays_and_the_others_give_way():
    given_ = rebalance(((QUANTA, 0), (32_768, 32_768)), beyond_by({0: QUANTA + 8_000}))
    assert given_[0] == (QUANTA, 0)
    assert 8_000 - 2 <= given_[1][0] <= 8_000


def test_where_nothing_fits_it_says_so():
    with pytest.raises(NothingFits) as caught:
        rebalance(((QUANTA, 0), (32_768, 32_768)), beyond_by({0: QUANTA - 1}))
    assert caught.value.source == 0
    with pytest.raises(NothingFits):
        rebalance(ASKED, beyond_by({0: 20_000, 1: 20_000, 2: 20_000}))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_comes_out_fits_sums_up_and_takes_no_part_it_did_not_have(data):
    sources, stages = data.draw(st.integers(2, 6)), data.draw(st.integers(1, 3))
    weights = st.lists(st.integers(0, 9), min_size=sources, max_size=sources).filter(any)
    asked = tuple(apportion([Fraction(w) for w in data.draw(weights)], QUANTA) for _ in range(stages))
    allowed = data.draw(st.dictionaries(st.integers(0, sources - 1), st.integers(0, stages * QUANTA), max_size=sources))
    beyond = beyond_by(allowed)
    try:
        given_ = rebalance(asked, beyond)
    except NothingFits:
        return
    assert not beyond(given_)
    for stage, mixed in zip(asked, given_):
        assert sum(mixed) == QUANTA
        assert all(m == 0 for q, m in zip(stage, mixed) if q == 0)


def test_a_draft_is_rebalanced_by_what_is_declared_and_remembers_what_was_asked(tmp_path):
    mixed = "mixture = { a = 0.5, b = 0.3, c = 0.2 }\n"
    sets = ["data.sources.0.inventory=10k", "data.sources.0.cap_epochs=2"]
    with pytest.raises(ConfigError, match="tokens above data x caps"):
        spec_of(tmp_path, mixed, None, *sets)
    stage = spec_of(tmp_path, mixed, None, *sets, "data.beyond_cap=rebalance").stages[0]
    assert stage.asked_quanta == (32_768, 19_661, 13_107)
    assert 19_900 < stage.sequences * 64 * stage.quanta[0] / QUANTA <= 20_000
    with pytest.raises(ConfigError, match="source a: the stages take 64,512 tokens, its cap allows 20,000, and no mixture"):
        spec_of(tmp_path, "mixture = { a = 1 }\n", None, *sets, "data.beyond_cap=rebalance")


DECLARED = """\
[[stages]]
name = "rest"
tokens = "64k"
sequence = 64
batch = 1024
mixture_rule = { kind = "temperature", temperature = 1 }
"""
ALL_SIZES = ["data.sources.0.inventory=2k", "data.sources.1.inventory=10k", "data.sources.2.inventory=20k"]


@pytest.mark.parametrize(
    ("main", "sets", "seen"),
    [
        ("mixture = { a = 1, b = 15 }", ALL_SIZES, "the stages take 8,000 of source 'a', which has 2,000: 4 passes"),
        ("mixture = { a = 1, b = 15 }", ALL_SIZES[:2], "the stages take at least 4,000 of source 'a', which has 2,000: 2 passes"),
        ('mixture_rule = { kind = "unimax", epochs = 60 }', ALL_SIZES, "of source 'a', which has 2,000: 12.7 passes"),
        (
            'mixture_rule = { kind = "quality", temperature = 1, axis = "density" }',
            ALL_SIZES,
            "take at least 4,000 of source 'a'",
        ),
        ('mixture_rule = { kind = "unimax", epochs = 0.1 }', ALL_SIZES, "take at least 4,000 of source 'a'"),
        ('mixture_rule = { kind = "unimax" }', ALL_SIZES, "unimax without epochs"),
    ],
)
def test_what_rules_take_counts_against_the_declared_inventory(tmp_path, main, sets, seen):
    with pytest.raises(ConfigError) as refused:
        spec_of(tmp_path, f"{main}\n{DECLARED}", None, "data.sources.0.cap_epochs=1.5", *sets)
    assert seen in str(refused.value)


def test_where_the_rule_keeps_within_caps_nothing_is_said(tmp_path):
    spec_of(tmp_path, DECLARED.split("batch = 1024\n")[1], None, "data.sources.0.cap_epochs=2", *ALL_SIZES)
