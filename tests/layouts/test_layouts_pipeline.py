"""Pipelines give the run of one process, in every order of micro-batches, and what would break that is caught."""

from __future__ import annotations

from dataclasses import replace

import pytest
from layout_cases import described, failures, reference
from pipeline_tasks import BROKEN, held_out, left_alone, measure_broken, recorded

from headway.base.errors import ConfigError, RunError
from headway.parallel.local_ranks import on_ranks
from headway.parallel.mesh import Axes
from headway.parallel.stages import equal_rounds, rank_pieces
from headway.recipe.spec import BatchPhase
from headway.train.prove.batches import RandomFeed
from headway.train.prove.compare import BFLOAT16, compare
from headway.train.prove.rank import Work, measure_rank

pytestmark = pytest.mark.layouts

STEPS = 4
MUON = 16.0
"""Matrices are made orthogonal in bfloat16, which grows differences in the last bit of a momentum: 9e-6 after two-way FSDP."""
INTERLEAVED = {"pp": 2, "pipeline": "interleaved", "virtual": 2}
ZERO_BUBBLE = {"pp": 2, "pipeline": "zero-bubble"}
LAYOUTS = {
    "gpipe": {"pp": 2, "pipeline": "gpipe"},
    "1f1b": {"pp": 2},
    "interleaved": INTERLEAVED,
    "interleaved, embedding and head alone": INTERLEAVED | {"virtual": 3},
    "zero-bubble": ZERO_BUBBLE,
    "zero-bubble of 2 chunks": ZERO_BUBBLE | {"virtual": 2},
    "pp4": {"pp": 4},
    "pp3, which does not divide the layers": {"pp": 3},
    "pp2 x fsdp2": {"pp": 2, "dp_shard": 2},
    "pp2 x hsdp2x2": {"pp": 2, "dp_shard": 2, "dp_replicate": 2},
    "pp2 x tp2": {"pp": 2, "tp": 2},
    "interleaved x fsdp2": INTERLEAVED | {"dp_shard": 2},
    "zero-bubble x fsdp2": ZERO_BUBBLE | {"dp_shard": 2},
    "zero-bubble x tp2": ZERO_BUBBLE | {"tp": 2},
    "pp2 x fsdp3, which does not divide the batch": {"pp": 2, "dp_shard": 3},
}
UNTIED, TIED, MTP = described("proxy"), described("small"), described("deepseek-v3")
MIXTURE = described("mixtral-8x7b", ("model.experts.balance_loss=0.1", "model.experts.z_loss=0.1"))


def work_of(spec, micro_sequences: int = 2) -> Work:
    return Work(spec, micro_sequences, STEPS)


@pytest.mark.parametrize("axes", LAYOUTS.values(), ids=LAYOUTS)
def test_dense(prove, axes):
    assert failures(prove(work_of(UNTIED), **axes)) == []


@pytest.mark.parametrize("axes", [{"pp": 2}, INTERLEAVED, ZERO_BUBBLE, {"pp": 3, "dp_shard": 2}, {"pp": 2, "tp": 2}], ids=str)
def test_tied_embedding_is_one_parameter(prove, axes):
    """Equal on both stages, in every step (``train/prove/rank.py`` says where it is not)."""
    assert TIED.model.tied_embeddings
    assert failures(prove(work_of(TIED), **axes)) == []


@pytest.mark.parametrize("axes", [{"pp": 2}, {"pp": 4}, INTERLEAVED, ZERO_BUBBLE], ids=str)
def test_sums_of_one_process_bit_for_bit(prove, axes):
    """Stages divide no sum of an untied model: its micro-batches are added in the same order."""
    assert {found.difference for found in prove(work_of(UNTIED), **axes).values() if found.what != "norm"} == {0.0}


