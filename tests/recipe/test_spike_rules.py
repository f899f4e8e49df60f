"""The policy for spikes: defaults that are said once, permissions that agree with it."""

from __future__ import annotations

import dataclasses

import pytest

from headway.base.errors import ConfigError
from headway.recipe.interventions_section import SpikePolicy
from headway.recipe.load import load_recipe
from headway.recipe.resolve import resolve
from headway.recipe.spike_rules import OnSpike, SpikeRules


def rules(*overrides: str) -> SpikeRules:
    return SpikeRules.of(resolve(load_recipe("demo", [f"interventions.spikes.{text}" for text in overrides]), None))


def test_the_rules_have_the_keys_and_defaults_of_the_recipe():
    declared = {name: field.default for name, field in SpikePolicy.model_fields.items()}
    assert declared == {field.name: field.default for field in dataclasses.fields(SpikeRules)}
    assert tuple(OnSpike) == SpikePolicy.model_fields["policy"].annotation.__args__
    assert rules() == SpikeRules(), "a Spec leaves out what later versions added"


def test_what_a_recipe_says_is_what_a_run_does():
    given = rules("policy=roll_back", "threshold=12", "rewind_steps=7", "skip_batches=0", "most_roll_backs=1")
    expected = SpikeRules(policy=OnSpike.ROLL_BACK, threshold=12.0, rewind_steps=7, skip_batches=0, most_roll_backs=1)
    assert given == expected
    assert given.keeps_back_steps == 7
    assert rules("policy=stop").keeps_back_steps == 0


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("spikes.threshold=2", "threshold"),
        ("spikes.policy=pray", "policy"),
        ("spikes.skip_batches=1000001", "skip_batches"),
        ("spikes.most_roll_backs=2", "most_roll_backs = 2 beside policy = 'off'"),
    ],
)
def test_what_makes_no_sense_is_refused(override, said):
    with pytest.raises(ConfigError, match=said.replace(".", r"\.")):
        resolve(load_recipe("demo", [f"interventions.{override}"]), None)


@pytest.mark.parametrize("what", ["roll back", "skip batches", "lower rate"])
def test_a_permission_does_not_contradict_the_policy(what):
    permission = f"interventions.permissions=[{{what='{what}', by='person'}}]"
    resolve(load_recipe("demo", [permission, "interventions.spikes.policy=stop"]), None)
    with pytest.raises(ConfigError, match=f'"{what}" is for person to decide'):
        resolve(load_recipe("demo", [permission, "interventions.spikes.policy=roll_back"]), None)
