"""The plan beside published figures, and contradictions of published inputs: computed by rules, never only listed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.base.errors import ConfigError
from headway.cli.describe import describe
from headway.formulas.checkpoint_interval import young_interval_seconds
from headway.formulas.quantity import Quantity
from headway.plan.facts import PlanFacts
from headway.plan.plan import Section
from headway.plan.published.facts import Claim, Published, load_published, parse_number, published_path
from headway.plan.published.rules import FEWEST_PARTS, NEED_STATED, RULES
from headway.plan.published.section import check, fact_quantity, find_number, known_quantities, published_section
from headway.plan.sections import build_sections
from headway.recipe.load import preset_names
from headway.recipe.resolve import resolve

NAMES = [name for name in preset_names() if published_path(name)]


def facts_of(name: str) -> PlanFacts:
    description = describe(name, None, None, runnable=False)
    return PlanFacts(resolve(description.loaded, None), description.deployment, None)


def section_of(name: str) -> Section:
    section = published_section(facts_of(name), build_sections(facts_of(name)))
    assert section is not None
    return section


def broken(name: str) -> dict[str, tuple]:
    return {row[0]: row for table in section_of(name).tables if table.title == "What does not agree" for row in table.rows}


# --- the presets ----------------------------------------------------------------------------------------------------------


def test_every_published_run_has_figures():
    assert set(NAMES) == set(preset_names()) - {"demo", "small", "proxy"}


@pytest.mark.parametrize("name", NAMES)
def test_every_claim_can_be_checked_and_every_figure_finds_its_quantity(name: str):
    section = section_of(name)
    assert section.notes == ()
    for row in section.tables[0].rows:
        assert row[1] != "not in this plan", row[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_and_its_quantity_have_one_unit(name: str):
    path = published_path(name)
    assert path is not None
    facts = facts_of(name)
    from headway.plan.published.measures import measures

    known = measures(facts) | known_quantities(build_sections(facts))
    for fact in load_published(path).facts:
        if fact.quantity:
            assert known[fact.quantity].unit == fact.unit, fact.name


@pytest.mark.parametrize("name", NAMES)
def test_exact_counts_agree_with_the_published_ones(name: str):
    for row in section_of(name).tables[0].rows:
        if row[0] in ("parameters", "steps") and isinstance(row[3], float):
            assert row[3] == pytest.approx(1, rel=2e-5), row


def test_the_plan_of_llama_3_405b_beside_what_was_published():
    rows = {row[0]: row for row in section_of("llama3-405b").tables[0].rows}
    assert rows["compute"][3] == pytest.approx(1, abs=0.005)
    assert rows["GPU-hours"][3] == pytest.approx(1, abs=0.2)
    assert rows["MFU on 16,384 GPUs at 8,192 tokens"][3] == pytest.approx(1, abs=0.15)


def test_llama_3_405b_contradicts_itself():
    found = broken("llama3-405b")
    assert found["devices of the layout at 131,072 tokens"][2:4] == ("8,192 GPUs", "16.4k GPUs")
    assert found["days of the pretraining, from the GPU-hours"][2] == "78.4 days"
    assert found["share of faulty GPUs among unexpected interruptions"][2:4] == ("35.3 %", "30.1 %")
    assert "devices of the layout at 8,192 tokens" not in found
    assert "unexpected interruptions, cause by cause" not in found
    assert "interruptions in 54 days" not in found


def test_runs_whose_figures_agree_show_no_contradiction():
    for name in ("deepseek-v3", "palm-540b", "smollm3-3b", "olmo2-13b"):
        assert not broken(name), name


def test_nothing_is_said_about_runs_without_published_figures():
    assert published_section(facts_of("demo"), ()) is None


def test_own_figures_can_be_given(tmp_path: Path):
    path = tmp_path / "mine.published.toml"
    path.write_text(
        'kind = "published"\nname = "demo"\n[[facts]]\nname = "steps"\nvalue = 333\nunit = "steps"\nquantity = "steps"\n'
        'source = "my notes"\nstanding = "verified"\n[[claims]]\nwhat = "half"\nrule = "quotient"\n'
        'parts = { all = "steps", two = 2 }\nstated = 100\nsource = "my notes"\n',
        "utf-8",
    )
    section = published_section(facts_of("demo"), build_sections(facts_of("demo")), load_published(path))
    assert section is not None
    assert section.tables[0].rows[0][3] == pytest.approx(1)
    assert section.tables[1].rows[0][:1] == ("half",)
    assert "166" in section.tables[1].rows[0][2]


# --- rules ----------------------------------------------------------------------------------------------------------------


def verdict(rule: str, *parts: float, stated: float = 0.0, tolerance: float = 0.01):
    return RULES[rule]({f"p{i}": part for i, part in enumerate(parts)}, stated, tolerance)


@pytest.mark.parametrize(
    ("rule", "parts", "stated", "agrees"),
    [
        ("product", (8, 16, 16, 8), 16_384, True),
        ("product", (8, 16, 16, 4), 16_384, False),
        ("sum", (148, 271), 419, True),
        ("sum", (15e12, 8e11), 15e12, False),
        ("quotient", (148, 419), 0.353, True),
        ("quotient", (148, 419), 0.301, False),
        ("same", (262_144, 262_144), 0, True),
        ("same", (4e10, 4e7), 0, False),
        ("at least", (91, 100), 0.9, True),
        ("at least", (64.3, 71.8), 0.9, False),
        ("within", (78, 71.8), 0.2, True),
        ("within", (71.8, 54), 0.2, False),
        ("divides", (2048, 128), 0, True),
        ("divides", (1953, 128), 0, False),
    ],
)
def test_rules(rule: str, parts: tuple[float, ...], stated: float, agrees: bool):
    assert verdict(rule, *parts, stated=stated).agrees is agrees


def test_a_remainder_is_priced():
    found = verdict("divides", 1953, 128)
    assert found.computed == 1953 % 128
    assert "2,048" in found.remark
    assert "4.9 %" in found.remark


@given(cost=st.floats(0.1, 1e4), between=st.floats(10, 1e6))
def test_young_solved_for_the_cost_is_young(cost: float, between: float):
    interval = young_interval_seconds(cost, between)
    assert verdict("young", interval, between, stated=cost).agrees
    assert not verdict("young", 2 * interval, between, stated=cost).agrees


@given(st.lists(st.floats(1e-3, 1e6), min_size=2, max_size=6))
def test_product_and_sum_agree_with_themselves_and_with_nothing_else(parts: list[float]):
    assert verdict("product", *parts, stated=math.prod(parts)).agrees
    assert not verdict("product", *parts, stated=2 * math.prod(parts)).agrees
    assert verdict("sum", *parts, stated=sum(parts)).agrees
    assert not verdict("sum", *parts, stated=1.1 * sum(parts)).agrees


def test_every_rule_says_what_it_needs():
    assert set(FEWEST_PARTS) == set(RULES)
    assert set(RULES) > NEED_STATED


# --- parts ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [("15T", 15e12), ("54 days", 54 * 86_400), ("2TB", 2e12), ("30.84M", 30_840_000), (3, 3), ("some", None), (True, None)],
)
def test_numbers_with_units(text: object, value: float | None):
    assert parse_number(text) == value


def published(**claim: object) -> Published:
    fact = {"name": "days", "value": "54 days", "unit": "seconds", "source": "s", "standing": "memory"}
    base = {"what": "w", "rule": "same", "source": "s", "parts": {"a": 1, "b": 1}}
    return Published.model_validate({"kind": "published", "name": "x", "facts": [fact], "claims": [base | claim]})


def test_a_part_is_a_fact_then_a_quantity_then_a_number():
    file = published()
    known = {"steps": Quantity("steps", 7, "steps", "f"), "3h": Quantity("3h", 5, "", "f")}
    assert find_number("days", file, known).value == 54 * 86_400
    assert find_number("steps", file, known).value == 7
    assert find_number("3h", file, known).value == 5
    assert find_number("2h", file, known).value == 7200
    assert find_number("nothing of that name", file, known) is None


def test_a_claim_with_an_unknown_part_is_not_judged():
    file = published(parts={"a": "steps", "b": 1})
    assert check(file.claims[0], file, {}).verdict is None
    assert check(file.claims[0], file, {}).missing == "steps"
    assert check(file.claims[0], file, {"steps": Quantity("steps", None, "steps", "f")}).verdict is None
    assert not check(file.claims[0], file, {"steps": Quantity("steps", 2, "steps", "f")}).verdict.agrees


def test_a_printed_number_can_be_asked_why():
    quantity = fact_quantity(published().facts[0])
    assert (quantity.name, quantity.unit, quantity.value) == ("published_days", "seconds", 54 * 86_400)
    assert "memory" in quantity.source


# --- reading --------------------------------------------------------------------------------------------------------------


def test_all_problems_of_a_file_at_once(tmp_path: Path):
    path = tmp_path / "x.published.toml"
    path.write_text(
        'kind = "published"\nname = "x"\n'
        '[[facts]]\nname = "a"\nvalue = "many"\nsource = "s"\nstanding = "rumour"\n'
        '[[claims]]\nwhat = "w"\nrule = "products"\nparts = { a = 1, b = 2 }\nstated = 2\nsource = "s"\n',
        "utf-8",
    )
    with pytest.raises(ConfigError) as error:
        load_published(path)
    text = str(error.value)
    for said in ("many", "rumour", "did you mean product", "x.published.toml:5", "x.published.toml:10"):
        assert said in text, said


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        ('rule = "product"\nparts = { a = 1, b = 2 }\n', "no stated value"),
        ('rule = "same"\nparts = { a = 1, b = 2 }\nstated = 2\n', "a stated value"),
        ('rule = "interruptions"\nparts = { a = 1, b = 2 }\nstated = 2\n', "has 2 parts"),
    ],
)
def test_rules_of_claims(tmp_path: Path, claim: str, said: str):
    path = tmp_path / "x.published.toml"
    path.write_text(f'kind = "published"\nname = "x"\n[[claims]]\nwhat = "w"\nsource = "s"\n{claim}', "utf-8")
    with pytest.raises(ConfigError, match=said):
        load_published(path)


def test_a_missing_file_is_a_clear_error(tmp_path: Path):
    with pytest.raises(ConfigError, match="there is no published"):
        load_published(tmp_path / "none.published.toml")


def test_a_changed_file_is_read_again(tmp_path: Path):
    path = tmp_path / "x.published.toml"
    path.write_text('kind = "published"\nname = "x"\n', "utf-8")
    assert load_published(path).name == "x"
    path.write_text('kind = "published"\nname = "another"\n', "utf-8")
    assert load_published(path).name == "another"


def test_claims_are_typed():
    assert Claim.model_fields["rule"].annotation.__args__ == tuple(RULES)
