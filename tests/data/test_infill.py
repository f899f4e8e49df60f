"""Fill-in-the-middle: what a row becomes, that text can be put together again, and that nothing but the place decides."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
from data_helpers import small_recipe, small_spec, write_token_data
from hypothesis import given
from hypothesis import strategies as st

from headway.base.errors import ConfigError
from headway.data.freeze import data_facts
from headway.data.infill import SHORTEST, infilled
from headway.data.packing import write_packing
from headway.data.reader import TokenReader
from headway.data.stream import Stream, stream_digests
from headway.recipe.resolve import resolve
from headway.recipe.spec import InfillSpec, PackedSpec, Spec

DOCUMENT, P, S, M = 0, 201, 202, 203
ALWAYS = InfillSpec(1.0, 0.5, (), (P, S, M), 3)


def restored(tokens: list[int]) -> tuple[str, list[int]]:
    """The order that a document was put into, and its text: what a reader of the paper would do."""
    text = tokens[tokens[0] == DOCUMENT :]
    assert text[0] == P
    if text[1] == S:
        middle = text.index(M)
        return "spm", text[middle + 1 :] + text[2:middle]
    suffix, middle = text.index(S), text.index(M)
    return "psm", text[1:suffix] + text[middle + 1 :] + text[suffix + 1 : middle]


@given(st.integers(SHORTEST, 60), st.booleans(), st.integers(0, 2**60))
def test_prefix_suffix_and_middle_are_the_text(n: int, begins: bool, token: int):
    stored = np.concatenate([[DOCUMENT] * begins, np.arange(1, n + 4)]).astype(np.int64)
    row, targets = stored.copy(), np.append(stored[1:], 150)
    assert infilled(row, targets, (0, len(row)), document_token=DOCUMENT, spec=ALWAYS, key=("a", 0, token))
    _, text = restored(row.tolist())
    assert text == list(range(1, n + 1)), "but for its last three tokens"
    assert int(row[0]) == (DOCUMENT if begins else P)
    assert targets.tolist() == [*row[1:].tolist(), DOCUMENT], "each target is the next token, the last one ends the middle"


@given(st.integers(0, SHORTEST + 2))
def test_short_documents_stay(n: int):
    row = np.concatenate([[DOCUMENT], np.arange(1, n + 1)]).astype(np.int64)
    targets, before = np.append(row[1:], DOCUMENT), row.copy()
    assert not infilled(row, targets, (0, len(row)), document_token=DOCUMENT, spec=ALWAYS, key=("a", 0, n))
    assert np.array_equal(row, before)


def test_rates_are_kept():
    spec = InfillSpec(0.6, 0.25, (), (P, S, M), 3)
    orders, n = [], 1_000
    for token in range(4_000):
        row = np.arange(1_000, 1_003 + n)
        if infilled(row, row + 1, (0, n + 3), document_token=DOCUMENT, spec=spec, key=("a", 0, token)):
            orders.append(restored(row.tolist())[0])  # with an empty prefix both orders look alike: one in 500
    assert len(orders) / 4_000 == pytest.approx(0.6, abs=0.03)
    assert orders.count("spm") / len(orders) == pytest.approx(0.25, abs=0.03)


# --- in a stream


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("infill")
    random = np.random.default_rng(1)
    documents = [[[0, *random.integers(1, 200, size).tolist()] for size in random.integers(2, 50, 40)] for _ in range(2)]
    manifest = write_token_data(root, documents)
    sources = []
    for source, own in zip(manifest.sources, documents):
        ends = np.cumsum([len(document) for document in own])
        sources.append(dataclasses.replace(source, packings=(write_packing(root, source, 32, ends),)).sealed())
    manifest = dataclasses.replace(manifest, sources=tuple(sources))
    manifest.save(root)
    return root, manifest


def spec_of(manifest, packing: str, infill: InfillSpec | None) -> Spec:
    spec = small_spec([(s.name, s.tokens, s.chunk_tokens) for s in manifest.sources], [(60, 32, (32_768, 32_768))])
    plans = tuple(PackedSpec(s.packings[0].bins, s.packings[0].target_share, "") for s in manifest.sources)
    stage = dataclasses.replace(spec.stages[0], packing=packing, packed=plans if packing == "best-fit" else (), infill=infill)
    return dataclasses.replace(spec, stages=(stage,))


@pytest.mark.parametrize("packing", ["cut", "best-fit"])
def test_a_window_is_the_same_but_for_the_order_within_documents(data, packing):
    root, manifest = data
    plain, spec = spec_of(manifest, packing, None), spec_of(manifest, packing, ALWAYS)
    reader, stream = TokenReader(root, manifest), Stream(spec)
    positions = stream.locate(0, np.arange(60))
    before, after = reader.stage_batch(positions, plain.stages[0]), reader.stage_batch(positions, spec.stages[0])
    changed = 0
    for row in range(60):
        columns = [*np.flatnonzero(np.diff(before.document_BT[row], prepend=-1)).tolist(), 32]
        real = 32 if before.scored_BT is None else int(before.scored_BT[row].sum())
        for first, end in pairwise(columns):
            old, new = before.tokens_BT[row, first:end].tolist(), after.tokens_BT[row, first:end].tolist()
            targets = after.targets_BT[row, first:end].tolist()
            if old == new or first >= real:
                assert old == new
                assert targets == before.targets_BT[row, first:end].tolist()
                continue
            changed += 1
            head = old[0] == 0
            assert restored(new)[1] == old[head:-3]
            assert targets == [*new[1:], 0]
    assert changed > 20
    for kind in ("document_BT", "position_BT", "source_B", "scored_BT"):
        assert np.array_equal(getattr(before, kind), getattr(after, kind))
    assert reader.targets(positions, spec.stages[0]) == 60 * 32 if packing == "cut" else after.scored_BT.sum()


def test_a_restart_and_other_replicas_read_the_same_and_another_epoch_does_not(data):
    root, manifest = data
    spec = spec_of(manifest, "best-fit", ALWAYS)
    stage, u = spec.stages[0], np.arange(60)
    found = TokenReader(root, manifest).stage_batch(Stream(spec).locate(0, u), stage)
    for part in (u[30:], u[::3], u[::-1]):
        again = TokenReader(root, manifest).stage_batch(Stream(spec).locate(0, part), stage)
        assert np.array_equal(again.tokens_BT, found.tokens_BT[part])
        assert np.array_equal(again.targets_BT, found.targets_BT[part])
    positions = Stream(spec).locate(0, u)
    later = dataclasses.replace(positions, epoch=positions.epoch + 1)
    assert not np.array_equal(TokenReader(root, manifest).stage_batch(later, stage).tokens_BT, found.tokens_BT)


def test_only_named_sources(data):
    root, manifest = data
    spec = spec_of(manifest, "cut", dataclasses.replace(ALWAYS, sources=("source1",)))
    positions = Stream(spec).locate(0, np.arange(60))
    has = (TokenReader(root, manifest).stage_batch(positions, spec.stages[0]).tokens_BT > 200).any(axis=1)
    assert not has[positions.source == 0].any()
    assert has[positions.source == 1].mean() > 0.8


def test_it_is_part_of_what_a_stream_is(data):
    _, manifest = data
    digests = {
        stream_digests(spec_of(manifest, "cut", infill))[0] for infill in (None, ALWAYS, dataclasses.replace(ALWAYS, rate=0.5))
    }
    assert len(digests) == 3


def test_a_tokenizer_without_the_control_tokens_is_refused(data):
    _, manifest = data
    sources = [{"name": s.name, "kind": "text-tree", "path": "."} for s in manifest.sources]
    stage = {"name": "main", "tokens": 1_000, "sequence": 16, "batch": 32, "mixture": {"source0": 1}, "infill": {"rate": 0.5}}
    recipe = small_recipe(sources, stages=[stage], vocabulary=257)
    with pytest.raises(ConfigError, match="the tokenizer has no tokens for it"):
        resolve(recipe, data_facts(manifest))
    tokenizer = recipe.tokenizer.model_copy(update={"fim_tokens": ("<p>", "<s>", "<m>"), "vocabulary": 260})
    recipe = recipe.model_copy(update={"tokenizer": tokenizer})
    with pytest.raises(ConfigError, match="fill-in-the-middle, and a tokenizer without its three control tokens"):
        resolve(recipe, data_facts(manifest))
    facts = dataclasses.replace(data_facts(manifest), infill=(P, S, M), vocabulary=260, tokenizer={})
    spec = resolve(recipe, facts)
    assert spec.stages[0].infill == InfillSpec(0.5, 0.5, (), (P, S, M), 3)
    assert Spec.from_json(spec.to_json()) == spec
