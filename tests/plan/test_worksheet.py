"""The worksheet: shares, tokens, cost, and the mistakes that it refuses; and the costs of an ordinary plan."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.base.errors import ConfigError
from headway.formulas.quantity import Quantity
from headway.plan.facts import PlanFacts
from headway.plan.ranges import product
from headway.plan.worksheet.costs import worksheet_section
from headway.plan.worksheet.file import find_worksheet, load_worksheet
from headway.plan.worksheet.worksheet import worksheet_plan
from headway.recipe.load import load_deployment, load_recipe, preset_names
from headway.recipe.placement import settle
from headway.recipe.resolve import resolve

HARDWARE = ("rate.counts=hardware", "rate.recompute=1.25")
HEALTHY = ("rate.window=healthy", "rate.goodput=90 %")


def value(name: str, *overrides: str) -> float:
    return worksheet_plan("example", overrides).quantity(name).number()


def problems(*overrides: str) -> str:
    with pytest.raises(ConfigError) as error:
        load_worksheet("example", overrides)
    return str(error.value)


# --- what it buys


def test_256_devices_for_90_days_buy_6_40_T_tokens_for_7B():
    """docs/sources.md. The assigned 180 TFLOP/s reproduces it as a model rate over the whole window: goodput 1 on top."""
    plan = worksheet_plan("example")
    tokens = plan.quantity("affordable_tokens")
    assert f"{tokens.number() / 1e12:.2f}" == "6.40"
    assert tokens.number() == pytest.approx(256 * 90 * 86400 * 0.75 * 180e12 / (6 * 7e9), rel=1e-12)
    assert (tokens.low, tokens.high) == pytest.approx((tokens.number() * 150 / 180, tokens.number() * 200 / 180))
    assert plan.quantity("affordable_tokens_13B").number() == pytest.approx(tokens.number() * 7 / 13)
    assert plan.quantity("declared_mfu").number() == pytest.approx(180 / 312)


def test_each_factor_is_charged_once_and_only_where_it_belongs():
    base = value("affordable_tokens")
    assert value("affordable_tokens", *HARDWARE) == pytest.approx(base / 1.25)
    assert value("affordable_tokens", *HEALTHY) == pytest.approx(base * 0.9)
    assert value("affordable_tokens", *HARDWARE, *HEALTHY) == pytest.approx(base * 0.9 / 1.25)


def test_reserves_come_off_first_and_annealing_is_part_of_the_tokens():
    taken = ("first.post_training=10 %", "first.context=5 %", "main.recovery=3 %", "main.final_evaluation=2 %")
    base = value("affordable_tokens")
    assert value("affordable_tokens", *taken) == pytest.approx(base * 0.85 * 0.95)
    assert value("affordable_tokens", "main.annealing=10 %") == pytest.approx(base)
    assert value("annealing_tokens", "main.annealing=10 %") == pytest.approx(base * 0.1)
    hours = [value(f"{name}_hours", *taken) for name in ("exploration", "rehearsal", "main", "contingency")]
    assert sum(hours) == pytest.approx(256 * 90 * 24 * 0.85)
    assert value("cost", *taken) == value("cost")  # everything that is reserved is paid


@given(st.integers(1, 97), st.integers(1, 97), st.integers(0, 30))
def test_parts_of_the_reservation_sum_to_it(main, exploration, first):
    if main + exploration > 98:
        return
    rest = 100 - main - exploration - 1
    shares = {"main": main, "exploration": exploration, "contingency": 1, "rehearsal": rest}
    sets = [f"shares.{name}={share} %" for name, share in shares.items()] + [f"first.post_training={first} %"]
    plan = worksheet_plan("example", tuple(sets))
    parts = sum(plan.quantity(f"{name}_hours").number() for name in shares)
    reserved = plan.quantity("reserved_hours").number()
    assert parts + reserved * first / 100 == pytest.approx(reserved)


def test_cost_energy_carbon_and_storage_by_hand():
    hours = 256 * 90 * 24
    assert value("cost") == pytest.approx(hours * 1.8)
    plan = worksheet_plan("example")
    cost, energy, carbon = (plan.quantity(name) for name in ("cost", "energy_kwh", "carbon_kg"))
    assert (cost.low, cost.high) == pytest.approx((hours * 1.2, hours * 2.5))
    assert energy.number() == pytest.approx(hours * 400 * 1.5 * 1.2 / 1000)
    assert energy.low == pytest.approx(hours * 400 * 1.2 * 1.05 / 1000)
    assert carbon.number() == pytest.approx(energy.number() * 0.4)
    assert "yearly mean" in carbon.source
    kept = plan.quantity("kept_checkpoints").number()
    assert kept == 67.5 * 48 // 8
    assert plan.quantity("kept_checkpoint_bytes").number() == kept * 12 * 7e9
    months = (67.5 / 2 + 180) / 30
    assert plan.quantity("storage_cost").number() == pytest.approx(kept * 12 * 7e9 / 1e12 * months * 20)


def test_what_is_not_known_stays_unknown():
    plan = worksheet_plan("example", ("prices={}", "power={}", "reservation.accelerator=Gaudi3"))
    for name in ("cost", "energy_kwh", "carbon_kg", "storage_cost"):
        assert plan.quantity(name).value is None
        assert "needs" in plan.quantity(name).formula


def test_the_worksheet_names_what_nobody_set_apart():
    assert [risk.rule for risk in worksheet_plan("example").risks] == [
        "nothing is set apart for stages that follow",
        "the rate is assigned, not rehearsed",
    ]
    reserved = [f"{name}=2 %" for name in ("first.post_training", "first.context", "main.recovery", "main.final_evaluation")]
    sets = (*reserved, "rate.source=rehearsal of week 3", "shares.main=83 %", "shares.contingency=2 %")
    assert [risk.rule for risk in worksheet_plan("example", sets).risks] == ["little is left for what goes wrong"]


def test_every_number_says_why():
    plan = worksheet_plan("example", (*HARDWARE, *HEALTHY, "main.annealing=1 %"))
    names = [quantity.name for quantity in plan.quantities()]
    assert len(names) == len(set(names))
    assert all(quantity.formula and (quantity.inputs or quantity.source) for quantity in plan.quantities())


# --- what it refuses


def test_shares_that_do_not_sum_to_the_whole():
    text = problems("shares.main=73 %")
    assert "256-gpu.worksheet.toml:" in text
    assert "the shares sum to 98 %: exploration 8 + rehearsal 7 + main 73 + contingency 10" in text
    assert "2 % belong to nobody" in text
    assert "5 % are given twice" in problems("shares.main=80 %")
    load_worksheet("example", ["shares.main=74.9 %", "shares.contingency=10.1 %"])


def test_failures_and_recomputation_are_not_counted_twice():
    assert "failures are discounted from an end-to-end rate" in problems("rate.goodput=90 %")
    assert "recomputation is charged on a model rate" in problems("rate.recompute=1.33")
    assert "a healthy rate cannot become end-to-end" in problems("rate.window=healthy")
    assert "a hardware rate cannot become a model rate" in problems("rate.counts=hardware")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("reservation.duration=90", "90 has no unit of time"),
        ("reservation.devices=-3", "at least 1"),
        ("reservation.duration=-90days", "is not a duration"),
        ("shares.main=75", "75 is not a share in per cent"),
        ("shares.main=-75 %", "'-75 %' is not a share in per cent"),
        ("shares.main=175 %", "at most 1"),
        ("rate.base=180", "180 is not a rate"),
        ("rate.base=-180 TFLOP/s", "'-180 TFLOP/s' is not a rate"),
        ("rate.base=180 TB", "is not a rate"),
        ("rate.base=400 TFLOP/s", "lower <= base <= upper"),
        ("models.0.parameters=-7B", "is not a number of parameters"),
        ("models.1.name=7B", "two models are named '7B'"),
        ("prices.device_hour.base=-1.0", "at least 0"),
        ("prices.device_hour.low=9.0", "low <= base <= high"),
        ("power.pue.low=0.5", "a PUE of 0.5"),
        ("first.context=100 %", "100 % of the reservation are taken off"),
        ("rate.kind=model", "unknown key rate.kind"),
        ("reservation.accelerator=H1000", "'H1000' is no accelerator of the table"),
        ("reservation.accelerator=A100", "'A100' is no single accelerator"),
        ("reservation.peak=624 TFLOP/s", "624 TFLOP/s is the sparse headline of A100-SXM-80GB"),
        ("rate.upper=624 TFLOP/s", "624 TFLOP/s is the sparse headline of A100-SXM-80GB"),
        ("rate.upper=500 TFLOP/s", "500 TFLOP/s is more than A100-SXM-80GB does"),
    ],
)
def test_bad_input_is_refused_where_it_stands(override, message):
    assert message in problems(override)


def test_all_problems_are_named_at_once():
    text = problems("rate.base=180", "shares.main=73 %", "reservation.accelerator=H1000", "prices.device_hour.low=9.0")
    for message in ("180 is not a rate", "sum to 98 %", "'H1000' is no accelerator", "low <= base <= high"):
        assert message in text


def test_worksheets_are_found_and_are_no_recipes(tmp_path):
    assert find_worksheet("example") == find_worksheet("256-gpu")
    assert find_worksheet(tmp_path / "mine.toml") == tmp_path / "mine.toml"
    assert not any("worksheet" in name for name in preset_names())
    with pytest.raises(ConfigError, match=r"there is no worksheet named 'exampel'(?s:.*)did you mean example"):
        load_worksheet("exampel")


# --- of an ordinary plan


def beacon(*sets: str) -> PlanFacts:
    spec = resolve(load_recipe("beacon"), None)
    return PlanFacts(spec, settle(load_deployment("beacon", list(sets), runnable=False), spec.precision.compute), None)


def quantities(facts: PlanFacts) -> dict[str, Quantity]:
    section = worksheet_section(facts)
    assert section is not None
    return {quantity.name: quantity for quantity in section.quantities}


def test_the_worked_plan_keeps_about_2_8_PB_of_checkpoints():
    """The Beacon plan: 6.4 TB every 30 minutes, every 8th kept: 72.5 days make 3,478 saves and 434 that stay."""
    facts = beacon()
    found = quantities(facts)
    days = facts.wall_seconds.number() / 86400
    assert days == pytest.approx(72.47, abs=0.005)
    assert found["kept_checkpoints"].number() == days * 48 // 8
    assert found["kept_checkpoint_bytes"].number() == pytest.approx(2.8e15, rel=0.02)
    assert found["gpu_hours"].number() == pytest.approx(28e6, rel=0.03)
    for name in ("cost", "carbon_kg", "storage_cost"):
        assert found[name].value is None
    assert found["energy_kwh"].is_estimate


def test_prices_of_an_ordinary_plan():
    sets = ["price_per_hour=2.0", "storage.price_per_tb_month=20.0", "power.watts=1300.0", "power.pue=1.1"]
    found = quantities(beacon(*sets, "power.carbon_per_kwh=0.4", "power.carbon_source=grid of 2025", "power.price_per_kwh=0.1"))
    hours, energy = found["gpu_hours"].number(), found["energy_kwh"].number()
    assert found["cost"].number() == pytest.approx(2 * hours)
    assert energy == pytest.approx(hours * 1.3 * 1.1)
    assert found["carbon_kg"].number() == pytest.approx(0.4 * energy)
    assert found["carbon_kg"].source == "grid of 2025"
    assert found["electricity_cost"].number() == pytest.approx(0.1 * energy)
    assert found["storage_cost"].number() == pytest.approx(found["kept_checkpoint_bytes"].number() / 1e12 * 20)
    assert found["cost"].low < found["cost"].number() < found["cost"].high


def test_a_run_on_a_cpu_without_a_price_says_what_its_costs_need():
    spec = resolve(load_recipe("demo"), None)
    made = {q.name: q for q in worksheet_section(PlanFacts(spec, load_deployment("demo"), None)).quantities}
    assert all(made[name].value is None for name in ("gpu_hours", "cost", "energy_kwh", "carbon_kg"))
    assert "price_per_hour" in made["cost"].formula


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1), st.floats(1, 3)), min_size=1, max_size=4))
def test_a_product_lies_in_its_range(parts):
    factors = {f"f{i}": Quantity(f"f{i}", v, "", "", {}, "", v * low, v * high) for i, (v, low, high) in enumerate(parts)}
    made = product("p", "", "product", factors)
    assert made.low <= made.number() <= made.high
    assert product("p", "", "product", {**factors, "x": Quantity("x", None, "", "missing")}).value is None


def test_a_worksheet_contradicts_itself_in_these_ways_too():
    assert "1,000,000,000 stored parameters of '7B'" in problems("models.0.stored=1B")
    assert "A100-SXM-80GB has no rate in float8" in problems("reservation.precision=float8")
    assert "100.0000001 %" in problems("shares.main=75.0000001 %")
    for absurd in ("power.watts={base=1e308}", "prices.device_hour.base=1e308", "checkpoints.every=1e-9s"):
        problems(absurd)


def test_a_worksheet_is_no_frozen_run_and_says_what_its_checkpoints_cost():
    plan = worksheet_plan("example")
    assert plan.standing.startswith("a worksheet")
    rule = "kept checkpoints cost a large part"
    assert rule not in {risk.rule for risk in plan.risks}
    often = worksheet_plan("example", ("checkpoints.every=1s",))
    assert "of the device hours' cost" in next(risk.number for risk in often.risks if risk.rule == rule)
