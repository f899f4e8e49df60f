"""Dry runs: what follows from few layers and passes is what all of them do, and the plan agrees line by line."""

from __future__ import annotations

from dataclasses import replace

import pytest
from layout_cases import described

from headway.base.errors import ConfigError
from headway.parallel.mesh import Axes
from headway.plan import reconcile as reconciliation
from headway.plan.reconcile import engine_work, reconcile
from headway.plan.work import Layout
from headway.recipe.spec import PrecisionSpec, Spec
from headway.train.dryrun import run as dryrun_run
from headway.train.dryrun.run import Request, dry_run

pytestmark = pytest.mark.layouts

SPEC = replace(described("proxy", ("model.kv_heads=4",)), precision=PrecisionSpec("bfloat16"))
COUNTS = ("exchanges", "flops", "attention_flops", "parameters")


def deep(layers: int = 7, **changes) -> Spec:
    return replace(SPEC, model=replace(SPEC.model, layers=layers, **changes))


def seen(spec: Spec, passes: int, **axes) -> dict:
    return dry_run(Request(spec=spec, axes=Axes(**axes), passes=passes))


def counted(found: dict) -> dict:
    return {name: sorted(found[name], key=str) if name == "exchanges" else found[name] for name in COUNTS}


@pytest.mark.parametrize("changes", [{}, {"window": 12, "full_attention_every": 2}], ids=["uniform", "every other layer"])
def test_few_layers_say_what_all_do(monkeypatch, changes):
    spec, axes = deep(**changes), {"dp_shard": 3, "tp": 2}
    few = seen(spec, 2, **axes)
    monkeypatch.setattr(dryrun_run, "RUN_WHOLE_LAYERS", 100)
    whole = seen(spec, 2, **axes)
    assert few["layers_run"] != whole["layers_run"] == [7]
    assert counted(few) == counted(whole)


def test_few_passes_say_what_all_do(monkeypatch):
    few = seen(deep(2), 5, dp_shard=2, tp=2)
    monkeypatch.setattr(dryrun_run, "_passes", lambda count: [(at == count - 1, 1) for at in range(count)])
    whole = seen(deep(2), 5, dp_shard=2, tp=2)
    assert (few["passes_run"], few["passes"]) == (3, 5)
    assert counted(few) == counted(whole)


LAYOUTS = [
    {"dp_shard": 4},
    {"dp_shard": 2, "zero": 2},
    {"tp": 4},
    {"dp_shard": 2, "tp": 2},
    {"dp_replicate": 2, "dp_shard": 2, "tp": 2},
]


def lines(spec: Spec, passes: int, axes: dict) -> list:
    layout = Layout(**axes)
    work = engine_work(spec.model, spec.precision, spec.stages[0].sequence_length, passes * layout.dp)
    return reconcile(work, layout, seen(spec, passes, **axes))


@pytest.mark.parametrize(("axes", "passes"), [*((axes, 3) for axes in LAYOUTS), (LAYOUTS[3], 1)], ids=str)
def test_the_plan_agrees(axes, passes):
    found = lines(deep(2), passes, axes)
    assert [line for line in found if not line.agrees] == []
    assert sum(line.seen_calls is not None for line in found) >= 2


def test_norms_of_heads_and_tied_embeddings_agree_too():
    assert all(
        line.agrees for line in lines(deep(2, qk_norm=True, tied_embeddings=True, vocabulary=256), 2, {"dp_shard": 2, "tp": 2})
    )


def test_an_exchange_that_nobody_planned_does_not_agree(monkeypatch):
    found = {line.what: line for line in lines(deep(2), 1, {"dp_shard": 2, "tp": 2})}
    assert found["tp, all-reduce, forward"].reasons
    monkeypatch.setattr(reconciliation, "_tensor", lambda work, layout: iter(()))
    without = {line.what: line for line in lines(deep(2), 1, {"dp_shard": 2, "tp": 2})}
    assert not without["tp, all-reduce, forward"].agrees
    assert not without["tp, all-gather, backward"].agrees
    assert without["tp, all-gather, forward"].agrees


def test_rows_that_are_padded_to_the_ranks_are_counted():
    """More ranks than rows of keys and values: what travels grows, and so does what the first ranks hold."""
    found = {line.what: line for line in lines(deep(2), 1, {"dp_shard": 48, "tp": 2})}
    assert all(line.agrees for line in found.values()), [line for line in found.values() if not line.agrees]
    rank = found["parameters of a rank"]
    assert rank.seen > 1.02 * rank.planned
    assert reconciliation.PADDING in rank.reasons


def test_a_layout_that_the_engine_refuses_is_refused_here_too():
    with pytest.raises(ConfigError, match="tp 3 for 4 heads"):
        seen(deep(2), 1, tp=3)
