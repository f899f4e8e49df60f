"""Architectures beyond the plain one, killed and resumed: what balances, guards and orthogonalises is in the checkpoint too."""

from __future__ import annotations

import pytest
from conftest_e2e import trace

from headway.rundir.metrics import read_chain_rows
from headway.rundir.segments import current_chain, read_segments

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
