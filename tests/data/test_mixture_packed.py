"""Mixtures over packed stages: transitions, shares with padding, documents that begin in bins, rules that need plans."""

from __future__ import annotations

import numpy as np
import pytest
from data_helpers import small_recipe, write_words
from hypothesis import given, settings
from hypothesis import strategies as st
from test_packed_stream import cases, inputs_of

from headway.base.errors import ConfigError
from headway.data.build import build_data
from headway.data.freeze import freeze
from headway.data.reader import TokenReader
from headway.data.shares import Part, stage_shares
from headway.data.stream import Skip, Stream, Transition


@given(cases(), st.data())
@settings(max_examples=30, deadline=None)
def test_D6_nothing_is_read_twice_across_transitions_of_packed_stages(case, data):
    spec, ends = case
    stage = data.draw(st.integers(0, 2))
    transitions = tuple(Transition(stage, data.draw(st.integers(0, 40)), quanta) for quanta in ((65_536, 0), (9, 65_527)))
    stream = Stream(spec, (Skip(0, 3, 2),), (), transitions)
    seen: set[tuple[int, int, int]] = set()
    for number, one in enumerate(spec.stages):
        found = stream.locate(number, np.arange(one.sequences))
        assert stream.trained(number, one.sequences) == tuple(np.bincount(found.source, minlength=2).tolist())
        for source, epoch, token in zip(found.source.tolist(), found.epoch.tolist(), found.token.tolist()):
            for at in inputs_of(spec, ends, number, source, token):
                assert (source, epoch, at) not in seen
                seen.add((source, epoch, at))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    root = tmp_path_factory.mktemp("packed")
    sources = [
        {"name": name, "kind": "text-tree", "path": str(write_words(root / name, documents, seed=seed, words=words))}
        for name, documents, seed, words in (("a", 60, 1, 30), ("b", 30, 2, 25))
    ]
    stage = {"name": "main", "tokens": 30_000, "sequence": 128, "batch": 512, "rate": {}, "packing": "best-fit"}
    recipe = small_recipe(sources, stages=[stage | {"mixture_rule": {"kind": "unimax", "epochs": 50.0}}], chunk=512, held_out=200)
    return sources, stage, build_data(recipe, root / "data"), root


def test_documents_begin_once_an_epoch_and_padding_is_no_target(built):
    sources, stage, manifest, root = built
    only_b = small_recipe(sources, stages=[stage | {"mixture": {"b": 1.0}}])
    spec = freeze(only_b, manifest)
    stream, epoch = Stream(spec), sum(spec.stages[0].packed[1].bins)
    count = TokenReader(root / "data", manifest).documents_begun
    _, b = stage_shares(stream, Part(0, 0, epoch), count).sources
    assert b.documents == manifest.source("b").documents
    assert b.tokens == epoch * 128
    share = spec.stages[0].packed[1].target_share
    assert share < 1
    assert b.target_tokens == pytest.approx(b.tokens * share)
    assert b.target_tokens == pytest.approx(manifest.source("b").tokens, rel=0.01)


@pytest.mark.parametrize("rule", [{"kind": "temperature", "temperature": 1.0}, {"kind": "unimax", "epochs": 50.0}])
def test_a_rule_gives_shares_of_targets_not_of_padding(built, rule):
    sources, stage, manifest, _ = built
    spec = freeze(small_recipe(sources, stages=[stage | {"mixture_rule": rule}]), manifest)
    wanted = spec.stages[0].mixture_rule.weights
    realised = [row.realised for row in stage_shares(Stream(spec), Part(0, 0, spec.stages[0].sequences)).sources]
    assert realised == pytest.approx(wanted, abs=0.005)


def test_sources_of_a_rule_need_plans_too(built):
    sources, stage, manifest, _ = built
    longer = stage | {"sequence": 64, "mixture_rule": {"kind": "temperature", "temperature": 1.0, "sources": ["b"]}}
    with pytest.raises(ConfigError, match="no plan that packs b into 64 tokens"):
        freeze(small_recipe(sources, stages=[longer]), manifest)
