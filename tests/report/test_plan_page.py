"""The plan as a page: self-contained, without script, every number of the plan on it."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from headway.plan.plan import Plan, make_plan
from headway.plan.show.summary import without_range
from headway.recipe.load import load_deployment, load_recipe
from headway.recipe.placement import settle
from headway.recipe.resolve import resolve
from headway.report.plan_page import anchor, plan_html, plan_page

VOID = {"meta", "br", "img", "path", "use", "rect", "circle", "line"}


def plan_of(name: str, *sets: str, deployment: str | None = None) -> Plan:
    placed = settle(load_deployment(deployment, runnable=False), "bfloat16")
    return make_plan(resolve(load_recipe(name, sets), None), placed)


@pytest.fixture(scope="module")
def beacon() -> Plan:
    return plan_of("beacon", deployment="beacon")


@pytest.fixture(scope="module")
def page(beacon) -> str:
    return plan_html(beacon)


class Elements(HTMLParser):
    """Collects tags, ids, links and whatever is fetched; complains of what is not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        for key, value in attributes:
            if key == "id":
                self.ids.append(value)
            if key in ("href", "src", "xlink:href"):
                self.links.append(value)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


@pytest.fixture(scope="module")
def elements(page) -> Elements:
    parser = Elements()
    parser.feed(page)
    return parser


def test_the_page_needs_nothing_else(page, elements):
    assert "script" not in elements.tags
    assert all(link.startswith("#") for link in elements.links)
    assert 'http-equiv="Content-Security-Policy"' in page
    assert "default-src &#x27;none&#x27;" in page
    assert elements.open == []


def test_anchors_are_unique_and_every_link_has_one(elements):
    sections = [name for name in elements.ids if not name.startswith("schedule-")]
    assert len(sections) == len(set(sections))
    assert {link.removeprefix("#") for link in elements.links if not link.startswith("#schedule-")} <= set(elements.ids)


def test_every_number_stands_on_it(beacon, page):
    for quantity in beacon.quantities():
        if quantity.value is not None and not isinstance(quantity.value, str):
            assert without_range(quantity) in page, quantity.name
    for risk in beacon.risks:
        assert risk.rule in page


def test_formulas_have_their_numbers(page):
    assert "6 N D = 6 x 4e11 x 1.50001e13" in page


def test_names_from_recipes_cannot_become_markup():
    text = plan_html(plan_of("demo", "stages.0.name=<b>x", 'name=a"<script>'))
    assert "<script" not in text
    assert "<b>x" not in text
    assert "&lt;b&gt;x" in text


def test_tiles_are_what_the_plan_knows(beacon):
    labels = {tile.label: tile for tile in plan_page(beacon).tiles}
    assert labels["training"].value == "64.3 days"
    assert labels["training"].detail.startswith("53.6 days to")
    assert "cost" not in labels
    assert "with failures" not in {tile.label for tile in plan_page(plan_of("demo")).tiles}


def test_the_same_plan_gives_the_same_bytes(beacon, page):
    assert plan_html(beacon) == page


def test_anchor():
    assert anchor("Checkpoints, failures and monitoring") == "checkpoints-failures-and-monitoring"
