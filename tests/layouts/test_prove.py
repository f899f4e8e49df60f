"""``headway prove`` from within: a real quick proof on two processes, and that it can fail."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.base.errors import ConfigError
from headway.recipe.load import load_recipe
from headway.recipe.resolve import resolve
from headway.train.prove import proof
from headway.train.prove.compare import compare
from headway.train.prove.continuation import Ended
from headway.train.prove.layouts import TABLE, asked, chosen, widest
from headway.train.prove.miniature import small_spec
from headway.train.prove.proof import Request, prove
from headway.train.prove.rank import Measured, measure_alone

pytestmark = pytest.mark.layouts

SPEC = resolve(load_recipe("demo", ("precision.compute=float32",)), None)
SMALL = small_spec(SPEC)


def by_name(records: list[dict]) -> dict[str, dict]:
    return {record["name"]: record for record in records}


@pytest.fixture(scope="module")
def records() -> list[dict]:
    return list(prove(Request(spec=SPEC, ranks=2, steps=3, quick=True)))


def test_every_layout_of_the_machine_holds(records):
    evidence = records[-1]
    layouts = by_name(evidence["layouts"])
    assert evidence["holds"]
    assert {layouts[name]["verdict"] for name in ("fsdp2", "tp2")} == {"holds"}
    assert "it needs 4 processes" in layouts["fsdp2 x tp2"]["reason"]
    kinds = [finding["what"] for finding in layouts["tp2"]["findings"]]
    assert kinds == list(evidence["tolerances"])


def test_a_killed_training_goes_on_to_the_bit_and_under_other_layouts(records):
    found = by_name(records[-1]["continuations"])
    assert [record["verdict"] for record in found.values()] == ["holds"] * 3
    same, *others = found.values()
    assert [finding["tolerance"] for finding in same["findings"]] == [0.0, 0.0]
    assert [len(other["findings"]) for other in others] == [1, 1]


def test_what_differs_is_named_and_the_proof_does_not_hold(monkeypatch):
    def scaled(work) -> Measured:
        measured = measure_alone(work)
        measured.gradients["layers.1.ffn.up.weight"] = measured.gradients["layers.1.ffn.up.weight"] * 1.00001
        return measured

    monkeypatch.setattr(proof, "measure_alone", scaled)
    monkeypatch.setattr(proof, "_continuations", lambda *_, **__: iter(()))
    evidence = list(prove(Request(spec=SPEC, ranks=2, steps=2, layouts=({"dp_shard": 2},))))[-1]
    assert not evidence["holds"]
    (layout,) = evidence["layouts"]
    assert layout["verdict"] == "differs"
    assert [f["where"] for f in layout["findings"] if not f["holds"]] == ["layers.1.ffn.up.weight"]


def test_another_state_or_another_curve_is_seen():
    whole = Ended(0, [3.0, 2.5, 2.25], "a")
    assert proof._exact(Ended(1, [2.5, 2.25], "a"), whole).holds
    assert not proof._exact(Ended(1, [2.5, 2.25], "b"), whole).holds
    assert not proof._curve(Ended(1, [2.5, 2.25 + 1e-6], "a"), whole, exact=True).holds
    assert proof._curve(Ended(1, [2.5, 2.25 + 1e-6], "a"), whole, exact=False).holds
    other = proof._curve(Ended(1, [2.5, float("nan")], "a"), whole, exact=False)
    assert (other.holds, other.where) == (False, "step 3")


def test_an_update_that_is_not_made_is_seen():
    """Elements with small gradients are left out of the comparison, and nothing else is."""
    work = proof.Work(replace(SMALL, stages=SMALL.stages), 3, 1)
    reference = measure_alone(work)
    other = measure_alone(work)
    other.updated["param/layers.0.ffn.up.weight"][0] = other.initial["layers.0.ffn.up.weight"][0]
    found = {finding.what: finding for finding in compare(other, reference)}
    assert (found["update"].holds, found["update"].where) == (False, "layers.0.ffn.up.weight")


def test_layouts_that_a_person_names_are_refused_early():
    with pytest.raises(ConfigError, match="tp 4 for 2 key-value heads") as raised:
        asked(SMALL, [{"tp": 4}], 4)
    assert raised.value.problems[0].where == "--layout tp=4"
    with pytest.raises(ConfigError, match="on 2 processes"):
        asked(SMALL, [{"dp_shard": 4}], 2)


def test_layouts_of_experts_concern_models_that_have_some():
    names = {entry.name for entry in chosen(SMALL, 8)}
    assert names == {name for name, axes in TABLE.items() if "ep" not in axes}
    routed = small_spec(resolve(load_recipe("mixtral-8x7b", ()), None))
    assert {entry.name for entry in chosen(routed, 8)} == set(TABLE)


def test_the_widest_cuts_in_most_ways():
    entries = [entry for entry in chosen(SMALL, 8) if entry.name in ("fsdp2", "fsdp4", "tp2", "fsdp2 x tp2")]
    found = widest(entries)
    assert found is not None
    assert found.name == "fsdp2 x tp2"
