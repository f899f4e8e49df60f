"""The plan beside what has been published about the same run, and what the published figures say against each other.

    recipe --make_plan--> quantities --+
                                       +--> plan / published, fact by fact
    NAME.published.toml: facts --------+
                         claims ----------> rules (``rules.py``): product, sum, quotient, ... -> what does not agree

A contradiction is computed, never only listed: the file holds the numbers and the rule, and the difference follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headway.formulas.quantity import Input, Quantity, show_number
from headway.plan.facts import PlanFacts
from headway.plan.plan import Cell, Column, Section, Table, by_name
from headway.plan.published.facts import Claim, Fact, Part, Published, load_published, parse_number, published_path
from headway.plan.published.measures import measures
from headway.plan.published.rules import RULES, Verdict
from headway.plan.show.summary import without_range

Known = Mapping[str, Quantity]


@dataclass(frozen=True)
class Found:
    """The number behind a part of a claim, and how it is written."""

    value: float
    shown: str


@dataclass(frozen=True)
class Checked:
    """A claim with its verdict; ``missing``: a part that neither the file nor the plan knows, so that nothing was checked."""

    claim: Claim
    numbers: Mapping[str, Found]
    stated: Found | None
    verdict: Verdict | None
    missing: str = ""


def published_section(facts: PlanFacts, built: Sequence[Section], published: Published | None = None) -> Section | None:
    """``built``: the plan's other sections. ``published``: None: what is shipped for the recipe's name."""
    published = published or shipped(facts.spec.name)
    if published is None:
        return None
    known = measures(facts) | known_quantities(built)
    checked = [check(claim, published, known) for claim in published.claims]
    broken = [item for item in checked if item.verdict is not None and not item.verdict.agrees]
    tables = []
    if published.facts:
        tables.append(_facts_table(published, known))
    if broken:
        tables.append(_broken_table(broken))
    return Section("Plan against published", tuple(_counts(published, checked, broken)), tuple(tables), _notes(checked))


def shipped(name: str) -> Published | None:
    """Published figures of the recipe ``name``, where this package has any."""
    path = published_path(name)
    return load_published(path) if path else None


def known_quantities(sections: Sequence[Section]) -> dict[str, Quantity]:
    """All quantities of ``sections`` by name: shown, in tables, and what they stand on."""
    shown = [quantity for section in sections for quantity in section.quantities]
    return by_name([*shown, *(q for section in sections for table in section.tables for q in table.quantities())])


# --- facts --------------------------------------------------------------------------------------------------------------


def _facts_table(published: Published, known: Known) -> Table:
    columns = ("figure", "plan", "published", "plan / published", "convention", "source", "standing", "note")
    rows = tuple(_fact_row(fact, known) for fact in published.facts)
    return Table("Figure by figure", tuple(map(Column, columns)), rows)


def _fact_row(fact: Fact, known: Known) -> tuple[Cell, ...]:
    planned = known.get(fact.quantity) if fact.quantity else None
    printed = fact_quantity(fact)
    number = planned.value if planned is not None else None
    comparable = isinstance(number, int | float) and planned is not None and planned.unit == fact.unit
    ratio = float(number) / fact.value if comparable and isinstance(number, int | float) else None
    shown = planned.shown() if planned is not None else ("not in this plan" if fact.quantity else None)
    return (fact.name, shown, printed, ratio, fact.convention, fact.source, fact.standing, fact.note)


def fact_quantity(fact: Fact) -> Quantity:
    """The printed number as a quantity of its own, which can be asked why."""
    name = "published_" + fact.name.replace(" ", "_").replace("-", "_")
    value: float | int = int(fact.value) if fact.value.is_integer() else fact.value
    formula = f"as printed{f', {fact.convention}' if fact.convention else ''}"
    return Quantity(name, value, fact.unit, formula, {}, f"{fact.source} ({fact.standing})")


# --- claims -------------------------------------------------------------------------------------------------------------


def check(claim: Claim, published: Published, known: Known) -> Checked:
    """The claim's numbers, found, and what its rule says about them."""
    found = {name: find_number(part, published, known) for name, part in claim.parts.items()}
    stated = None if claim.stated is None else find_number(claim.stated, published, known)
    missing = [str(claim.parts[name]) for name, number in found.items() if number is None]
    if claim.stated is not None and stated is None:
        missing.append(str(claim.stated))
    numbers = {name: number for name, number in found.items() if number is not None}
    if missing:
        return Checked(claim, numbers, stated, None, ", ".join(missing))
    values = {name: number.value for name, number in numbers.items()}
    return Checked(claim, numbers, stated, RULES[claim.rule](values, stated.value if stated else 0.0, claim.tolerance))


def find_number(part: Part, published: Published, known: Known) -> Found | None:
    """A number as it stands, a fact's, a quantity's, or a text with a unit; None: nobody knows it."""
    if not isinstance(part, str):
        return Found(float(part), f"{part:,.0f}" if float(part).is_integer() else f"{part:g}")
    for fact in published.facts:
        if fact.name == part:
            return Found(fact.value, fact_quantity(fact).shown())
    if part in known:
        value = known[part].value
        return Found(float(value), without_range(known[part])) if isinstance(value, int | float) else None
    number = parse_number(part)
    return None if number is None else Found(number, part)


def _broken_table(broken: Sequence[Checked]) -> Table:
    columns = ("claim", "from", "follows", "stated", "remark", "source", "note")
    return Table("What does not agree", tuple(map(Column, columns)), tuple(_broken_row(item) for item in broken))


def _broken_row(item: Checked) -> tuple[Cell, ...]:
    claim, verdict = item.claim, item.verdict
    assert verdict is not None
    parts = ", ".join(f"{name} {found.shown}" for name, found in item.numbers.items())
    follows = show_number(verdict.computed, "" if claim.rule == "same" else claim.unit)
    stated = None if item.stated is None else show_number(item.stated.value, claim.unit)
    return (claim.what, f"{claim.rule}: {parts}", follows, stated, verdict.remark, claim.source, claim.note)


def _counts(published: Published, checked: Sequence[Checked], broken: Sequence[Checked]) -> list[Quantity]:
    judged = [item for item in checked if item.verdict is not None]
    source = f"{published.name}.published.toml"
    counted = Quantity("published_claims_checked", len(judged), "", "claims whose numbers are all known", {}, source)
    inputs: dict[str, Input] = {"checked": counted}
    facts = Quantity("published_facts", len(published.facts), "", "printed figures beside the plan", {}, source)
    words = "claims whose numbers do not agree by their own rule"
    return [facts, counted, Quantity("published_contradictions", len(broken), "", words, inputs, source)]


def _notes(checked: Sequence[Checked]) -> tuple[str, ...]:
    return tuple(f"not checked: {item.claim.what}; unknown here: {item.missing}" for item in checked if item.verdict is None)
