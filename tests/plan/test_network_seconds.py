"""Seconds of collectives: against measured curves, and properties that any network has."""

from __future__ import annotations

import csv
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.formulas.chips import find_chip
from headway.plan.step.communication import Axis, Collective, Kind, Phase
from headway.plan.step.network import collective_seconds, link_bandwidth
from headway.plan.work import Cluster

KINDS = st.sampled_from([Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE, Kind.ALL_TO_ALL])
GROUPS = st.sampled_from([2, 4, 8, 16, 64, 512])
PAYLOADS = st.floats(1e3, 1e11)


def cluster(chip: str = "H100-SXM", chips: int = 512) -> Cluster:
    found = find_chip(chip)
    assert found.network_bandwidth is not None
    return Cluster(chip=found, chips=chips, domain=found.domain, network=found.network_bandwidth)


def one(kind: Kind, group: int, payload: float, stride: int = 1, **others) -> Collective:
    return Collective("x", kind, Axis.TP, group, stride, payload, 1.0, Phase.FORWARD, **others)


def bus_bandwidth(kind: Kind, group: int, payload: float, where: Cluster) -> float:
    """As nccl-tests print it."""
    share = 2 * (group - 1) / group if kind is Kind.ALL_REDUCE else (group - 1) / group
    return share * payload / collective_seconds(one(kind, group, payload), where)


SYSTEMS = {
    "8x A100 NVLink3 (1 node)": ("A100-SXM-80GB", 8),
    "8x H200 NVLink4 (1 node, NVLS)": ("H200-SXM", 8),
    "P6-B200 NVLink5 + EFAv4 50GB/s/GPU": ("B200-SXM", 32),
}


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_curve_of_payloads_is_as_measured(reference, system):
    """Within a factor of 1.5 from 1 MiB on, and 1.15 on average, one curve for three generations of links and a network."""
    chip, ranks = SYSTEMS[system]
    where, errors = cluster(chip), []
    with (reference / "plan" / "network_busbw_measured.csv").open() as file:
        for line in csv.DictReader(file):
            if line["system"] == system and int(line["ranks"]) == ranks and float(line["payload_bytes"]) >= 2**20:
                predicted = bus_bandwidth(Kind.ALL_REDUCE, ranks, float(line["payload_bytes"]), where)
                errors.append(abs(math.log(predicted / (float(line["busbw_GBps"]) * 1e9))))
    assert len(errors) > 10
    assert max(errors) < math.log(1.5)
    assert sum(errors) / len(errors) < math.log(1.15)


def test_a_measured_ring_within_a_node(reference):
    """H200, 16 GiB: all-gather 361.4, reduce-scatter 362.9 GB/s."""
    for kind in (Kind.ALL_GATHER, Kind.REDUCE_SCATTER):
        assert bus_bandwidth(kind, 8, 2**34, cluster("H200-SXM")) == pytest.approx(362e9, rel=0.02)


@given(kind=KINDS, group=GROUPS, payload=PAYLOADS)
def test_more_bytes_take_longer_and_more_bandwidth_is_reached(kind, group, payload):
    where = cluster()
    less, more = (collective_seconds(one(kind, group, size), where) for size in (payload, 2 * payload))
    assert less < more < 2 * less * (1 + 1e-9)


@given(kind=KINDS, payload=PAYLOADS)
def test_leaving_the_domain_is_never_faster(kind, payload):
    where = cluster()
    near, far = (collective_seconds(one(kind, 8, payload, stride), where) for stride in (1, 8))
    assert near <= far


@given(kind=KINDS, group=GROUPS, payload=PAYLOADS)
def test_no_collective_beats_its_links(kind, group, payload):
    where = cluster()
    message = one(kind, group, payload)
    inside = min(group, where.domain)
    assert collective_seconds(message, where) >= message.bytes_per_rank / link_bandwidth(message, inside, where)


def test_members_of_a_domain_share_its_network():
    """Eight members move eight times what one can: strided groups have one network each."""
    where = cluster()
    packed = collective_seconds(one(Kind.ALL_GATHER, 64, 2**34), where)
    strided = collective_seconds(one(Kind.ALL_GATHER, 64, 2**34, stride=8), where)
    assert strided == pytest.approx(8 * packed, rel=0.2)


def test_tokens_for_one_far_domain_travel_once():
    """Top 8 of 64 ranks in 8 domains: 5.25 domains are reached on average, 4 where routing says so, 8 copies were they apart."""
    where, size = cluster(), 2.0**33
    each = collective_seconds(one(Kind.ALL_TO_ALL, 64, size, copies=8), where)
    limited = collective_seconds(one(Kind.ALL_TO_ALL, 64, size, copies=8, most_domains=4), where)
    plain = collective_seconds(one(Kind.ALL_TO_ALL, 64, size), where)
    assert limited / each == pytest.approx(4 / (8 * (1 - (7 / 8) ** 8)), rel=0.01)
    assert each / plain == pytest.approx((1 - (7 / 8) ** 8) * 8 / 8, rel=0.01)


def test_nobody_to_talk_to_is_free():
    assert collective_seconds(one(Kind.ALL_REDUCE, 1, 1e9), cluster()) == 0.0


def test_a_mesh_gives_a_pair_one_link():
    """MI300X: 64 GB/s to a neighbour, 448 to all seven."""
    where = cluster("MI300X")
    pair, all_eight = (link_bandwidth(one(Kind.ALL_GATHER, group, 1e9), group, where) for group in (2, 8))
    assert pair == pytest.approx(all_eight / 7)


def test_a_torus_gives_a_short_group_one_axis():
    """A TPU v5p has six links on three axes; a group of eight neighbours lies on one of them."""
    where = cluster("TPU-v5p", 4096)
    short, long = (link_bandwidth(one(Kind.ALL_GATHER, group, 1e9), group, where) for group in (8, 4096))
    assert short == pytest.approx(long / 3)


def test_all_to_all_on_a_torus_is_bound_by_its_middle():
    where = cluster("TPU-v4", 4096)
    few, many = (collective_seconds(one(Kind.ALL_TO_ALL, group, 1e9), where) for group in (8, 4096))
    assert many > 1.9 * few
