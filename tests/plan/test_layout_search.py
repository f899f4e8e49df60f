"""The search: nothing better is overlooked, what does not fit is said, the order is the same every time."""

from __future__ import annotations

import csv
import itertools
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from plan_cases import LLAMA_405B

from headway.base.errors import ConfigError
from headway.formulas.chips import find_chip
from headway.formulas.flops import Convention
from headway.formulas.recompute import recompute_factor
from headway.plan.layout.feasible import divisors, is_feasible
from headway.plan.layout.ranking import TIE, Candidate, SearchResult, causal_mfu, chosen, least_seconds
from headway.plan.layout.search import rank_layouts, search
from headway.plan.layout.section import ranking_table, reasons_table
from headway.plan.layout.shapes import shape_of
from headway.plan.layout.sheet import communication_sheet, links
from headway.plan.layout.sieve import PLANNED_SHARE, Models, least_bytes
from headway.plan.step.communication import collectives
from headway.plan.step.shares import busiest_blocks, rank_parameters
from headway.plan.work import Cluster, Implementation, Layout, Pipeline, Recompute, Work
from headway.recipe.spec import ModelSpec

SMALL = replace(LLAMA_405B, layers=8, width=4096, heads=32, ffn_width=14336)
H100 = find_chip("H100-SXM")
WORK = Work(model=SMALL, sequence=8192, batch=64)
CLUSTER = Cluster(chip=H100, chips=16, domain=8, network=50e9)
BEACON = Work(model=LLAMA_405B, sequence=8192, batch=2048)
BEACON_CLUSTER = Cluster(chip=H100, chips=16384, domain=8, network=50e9)


@dataclass(frozen=True)
class Time:
    seconds: float

    @property
    def low(self) -> float:
        return 0.9 * self.seconds

    @property
    def high(self) -> float:
        return 1.1 * self.seconds


@dataclass(frozen=True)
class Memory:
    total: float


def plain_time(work: Work, layout: Layout, cluster: Cluster) -> Time:
    """The bound, and something for every message: tensor ranks beyond a domain pay most."""
    message = (layout.tp - 1) * (10 if cluster.spans(layout.tp, 1) > 1 else 1) + layout.cp - 1 + (layout.zero == 3)
    small = 1 + 0.2 / layout.micro_batch + 0.01 * layout.virtual
    return Time(least_seconds(work, layout, cluster) * (1.3 + 0.02 * message) * small)


def plain_memory(work: Work, layout: Layout, cluster: Cluster) -> Memory:
    shards = layout.shards
    whole = layout.pp > 1
    weights = work.weight_bytes / (shards if layout.zero == 3 and not whole else 1)
    gradients = work.gradient_bytes / (shards if layout.zero >= 2 else 1)
    optimizer = work.optimizer_bytes / (shards if layout.zero >= 1 else 1)
    per_token = {Recompute.LIGHT: 27, Recompute.OPS: 20, Recompute.FULL: 2}.get(layout.recompute, 34)
    flying = min(layout.micro_batches(work.batch), layout.pp) * busiest_blocks(work.model, layout)
    kept = per_token * layout.micro_batch * work.sequence * work.model.width / (layout.tp * layout.cp)
    return Memory(sum(rank_parameters(work.model, layout)) * (weights + gradients + optimizer) + flying * kept)


PLAIN = Models(plain_time, plain_memory)


def found(work: Work = WORK, cluster: Cluster = CLUSTER, **others: object) -> SearchResult:
    return search(work, cluster, models=PLAIN, **others)  # type: ignore[arg-type]


