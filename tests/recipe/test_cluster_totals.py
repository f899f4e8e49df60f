"""A plan on another cluster: what is a total of the old one is carried over to the new size, and said; doubtful chips too."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.recipe.chips import CHIPS, unproven
from headway.recipe.cluster import carried_over, with_cluster
from headway.recipe.load import load_deployment

TOTALS = (
    "nodes=2",
    "processes_per_node=8",
    "layouts.default.dp_shard=16",
    "accelerator.kind=H100-SXM",
    "failures.every=3h",
    "failures.spares=2",
    "failures.repair=1day",
    "failures.elastic={reconfigure='2min', pace=0.8}",
    "storage.write_speed=16GB",
    "storage.read_speed=32GB",
)
"""Two machines."""


def planned(*sets: str):
    return load_deployment(None, list(sets), runnable=False)


@given(st.integers(2, 2000))
def test_a_device_fails_as_often_and_a_machine_writes_as_fast_on_any_number(machines):
    own = planned(*TOTALS)
    other = with_cluster(own, f"{8 * machines}xH100")
    assert other.between_failures == pytest.approx(2 * 10_800 / machines)
    assert (other.storage.write_speed, other.storage.read_speed) == (8e9 * machines, 16e9 * machines)
    assert other.failures.spares == machines
    assert bool(carried_over(own, other)) == (machines != 2)


def test_expected_failures_depend_on_device_hours_alone():
    """The run takes as many device hours on a sixteenth of the devices, so as many failures are met."""
    own = load_deployment("beacon", runnable=False)
    other = with_cluster(own, "1024xH100")
    assert 16 * own.between_failures == pytest.approx(other.between_failures)
    assert other.failures.every is None
    assert other.storage.write_speed == 2e12 / 16


def test_what_is_carried_over_is_said():
    own = planned(*TOTALS)
    notes = " ".join(carried_over(own, with_cluster(own, "32xH200")))
    for words in (
        "every 48 hours: the job every 1 h 30 min, not every 3 h 0 min",
        "the 16 H100-SXM that the rate is of",
        "4 devices stand by, as large a share as the 2 stated",
        "the pace with a node missing was stated for another number of nodes",
        "write_speed grows with the machines (assumed): 32 GB/s here",
        "read_speed grows",
    ):
        assert words in notes, words
    assert with_cluster(own, "32xH200").failures.elastic.pace is None
    as_often = carried_over(own, with_cluster(own, "16xB200"))
    assert len(as_often) == 1, "of as many devices only the rate is another device's"
    assert carried_over(own, own) == ()
    alone = with_cluster(own, "8xH100")
    assert alone.failures.elastic is None
    assert any("one node cannot shrink" in note for note in carried_over(own, alone))


def test_what_went_with_the_other_device_is_said():
    own = planned(*TOTALS, "price_per_hour=3.5", "power.watts=900.0")
    price, power = carried_over(own, with_cluster(own, "16xB200"))[-2:]
    assert price.startswith("price: 3.5 USD an hour is stated for H100-SXM: what B200-SXM costs is unknown")
    assert power.startswith("power: 900 W are stated for H100-SXM, not for B200-SXM")
    assert carried_over(own, with_cluster(own, "16xH100")) == (), "the same device costs and takes the same"
    stated = own.model_copy(update={"price_per_hour": 9.0})
    assert not any(note.startswith("price") for note in carried_over(own, with_cluster(stated, "16xB200", ["price_per_hour"])))


def test_part_of_a_machine_has_its_storage_and_racks_count_their_machines():
    assert with_cluster(planned(*TOTALS), "4xH100").storage.write_speed == 8e9
    assert with_cluster(planned(*TOTALS), "144xGB200").storage.write_speed == 8e9 * 144 / 8


def test_what_the_command_line_states_is_of_the_new_cluster():
    sets = (*TOTALS, "price_per_hour=3.0", "accelerator.network=25GB", "power.watts=900.0")
    said = ["failures.every", "storage.write_speed", "price_per_hour", "accelerator.network", "accelerator.kind", "nodes"]
    own = planned(*sets)
    other = with_cluster(own, "144xRubin", said)
    assert (other.between_failures, other.storage.write_speed, other.storage.read_speed) == (10_800, 16e9, 16e9 * 18)
    assert (other.price_per_hour, other.accelerator.network, other.power.watts) == (3.0, 25e9, None)
    assert (other.accelerator.kind, other.world) == ("Rubin", 144)


def test_a_deployment_named_as_cluster_is_scaled_to_as_well():
    own = load_deployment("beacon", runnable=False)
    other = with_cluster(own, "llama3-8b")
    assert other.between_failures * other.world == pytest.approx(own.between_failures * own.world)


# --- what is doubtful about a chip


def test_announced_and_unverified_chips_say_so():
    assert "is announced, not on sale: its figures are promises" in unproven(CHIPS["Rubin"])
    assert "are not verified" in unproven(CHIPS["H800-SXM"])
    assert unproven(CHIPS["H100-SXM"]) is None
    assert {name for name, chip in CHIPS.items() if unproven(chip)} == {
        name for name, chip in CHIPS.items() if chip.announced or not chip.verified
    }