@pytest.mark.parametrize("axes", [{"pp": 2}, {"pp": 4}, INTERLEAVED, ZERO_BUBBLE], ids=str)
def test_heads_for_further_tokens_and_balanced_routers(prove, axes):
    assert MTP.model.mtp_layers
    assert MTP.model.experts.router_bias
    assert failures(prove(work_of(MTP), **axes)) == []


@pytest.mark.parametrize("axes", [{"pp": 2}, {"pp": 4}, INTERLEAVED, ZERO_BUBBLE], ids=str)
def test_losses_of_routers_before_the_last_stage(prove, axes):
    assert failures(prove(work_of(MIXTURE), **axes)) == []


@pytest.mark.parametrize("axes", [{"pp": 2}, INTERLEAVED, ZERO_BUBBLE], ids=str)
@pytest.mark.parametrize("micro_sequences", [5, 12])
def test_micro_batches_that_do_not_fill(prove, axes, micro_sequences):
    """5, 5 and 2 sequences; and one micro-batch alone, fewer than there are stages."""
    assert failures(prove(work_of(MIXTURE, micro_sequences), **axes)) == []


@pytest.mark.parametrize("axes", [{"pp": 2}, INTERLEAVED, ZERO_BUBBLE], ids=str)
def test_batch_ramp(prove, axes):
    """6, 10 and 12 sequences: 3, 5 and 6 micro-batches."""
    phases = (BatchPhase(0, 6), BatchPhase(6, 10), BatchPhase(16, 12))
    work = work_of(replace(UNTIED, stages=(replace(UNTIED.stages[0], phases=phases),)))
    feed = RandomFeed(work.spec, work.micro_sequences)
    assert [len(feed.fetch(step).micro_batches) for step in range(STEPS)] == [3, 5, 6, 6]
    assert failures(prove(work, **axes)) == []


@pytest.mark.parametrize("axes", [{"pp": 2, "dp_shard": 2}, ZERO_BUBBLE], ids=str)
def test_bfloat16(prove, axes):
    assert failures(prove(work_of(described("small", (), "bfloat16")), wider=BFLOAT16, **axes)) == []


def test_micro_batches_are_summed_in_float32_when_weights_come_later():
    """As the other orders do: bfloat16 would keep 8 bits of the sum."""
    work = Work(described("proxy", (), "bfloat16"), 1, 1)
    orders = [on_ranks(measure_rank, 2, work, Axes(pp=2, pipeline=order))[0] for order in ("zero-bubble", "gpipe")]
    assert failures({finding.what: finding for finding in compare(*orders)}) == []


@pytest.mark.parametrize("axes", [{"pp": 2}, {"pp": 2, "tp": 2}, INTERLEAVED | {"virtual": 3}], ids=str)
def test_evaluation_through_the_pipeline(axes):
    layout, work = Axes(**axes), work_of(TIED, 5)
    loss, tokens, losses = held_out(work, None)
    for found in on_ranks(held_out, layout.world, work, layout):
        assert found[0] == pytest.approx(loss, rel=1e-6)
        assert found[1] == (tokens if layout.tp == 1 else [])  # a prompt is not cut into equal parts
        assert found[2] == pytest.approx(losses, rel=1e-6)


@pytest.mark.parametrize("axes", [{"pp": 2, "dp_shard": 2}, {"pp": 4}, ZERO_BUBBLE], ids=str)
def test_muon_and_other_ways_in(prove, axes):
    """Whole matrices under Muon; learned positions, biases and dropout."""
    muon = replace(UNTIED.optimizer, kind="muon")
    assert failures(prove(work_of(replace(UNTIED, optimizer=muon)), wider=MUON, **axes)) == []
    assert failures(prove(work_of(described("gpt2-124m", ("model.dropout=0.1",))), **axes)) == []


