"""Architectures beyond the plain one, killed and resumed: what balances, guards and orthogonalises is in the checkpoint too."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from conftest_e2e import trace

import headway.train.step
from headway.base.errors import RunError
from headway.optim.clip import clip_by_norm
from headway.rundir.metrics import read_chain_rows
from headway.rundir.segments import Segment, current_chain, read_segments, write_segment
from headway.train.loop import train
from headway.train.setup import set_up
from headway.train.stop import StopRequest

pytestmark = pytest.mark.e2e

EXPERTS = (
    "model.experts.experts=4", "model.experts.top_k=2", "model.experts.width=48", "model.experts.shared=1",
    "model.experts.dense_layers=1", "model.experts.router_bias=true", "model.experts.score=sigmoid",
    "model.experts.bias_rate=0.05", "model.experts.balance_loss=0.01", "model.experts.z_loss=0.001",
)  # fmt: skip
KINDS = {
    "experts, further tokens, dropout, guard": (
        *EXPERTS, "model.mtp_layers=1", "model.dropout=0.1", "stability.skip_above=20",
    ),
    "muon, mup, windows, nope": (
        "optimizer.kind=muon", "optimizer.muon_scale=spectral", "optimizer.matrix_rate=0.02", "model.mup.base_width=32",
        "model.mup.base_layers=1", "model.window=16", "model.full_attention_every=2", "model.nope_every=2", "model.block=post",
        "model.qk_norm_over=all",
    ),
    "latent, yarn in the second stage": (
        "model.latent.kv_rank=32", "model.latent.nope_width=16", "model.latent.rope_width=8", "model.latent.value_width=16",
        "model.kv_heads=4", "stages.1.yarn.factor=2", "stages.1.yarn.original=64", "stages.1.rope_base=50000",
        "model.logit_softcap=30", "precision.modules.head=float32",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_killed_and_resumed_is_the_undisturbed_run(bench, tmp_path, kind):
    undisturbed = bench.run(tmp_path / "undisturbed", overrides=KINDS[kind])
    assert bench.go(undisturbed).state == "complete"
    run = bench.run(tmp_path / "run", overrides=KINDS[kind], faults=[{"point": "step.gradients", "action": "kill", "step": 11}])
    assert bench.go(run).state == "complete"
    assert len(read_segments(run)) == 2, "the kill must have happened"
    expected = trace(undisturbed)
    assert trace(run) == expected
    assert expected.losses[-1] < expected.losses[0] - 0.5, "it learns"


def test_what_routers_did_is_on_record(bench, tmp_path):
    run = bench.run(tmp_path / "run", overrides=KINDS["experts, further tokens, dropout, guard"])
    assert bench.go(run).state == "complete"
    rows = [row for row in read_chain_rows(run, current_chain(read_segments(run))).kept if row["kind"] == "step"]
    assert all({"largest_load", "idle_experts", "dropped_at_1_25", "routing_loss", "further_loss"} <= row.keys() for row in rows)
    assert all(1 <= row["largest_load"] <= 4 for row in rows)


@pytest.mark.parametrize("norm", [9.0, float("nan")])
def test_an_update_left_out_in_the_last_step(bench, tmp_path, monkeypatch, norm):
    """For its size alone: the run ends, with the state of the step before. Not finite: it ends with its cause."""
    run = bench.run(tmp_path / "run", overrides=("stability.skip_above=20",))
    write_segment(run, Segment(1, None, 0, None, "start", "test", 1, {}))
    trainer = set_up(run.root, 1, StopRequest())
    true, last = clip_by_norm, trainer.schedule.total_steps

    def clip(*arguments):
        found = true(*arguments)
        return replace(found, norm=torch.tensor(1e6 * norm).double()) if trainer.step == last - 1 else found

    monkeypatch.setattr(headway.train.step, "clip_by_norm", clip)
    try:
        if norm != norm:
            with pytest.raises(RunError, match="in 1 steps in a row"):
                train(trainer)
        else:
            assert train(trainer) == "complete"
            assert (trainer.committed_step, trainer.trainee.updates) == (last, last - 1)
    finally:
        trainer.close()
