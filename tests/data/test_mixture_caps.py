"""Caps that rebalance: the Spec that comes out fits by chunk slots, says what was asked, and nothing else of it moves."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from data_helpers import small_recipe, small_spec, write_words
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_stream_positions import specs

from headway.base.errors import ConfigError
from headway.data.build import build_data
from headway.data.freeze import check_caps, freeze, rebalanced
from headway.data.stream import Stream, source_coverage, stream_digests
from headway.recipe.mixture_rules import rule_words
from headway.recipe.spec import QUANTA, Spec

SOURCES = [("a", 5_000, 64, 1.0), ("b", 20_000, 64, 1.0), ("c", 90_000, 64)]
STAGES = [(1_500, 16, (32_768, 19_661, 13_107)), (800, 32, (6_554, 32_768, 26_214))]


def capped(spec: Spec, caps: dict[int, float]) -> Spec:
    sources = [dataclasses.replace(s, cap_epochs=caps.get(k)) for k, s in enumerate(spec.sources)]
    return dataclasses.replace(spec, sources=tuple(sources))


def test_D11_a_source_gets_what_its_cap_allows_and_the_others_share_the_rest():
    asked = small_spec(SOURCES, STAGES)
    with pytest.raises(ConfigError):
        check_caps(asked)
    spec = rebalanced(asked)
    check_caps(spec)
    a, b, _ = source_coverage(spec)
    assert a.allowed_slots is not None
    assert b.allowed_slots is not None
    assert 0 <= a.allowed_slots - a.final_slot <= 1, "a chunk more would be too much"
    assert 0 <= b.allowed_slots - b.final_slot <= 1, "what a freed brought b to its own cap"
    for before, after in zip(asked.stages, spec.stages):
        assert sum(after.quanta) == QUANTA
        assert after.asked_quanta == before.quanta
        assert dataclasses.replace(after, quanta=before.quanta, asked_quanta=()) == before
        assert "rebalanced" in rule_words(after)
    assert stream_digests(spec) != stream_digests(asked)
    assert Spec.from_json(spec.to_json()) == spec
    for number, stage in enumerate(spec.stages):
        Stream(spec).locate(number, np.arange(stage.sequences))


def test_where_all_fits_nothing_is_touched():
    spec = small_spec(SOURCES, [(100, 16, STAGES[0][2])])
    assert rebalanced(spec) == spec


def test_where_nothing_fits_the_numbers_are_told():
    with pytest.raises(ConfigError, match="rebalancing finds no mixture in which source a is within its cap") as caught:
        rebalanced(small_spec([SOURCES[0], SOURCES[2]], [(1_500, 16, (QUANTA, 0)), (800, 16, (32_768, 32_768))]))
    assert any("the stages need" in problem.seen for problem in caught.value.problems)


@given(specs(stages=3), st.data())
@settings(max_examples=40, deadline=None)
def test_D11_whatever_comes_out_can_be_read_to_its_end(spec, data):
    spec = capped(spec, data.draw(st.dictionaries(st.integers(0, 2), st.sampled_from([0.3, 1.0, 2.5]), max_size=3)))
    assume(len(spec.sources) > 1)
    try:
        mixed = rebalanced(spec)
    except ConfigError:
        return
    assert all(coverage.within_cap for coverage in source_coverage(mixed))
    assert [s.sequences for s in mixed.stages] == [s.sequences for s in spec.stages]


def test_freezing_rebalances_only_where_the_recipe_says_so(tmp_path):
    sources = [
        {"name": "a", "kind": "text-tree", "path": str(write_words(tmp_path / "a", 60, seed=1))},
        {"name": "b", "kind": "text-tree", "path": str(write_words(tmp_path / "b", 20, seed=2)), "cap_epochs": 1.0},
    ]
    plain = small_recipe(sources)
    tokens = build_data(plain, tmp_path / "data")
    stage = {"name": "main", "tokens": 2 * tokens.source("b").tokens + 4_000, "sequence": 16, "batch": 64, "rate": {}}
    stage |= {"mixture": {"a": 1.0, "b": 1.0}}
    with pytest.raises(ConfigError, match=r"or data\.beyond_cap = \"rebalance\""):
        freeze(small_recipe(sources, stages=[stage]), tokens)
    spec = freeze(small_recipe(sources, stages=[stage], beyond_cap="rebalance"), tokens)
    assert spec.stages[0].asked_quanta == (32_768, 32_768)
    assert spec.stages[0].quanta[1] < 32_768
    rule = stage | {"mixture": {}, "mixture_rule": {"kind": "temperature", "temperature": 1.0}}
    frozen = freeze(small_recipe(sources, stages=[rule], beyond_cap="rebalance"), tokens).stages[0]
    assert frozen.mixture_rule is not None
    assert frozen.mixture_rule.tokens == tuple(source.tokens for source in tokens.sources)