@pytest.mark.parametrize("axes", [{"pp": 4}, INTERLEAVED], ids=str)
def test_every_rank_records_the_same(axes):
    """Losses, and loads of the least balanced layer, wherever they arise: the first stage of four has no experts."""
    layout, work = Axes(**axes), work_of(MTP)
    loss, z_loss, extra = recorded(work, None)
    assert extra["largest_load"] > 0
    for found in on_ranks(recorded, layout.world, work, layout):
        assert found[0] == pytest.approx(loss, rel=1e-6)
        assert found[1] == pytest.approx(z_loss, rel=1e-6)
        assert found[2] == pytest.approx(extra, rel=1e-6)


def test_a_bad_gradient_on_one_stage_is_bad_on_all():
    assert on_ranks(left_alone, 2, work_of(UNTIED), Axes(pp=2)) == [True, True]


MUTATIONS = {
    "weights are freed under a zero-bubble schedule": (UNTIED, ZERO_BUBBLE | {"dp_shard": 2}, "has no gradient"),
    "chunks are initialised alike": (UNTIED, INTERLEAVED, "initial weights: "),
    "losses of routers are lost before the last stage": (MIXTURE, {"pp": 2}, "gradients: "),
    "torch divides by the number of micro-batches": (UNTIED, {"pp": 2}, "gradients: "),
    "the embedding counts twice in the norm": (TIED, {"pp": 2}, "norm: "),
    "each holder of the embedding has its own gradient": (TIED, {"pp": 2}, "embed.weight on stage 1 is another"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_what_is_broken_is_caught(broken):
    spec, axes, seen = MUTATIONS[broken]
    said = what_is_said(broken, Work(spec, 2, 1), Axes(**axes))
    assert any(seen in words for words in said), said


def what_is_said(broken: str, work: Work, layout: Axes) -> list[str]:
    try:
        measured = on_ranks(measure_broken, layout.world, broken, work, layout)[0]
    except RunError as error:
        return [str(error)]
    return failures({finding.what: finding for finding in compare(measured, reference(work))})


def layers_of(spec, **axes) -> list[list[int]]:
    layout = Axes(**axes)
    pieces = {at: piece for rank in range(layout.pp) for at, piece in rank_pieces(spec.model, layout, rank).items()}
    assert [pieces[at].is_first for at in range(len(pieces))] == [True, *[False] * (len(pieces) - 1)]
    assert [pieces[at].is_last for at in range(len(pieces))] == [*[False] * (len(pieces) - 1), True]
    return [list(pieces[at].layers) for at in range(len(pieces))]


def test_layers_of_chunks():
    """A head for further tokens weighs as a layer, and stays with the head."""
    assert layers_of(UNTIED, pp=3) == [[0], [1, 2], [3]]
    assert layers_of(UNTIED, pp=2, virtual=3, pipeline="interleaved") == [[], [0], [1], [2], [3], []]
    assert layers_of(MTP, pp=2) == [[0, 1], [2, 3]]
    assert layers_of(MTP, pp=4) == [[0], [1], [2, 3], []]
    assert layers_of(MTP, pp=6) == [[], [0], [1], [2], [3], []]
    assert layers_of(MTP, pp=7) == [[], [0], [1], [2], [3], [], []]


@pytest.mark.parametrize(
    ("axes", "seen"),
    [
        ({"pp": 7}, "4 layers for pp 7 x virtual 1 = 7 chunks"),
        ({"pp": 2, "virtual": 2}, "virtual 2 with pipeline 1f1b"),
        ({"pp": 2, "pipeline": "v"}, "pipeline 'v'"),
    ],
)
def test_pipelines_that_cannot_be_had(axes, seen):
    with pytest.raises(ConfigError, match=seen):
        rank_pieces(UNTIED.model, Axes(**axes), 0)


def test_rounds_of_equal_length():
    layout = Axes(pp=4, virtual=2, pipeline="interleaved")
    assert [equal_rounds(count, layout) for count in (1, 3, 4, 7, 8, 9, 10, 13)] == [1, 3, 4, 7, 8, 10, 10, 15]
    assert equal_rounds(13, Axes(pp=4)) == 13
