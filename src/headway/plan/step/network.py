"""Seconds of a collective: a measured curve of latency and bandwidth, over the slowest link that the group crosses.

    one domain      bytes / link bandwidth, by rings
    many domains    the members inside a domain share its network: m of them send m times what one can
    small messages  t = t0 (1 + (tau / t0)^q), t0 = bytes / bandwidth: half of the peak where t0 = tau

The form of the curve holds for three systems (A100, H200, B200; 32 KiB to 16 GiB) within 12 % of their measured bus
bandwidths; an alpha-beta line is off by 19 %. Rings pass every domain once per call: large groups pay a hop for each.
"""

from __future__ import annotations

import math

from headway.formulas.chips import Chip
from headway.plan.step.communication import Collective, Kind, sent_share
from headway.plan.step.fitted import FITTED, Constants
from headway.plan.work import Cluster

MEASURED_DOMAINS = 4
"""Over which the network's latency was measured: more domains pay a hop for each."""
SWITCH_SUMS = 1.25
"""Bus bandwidth of a sum inside one domain over that of a ring: 482 / 367 on H200, 846 / 720 on B200 (0.8 of the link)."""


def collective_seconds(one: Collective, cluster: Cluster, constants: Constants = FITTED) -> float:
    """Seconds of one call of ``one``, alone on its links."""
    if one.group < 2 or one.payload_bytes <= 0:
        return 0.0
    inside = cluster.inside(one.group, one.stride)
    if one.kind is Kind.ALL_TO_ALL:
        return _all_to_all(one, inside, cluster, constants)
    sent = sent_share(one.kind, one.group) * one.payload_bytes
    link = link_bandwidth(one, inside, cluster, constants)
    if inside == one.group:
        return _with_latency(sent / link, constants.link_tau, constants.tau_power)
    if one.kind is Kind.SEND_RECV:  # one hop: the network's own tau is of collectives, which have many
        return _with_latency(sent / network_bandwidth(cluster, constants), constants.link_tau, constants.tau_power)
    bandwidth = min(link, network_bandwidth(cluster, constants) * inside)
    domains = one.group / inside
    hops = (
        2 * math.log2(domains / MEASURED_DOMAINS) if one.kind is Kind.ALL_REDUCE else domains - MEASURED_DOMAINS
    )  # trees, rings
    return _with_latency(sent / bandwidth, constants.network_tau, constants.tau_power) + max(0.0, hops) * constants.hop_seconds


def link_bandwidth(one: Collective, inside: int, cluster: Cluster, constants: Constants = FITTED) -> float:
    """Bytes per second that one chip can send to ``inside`` members in its domain.

    A switch gives all links to whoever talks; a mesh only those that lead to members; a torus those of the axes on which the
    group lies. What a switch adds up by itself counts as if sent.
    """
    chip = cluster.chip
    link = constants.link_efficiency * (chip.link_bandwidth or cluster.network)
    if chip.topology == "mesh" and chip.domain > 1:
        return link * max(1, inside - 1) / (chip.domain - 1)
    if chip.topology == "torus":
        return link * _axes_used(one.stride * inside, chip) / chip.axes
    sums = SWITCH_SUMS if one.kind is Kind.ALL_REDUCE and chip.switch_sums else 1.0
    return sums * link


def _axes_used(reach: float, chip: Chip) -> int:
    """Axes of a torus that ``reach`` neighbouring chips span."""
    side = chip.domain ** (1 / chip.axes)
    return min(chip.axes, max(1, math.ceil(math.log(max(reach, 2)) / math.log(side) - 1e-9)))


def network_bandwidth(cluster: Cluster, constants: Constants = FITTED) -> float:
    """Bytes per second that one chip can send to other domains."""
    return constants.network_efficiency * cluster.network


def _all_to_all(one: Collective, inside: int, cluster: Cluster, constants: Constants) -> float:
    """What goes to members of other domains leaves by the chip's own network, the rest by the links, at the same time.

    A token whose members lie in one far domain is sent there once and copied over its links.
    """
    near = one.payload_bytes * (inside - 1) / one.group / link_bandwidth(one, inside, cluster, constants)
    if cluster.chip.topology == "torus":
        near = max(near, _through_the_middle(one, inside, cluster, constants))
    if inside == one.group:
        return _with_latency(near, constants.link_tau, constants.tau_power)
    away = one.payload_bytes / one.copies * _far_domains(one, inside) / network_bandwidth(cluster, constants)
    return _with_latency(max(away, near), constants.network_tau, constants.tau_power)


def _through_the_middle(one: Collective, inside: int, cluster: Cluster, constants: Constants) -> float:
    """Half of all messages cross a torus's bisection: payload x side / (4 x link of one direction)."""
    chip = cluster.chip
    axes = _axes_used(one.stride * inside, chip)
    direction = constants.link_efficiency * (chip.link_bandwidth or cluster.network) / (2 * chip.axes)
    return one.payload_bytes * inside ** (1 / axes) / (4 * direction)


def _far_domains(one: Collective, inside: int) -> float:
    """Other domains that a token goes to: its ``copies`` fall anywhere in the group, or in as many domains as routing allows."""
    domains = one.group / inside
    reached = domains * (1 - (1 - 1 / domains) ** one.copies)
    return min(reached, one.most_domains or reached) * (domains - 1) / domains


def _with_latency(ideal: float, tau: float, power: float) -> float:
    return ideal * (1 + (tau / ideal) ** power) if ideal > 0 else 0.0