def every_layout(work: Work, cluster: Cluster) -> list[Layout]:
    """All that can be and fit, by brute force, at any of the options that the search knows."""
    sizes = divisors(cluster.chips)
    made = []
    for tp, cp, pp, replicate in itertools.product(sizes, (1, 2), sizes, sizes):
        if cluster.chips % (tp * cp * pp * replicate):
            continue
        mesh = Layout(tp=tp, cp=cp, pp=pp, dp_replicate=replicate, dp_shard=cluster.chips // (tp * cp * pp * replicate))
        for zero, size, virtual, kind in itertools.product(range(4), (1, 2, 4, 8, 16, 32, 64), (1, 2, 4, 8), Recompute):
            orders = [Pipeline.INTERLEAVED if virtual > 1 else Pipeline.ONE_F_ONE_B]
            orders += [Pipeline.ZERO_BUBBLE] if virtual == 1 and pp > 1 and zero <= 1 else []
            for order in orders:
                layout = replace(mesh, zero=zero, micro_batch=size, virtual=virtual, recompute=kind, pipeline=order)
                need = plain_memory(work, layout, cluster).total
                if is_feasible(work, layout, cluster) and need <= PLANNED_SHARE * cluster.chip.memory_bytes:
                    made.append(layout)
    return made


def test_nothing_better_is_overlooked() -> None:
    fastest = min(plain_time(WORK, layout, CLUSTER).seconds for layout in every_layout(WORK, CLUSTER))
    result = found()
    assert result.best is not None
    assert min(candidate.seconds for candidate in result.ranked) == fastest
    assert result.best.seconds <= TIE * fastest


def test_what_is_ranked_can_be_fits_and_is_in_order() -> None:
    result = found(limit=1000)
    assert len(result.ranked) == result.priced > 20
    times = [candidate.seconds for candidate in result.ranked[1:]]  # behind what is chosen
    assert times == sorted(times)
    for candidate in result.ranked:
        assert is_feasible(WORK, candidate.layout, CLUSTER)
        assert candidate.memory_bytes * 1.05 <= 0.97 * H100.memory_bytes
        assert candidate.seconds == plain_time(WORK, candidate.layout, CLUSTER).seconds
        assert candidate.mfu == causal_mfu(WORK, CLUSTER, candidate.seconds)
    assert len({candidate.layout for candidate in result.ranked}) == len(result.ranked)


def candidate(layout: Layout, seconds: float, memory: float = 1.0) -> Candidate:
    return Candidate(layout, seconds, seconds, seconds, 0.4, memory)


def test_of_layouts_as_fast_as_each_other_the_simplest_is_chosen() -> None:
    fastest = candidate(Layout(pp=2, dp_shard=8, virtual=8, pipeline=Pipeline.INTERLEAVED), 1.0)
    sharded, cut = candidate(Layout(dp_shard=16), 1.02), candidate(Layout(cp=16), 1.01)
    assert chosen([fastest, cut, sharded]) is sharded  # one axis, and no sequence is cut
    assert chosen([fastest, cut]) is cut
    assert chosen([fastest, candidate(Layout(dp_shard=16), 1.04)]) is fastest
    twin = candidate(replace(fastest.layout, micro_batch=2), 1.0, memory=0.5)
    assert chosen([fastest, twin]) is twin


def test_a_tie_is_no_win_and_what_else_differs_is_said() -> None:
    result = found()
    assert result.best is not None
    lines = {line.split()[0]: line for line in result.reasons()}
    assert any("is chosen; best" in line and "within the model's error" in line for line in lines.values())
    for other in result.alternatives:
        if other.best is not None and other.axis in lines:
            assert other.shown() in lines[other.axis]
            assert ("within the model's error" in other.shown()) == (other.ratio <= TIE)
            assert ("micro batch" in other.shown()) == (
                other.axis != "micro_batch" and other.best.layout.micro_batch != result.best.layout.micro_batch
            )


def test_zero_bubble_is_offered_where_gradients_stay_whole() -> None:
    orders = {c.layout.pipeline for c in found(limit=1000).ranked if c.layout.pp > 1 and c.layout.virtual == 1}
    assert orders == {Pipeline.ONE_F_ONE_B, Pipeline.ZERO_BUBBLE}
    assert "pp 2, zero-bubble, " in Layout(pp=2, pipeline=Pipeline.ZERO_BUBBLE).shown()
    pinned = found(fixed={"zero": 3, "pp": 2}, limit=1000).ranked
    assert pinned
    assert all(one.layout.pipeline is not Pipeline.ZERO_BUBBLE for one in pinned)
    assert {c.layout.pipeline for c in found(fixed={"pipeline": Pipeline.GPIPE}, limit=1000).ranked} == {Pipeline.GPIPE}


def test_a_search_in_vain_names_the_rule_that_refused_most() -> None:
    few = found(work=replace(WORK, batch=8), cluster=replace(CLUSTER, chips=16384))
    assert few.best is None
    rule, way_out = few.why_none()
    assert rule.startswith("every replica has at least one sequence: ")
    assert "replicas for a batch of 8 sequences" in rule
    assert way_out == "fewer chips, or a larger batch"
    large = found(work=replace(WORK, model=LLAMA_405B), cluster=replace(CLUSTER, chips=8))
    assert large.best is None
    assert large.why_none()[1].startswith("more chips or memory")


def test_a_search_among_shapes_looks_at_no_others() -> None:
    all_of_them = found(limit=1000)
    wanted = frozenset(shape_of(one.layout) for one in all_of_them.ranked[:20])
    some = found(limit=1000, among=wanted)
    assert {shape_of(one.layout) for one in some.ranked} <= wanted
    assert some.fitting < all_of_them.fitting
    assert some.best == all_of_them.best
    assert any("looked at: the" in line for line in some.reasons())


def test_the_order_is_the_same_every_time() -> None:
    assert found() == found()


def test_recomputation_only_where_it_is_needed() -> None:
    """Each layout has the least that fits: with less it does not."""
    less = {Recompute.LIGHT: Recompute.NONE, Recompute.OPS: Recompute.LIGHT, Recompute.FULL: Recompute.OPS}
    seen = set()
    for candidate in found(limit=1000).ranked:
        kind = candidate.layout.recompute
        seen.add(kind)
        if kind in less:
            lighter = replace(candidate.layout, recompute=less[kind])
            assert plain_memory(WORK, lighter, CLUSTER).total > PLANNED_SHARE * H100.memory_bytes
    assert len(seen) > 1


def test_alternatives_say_what_other_values_cost() -> None:
    result = found(limit=1000)
    assert result.best is not None
    others = [a for a in result.alternatives if a.axis == "pp"]
    assert others
    for other in others:
        same = [c for c in result.ranked if str(c.layout.pp) == other.value]
        assert (other.best in same) == bool(same)
        if other.best:
            assert other.best.seconds <= 1.01 * min(candidate.seconds for candidate in same)
            assert other.ratio == other.best.seconds / result.best.seconds
    (crossing,) = [a for a in result.alternatives if a.axis == "tp" and a.value == "16"]
    assert crossing.note == "crosses the fast links"
    assert any("crosses the fast links" in reason for reason in result.reasons())


def test_what_does_not_fit_is_counted_with_the_closest() -> None:
    small = replace(CLUSTER, chip=replace(H100, memory_bytes=int(2e9)))
    result = found(cluster=small)
    assert result.best is None
    assert result.closest is not None
    assert result.closest[1] > PLANNED_SHARE * 2e9
    assert "of 1.86 GiB, of which 92 % is planned for" in result.reasons()[-1]
    assert result.too_large > 0
    assert result.reasons()[-1].startswith(f"{result.too_large:,} layouts do not fit; the closest needs ")


def test_tensor_ranks_go_far_beyond_the_domain_only_if_nothing_else_fits() -> None:
    wide = replace(CLUSTER, domain=2)
    assert found(cluster=wide, limit=1000).best is not None
    assert max(c.layout.tp for c in found(cluster=wide, limit=1000).ranked) <= 4
    one = replace(WORK, batch=1)  # a single sequence: no replicas, and here no pipeline
    forced = found(work=one, cluster=replace(wide, chips=32), fixed={"pp": 1, "cp": 1})
    assert forced.best is not None
    assert forced.best.layout.tp == 32


def test_all_ways_to_share_states_are_looked_at() -> None:
    layouts = [c.layout for c in found(limit=1000).ranked]
    assert {layout.zero for layout in layouts if layout.pp == 1 and layout.shards > 1} == {1, 2, 3}
    assert {layout.zero for layout in layouts if layout.pp > 1 and layout.shards > 1} == {1}
    assert {layout.zero for layout in layouts if layout.shards == 1} <= {0}
    assert {layout.dp_shard for layout in layouts if layout.dp == 16} == {1, 8, 16}


def test_pins_hold() -> None:
    result = found(fixed={"tp": 2, "zero": 1, "micro_batch": 2, "recompute": Recompute.FULL}, limit=1000)
    assert result.ranked
    for candidate in result.ranked:
        layout = candidate.layout
        assert (layout.tp, layout.zero, layout.micro_batch, layout.recompute) == (2, 1, 2, Recompute.FULL)
    with pytest.raises(ConfigError, match="no field 'pt'"):
        found(fixed={"pt": 2})


def test_a_ramp_asks_for_a_layout_that_serves_every_batch() -> None:
    alone = found(limit=1000)
    ramped = found(limit=1000, batches=(4, 24))
    assert alone.best is not None
    assert ramped.best is not None
    assert max(candidate.layout.dp for candidate in alone.ranked) > 4 >= max(candidate.layout.dp for candidate in ramped.ranked)
    for candidate in ramped.ranked:
        assert all(is_feasible(replace(WORK, batch=batch), candidate.layout, CLUSTER) for batch in (4, 24, 64))
    odd = [c.layout for c in found(limit=1000, batches=(9,)).ranked]  # 9 are no equal rounds of 4 stages
    assert all(is_feasible(replace(WORK, batch=9), layout, CLUSTER) for layout in odd)
    assert any(not is_feasible(replace(WORK, batch=9), c.layout, CLUSTER) and c.layout.dp <= 9 for c in alone.ranked)


def test_given_layouts_are_ranked_and_impossible_ones_left_out() -> None:
    given_layouts = [Layout(dp_shard=16), Layout(tp=8, dp_shard=2), Layout(tp=3, dp_shard=5), Layout(tp=2, pp=4, dp_shard=2)]
    result = rank_layouts(WORK, CLUSTER, given_layouts, models=PLAIN)
    assert result.fitting + result.too_large == 3
    assert {c.layout for c in result.ranked} <= set(given_layouts)


def test_bounds_are_bounds() -> None:
    """What the search cuts by: no layout that is priced needs fewer bytes or seconds."""
    for candidate in found(limit=1000).ranked:
        assert least_seconds(WORK, candidate.layout, CLUSTER) < candidate.seconds
        shape = replace(candidate.layout, dp_shard=candidate.layout.dp, dp_replicate=1)
        assert least_bytes(WORK, shape) < candidate.memory_bytes


def test_the_bound_counts_what_is_computed_twice() -> None:
    """Of full recomputation less than a third: the head is computed once."""
    plain, full = (least_seconds(WORK, Layout(dp_shard=16, recompute=how), CLUSTER) for how in (Recompute.NONE, Recompute.FULL))
    assert full / plain == pytest.approx(recompute_factor(SMALL, 8192, Convention.CAUSAL, Recompute.FULL))
    assert 1.2 < full / plain < 4 / 3 - 0.02
    with_head_alone = replace(WORK, model=replace(SMALL, layers=1, vocabulary=2_000_000))
    full, plain = (
        least_seconds(with_head_alone, Layout(dp_shard=16, recompute=how), CLUSTER) for how in (Recompute.FULL, Recompute.NONE)
    )
    assert full / plain < 1.01


def test_long_sequences_are_cut_and_short_ones_are_not() -> None:
    short = found(limit=1000)
    assert {c.layout.cp for c in short.ranked} <= {1, 2}
    long = replace(WORK, sequence=131072, batch=4)
    assert {a.value for a in found(work=long, limit=1000).alternatives if a.axis == "cp"} & {"2", "4", "8"}


def test_405b_on_16384_chips_takes_about_a_second() -> None:
    began = time.process_time()
    result = found(BEACON, BEACON_CLUSTER)
    assert time.process_time() - began < 3  # 0.1 to 0.3 s alone; the models of time and memory come on top
    assert result.best is not None
    assert result.best.layout.world == 16384


def test_tables_show_the_ranking_and_its_reasons() -> None:
    result = found()
    table = ranking_table(result, "main")
    assert table.rows[0][2] == "1.00"
    assert len(table.rows) == 5
    assert reasons_table(result, "main").shown()


# --- the sheet -------------------------------------------------------------------------------------------------------------


def test_the_sheet_shows_every_collective_once() -> None:
    layout = Layout(tp=8, pp=16, dp_shard=128, zero=2)
    table = communication_sheet(BEACON, layout, BEACON_CLUSTER)
    assert len(table.rows) == len(collectives(BEACON, layout))
    seconds = [row[4] for row in table.rows]
    assert seconds == sorted(seconds, reverse=True)
    shown = {row[0]: row for row in table.shown()}
    assert shown["gather of inputs"][1:4] == ["8", "256 MiB", "256"]
    assert shown["gather of inputs"][6:8] == ["fast links", "56 GiB"]
    assert (shown["scatter of gradients, blocks"][1], shown["scatter of gradients, blocks"][6]) == (
        "128, 8 apart",
        "network, 128 domains",
    )
    assert shown["scatter of gradients, blocks"][10] == "after the last micro-batch's backward"
    assert shown["gather of inputs"][10] == "forward of each micro-batch"
    assert shown["gather of weights, blocks"][10] == "before the first micro-batch's forward"


def test_links_of_groups() -> None:
    found = {c.name: links(c, BEACON_CLUSTER) for c in collectives(BEACON, Layout(tp=2, pp=16, dp_shard=512, zero=2))}
    assert found["gather of inputs"] == "fast links"
    assert found["scatter of gradients, blocks"] == "network, 128 domains, 4 ranks in each"


# --- against measurements --------------------------------------------------------------------------------------------------


def measured_models(reference: Path) -> dict[str, tuple[Work, Cluster, dict[Layout, float]]]:
    """vTrain's models of the Megatron of their time: parameters -> work, cluster, measured seconds by layout.

    Without recomputation few of these layouts would fit 80 GB, with it all do: it was on.
    """
    models: dict[str, tuple[Work, Cluster, dict[Layout, float]]] = {}
    with (reference / "plan" / "step_time_vtrain_multinode.csv").open() as file:
        for row in csv.DictReader(file):
            if row["params_b"] not in models:
                models[row["params_b"]] = (_megatron(row), _selene(int(row["n_gpus"])), {})
            layout = Layout(
                tp=int(row["tp"]),
                pp=int(row["pp"]),
                dp_replicate=int(row["dp"]),
                micro_batch=int(row["micro_batch"]),
                zero=0,
                recompute=Recompute.FULL,
                sequence_parallel=False,
            )
            models[row["params_b"]][2][layout] = float(row["iter_time_ms"]) / 1e3
    return models


def _megatron(row: dict[str, str]) -> Work:
    heads, width, sequence = int(row["heads"]), int(row["hidden"]), int(row["seq_len"])
    model = ModelSpec(
        layers=int(row["layers"]),
        width=width,
        heads=heads,
        kv_heads=heads,
        head_width=width // heads,
        ffn_width=4 * width,
        vocabulary=51200,
        rope_base=1e4,
        norm_epsilon=1e-5,
        qk_norm=False,
        tied_embeddings=True,
        init_std=0.02,
        ffn="gelu",
        norm="layernorm",
        bias="all",
        position="learned",
        positions=sequence,
    )
    how = Implementation(flash=False, fused=True, dropout=True, overlap=False)
    return Work(model=model, sequence=sequence, batch=int(row["global_batch"]), precision="float16", implementation=how)


def _selene(chips: int) -> Cluster:
    chip = find_chip("A100-SXM-80GB")
    assert chip.network_bandwidth is not None
    return Cluster(chip=chip, chips=chips, domain=8, network=chip.network_bandwidth)


def test_the_chosen_layout_is_within_five_per_cent_of_the_best_measured(reference: Path) -> None:
    models = measured_models(reference)
    assert len(models) == 4
    for name, (work, cluster, measured) in models.items():
        result = rank_layouts(work, cluster, measured)
        assert result.best is not None, name
        assert result.too_large == 0, f"{name} billion: measured layouts that are said not to fit"
        fastest = min(measured.values())
        assert measured[result.best.layout] <= 1.05 * fastest, f"{name} billion: {result.best.layout.shown()}"
        middle = sorted(measured.values())[len(measured) // 2]
        assert middle > 1.05 * fastest, f"{name} billion: any layout would do"


def test_without_recomputation_most_measured_layouts_would_not_have_fit(reference: Path) -> None:
    for name, (work, cluster, measured) in measured_models(reference).items():
        kept = [replace(layout, recompute=Recompute.NONE) for layout in measured]
        assert rank_layouts(work, cluster, kept).too_large > len(kept) / 2, name
