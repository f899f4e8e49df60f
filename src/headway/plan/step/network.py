"""Seconds of a collective: a measured curve of latency and bandwidth, over the slowest link that the group crosses.

    one domain      bytes / link bandwidth, by rings
    many domains    the members inside a domain share its network: m of them send m times what one can
    small messages  t = t0 (1 + (tau / t0)^q), t0 = bytes / bandwidth: half of the peak where t0 = tau

The form of the curve holds for three systems (A100, H200, B200; 32 KiB to 16 GiB) within 12 % of their measured bus
bandwidths; an alpha-beta line is off by 19 %. Rings pass every member once per call, so large groups pay a hop each.
"""

from __future__ import annotations

import math

from headway.plan.step.communication import Collective, Kind, sent_share
from headway.plan.step.fitted import FITTED, Constants
from headway.plan.work import Cluster

SWITCH_SUMS = 1.25
"""Bus bandwidth of a sum inside one domain over that of a ring: 482 / 367 on H200, 846 / 720 on B200 (0.8 of the link)."""


def collective_seconds(one: Collective, cluster: Cluster, constants: Constants = FITTED) -> float:
    """Seconds of one call of ``one``, alone on its links."""
    if one.group < 2 or one.payload_bytes <= 0:
        return 0.0
    inside = min(one.group, max(1, cluster.domain // one.stride))
    sent = sent_share(one.kind, one.group) * one.payload_bytes
    if inside == one.group:
        return _with_latency(sent / link_bandwidth(one.kind, cluster, constants), constants.link_tau, constants.tau_power)
    if one.kind is Kind.ALL_TO_ALL:
        return _all_to_all(one, inside, cluster, constants)
    shared = network_bandwidth(cluster, constants) * (1 if one.kind is Kind.SEND_RECV else inside)
    bandwidth = min(link_bandwidth(one.kind, cluster, constants), shared)
    if one.kind is Kind.SEND_RECV:
        return _with_latency(sent / bandwidth, constants.link_tau, constants.tau_power)
    hops = 2 * math.log2(one.group) if one.kind is Kind.ALL_REDUCE else one.group - 1  # trees, rings
    return _with_latency(sent / bandwidth, constants.network_tau, constants.tau_power) + hops * constants.hop_seconds


def link_bandwidth(kind: Kind, cluster: Cluster, constants: Constants = FITTED) -> float:
    """Bytes per second that one chip can send inside its domain; what a switch adds up by itself counts as if sent."""
    link = cluster.chip.link_bandwidth or cluster.network
    sums = SWITCH_SUMS if kind is Kind.ALL_REDUCE and cluster.chip.switch_sums else 1.0
    return sums * constants.link_efficiency * link


def network_bandwidth(cluster: Cluster, constants: Constants = FITTED) -> float:
    """Bytes per second that one chip can send to other domains."""
    return constants.network_efficiency * cluster.network


def _all_to_all(one: Collective, inside: int, cluster: Cluster, constants: Constants) -> float:
    """What goes to members of other domains leaves by the chip's own network, the rest by the links, at the same time.

    A token whose members lie in one far domain is sent there once and copied over its links.
    """
    away = one.payload_bytes / one.copies * _far_domains(one, inside)
    near = one.payload_bytes * (inside - 1) / one.group
    ideal = max(away / network_bandwidth(cluster, constants), near / link_bandwidth(one.kind, cluster, constants))
    return _with_latency(ideal, constants.network_tau, constants.tau_power)


def _far_domains(one: Collective, inside: int) -> float:
    """Other domains that a token goes to: its ``copies`` fall anywhere in the group, or in as many domains as routing allows."""
    domains = one.group / inside
    reached = domains * (1 - (1 - 1 / domains) ** one.copies)
    return min(reached, one.most_domains or reached) * (domains - 1) / domains


def _with_latency(ideal: float, tau: float, power: float) -> float:
    return ideal * (1 + (tau / ideal) ** power) if ideal > 0 else 0.0
