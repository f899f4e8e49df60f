"""Accelerators: dense peaks, memory, links. One table; no chip is ever given another's figures.

    find_chip("h100_80gb")            the chip, by any of its usual names; an unknown one is refused with the list
    dense_peak(chip, "bfloat16")      FLOP/s without sparsity
    check_peak(chip, stated, ...)     refuses headline figures: 1,979T is H100's rate with half of the values zero

A chip is one device as frameworks see it: MI250X is two of them. Memory is the label read in GiB, which is what devices
report to within one per cent. ``verified`` False: the figure stands in no source that was at hand, only in the vendor's
sheet as remembered. Plans on such chips, and on announced ones, say so (``unproven``).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headway.base.errors import ConfigError

T, G, GIB = 1e12, 1e9, 2**30


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One device as frameworks see it. Rates are per second, bandwidths one direction; None: unknown."""

    name: str
    peaks: Mapping[str, float]  # precision -> dense FLOP/s
    memory_bytes: int
    memory_bandwidth: float  # bytes/s
    link_bandwidth: float | None  # bytes/s to neighbours in the same domain; with a domain of 1: the bus to the host
    domain: int  # chips that the fast links join
    network_bandwidth: float | None  # bytes/s per chip beyond the domain, as usually built
    topology: str = "switch"  # of the domain: switch, mesh (a link to each neighbour), torus
    axes: int = 0  # of a torus
    attention: Mapping[int, float] = field(default_factory=dict)  # FlashAttention generation -> share of achievable
    switch_sums: bool = False  # the domain's switch adds up what it forwards: sums take half the trips (NVLink SHARP)
    watts: float | None = None  # of the device alone, at its limit
    achievable: Mapping[str, float] = field(default_factory=dict)  # precision -> best FLOP/s that a GEMM was seen to reach
    sparse_peaks: Mapping[str, float] = field(default_factory=dict)  # headline figures that are no dense rates
    verified: bool = False
    announced: bool = False  # not on sale when the table was written: figures are promises
    source: str = ""
    note: str = ""

    def __hash__(self) -> int:
        return hash(self.name)


def _rates(bf16: float | None = None, fp8: float | None = None, fp4: float | None = None) -> dict[str, float]:
    """TFLOP/s of matrix units -> FLOP/s by precision. float16 runs as fast as bfloat16 wherever both exist."""
    known = {"bfloat16": bf16, "float16": bf16, "float8": fp8, "float4": fp4}
    return {precision: rate * T for precision, rate in known.items() if rate is not None}


_ML = "stas00/ml-engineering@744d01e compute/accelerator/README.md, network/README.md"
_TPU = f"{_ML}; jax-ml/scaling-book@0819a7d tpus.md"
_PCIE4, _PCIE5, _BRIDGE = 31 * G, 63 * G, 300 * G

_TABLE = (
    Chip(
        name="V100-SXM2-16GB", peaks={"float16": 125 * T}, memory_bytes=16 * GIB, memory_bandwidth=900 * G,
        link_bandwidth=150 * G, domain=8, network_bandwidth=12.5 * G, watts=300, source="NVIDIA V100 datasheet",
        note="no bfloat16",
    ),
    Chip(
        name="V100-SXM2-32GB", peaks={"float16": 125 * T}, memory_bytes=32 * GIB, memory_bandwidth=900 * G,
        link_bandwidth=150 * G, domain=8, network_bandwidth=12.5 * G, watts=300, source="NVIDIA V100 datasheet",
        note="no bfloat16",
    ),
    Chip(
        name="T4", peaks={"float16": 65 * T}, memory_bytes=16 * GIB, memory_bandwidth=320 * G,
        link_bandwidth=15.8 * G, domain=1, network_bandwidth=None, watts=70, source="NVIDIA T4 datasheet", note="no bfloat16",
    ),
    Chip(
        name="A100-SXM-40GB", peaks=_rates(312), memory_bytes=40 * GIB, memory_bandwidth=1555 * G,
        link_bandwidth=300 * G, domain=8, network_bandwidth=25 * G, watts=400, achievable=_rates(271.2), sparse_peaks=_rates(624),
        verified=True, source=_ML,
        note="8 x 200 Gb/s per node; P4d instances have 6.25 GB/s per device; memory bandwidth unverified",
    ),
    Chip(
        name="A100-SXM-80GB", peaks=_rates(312), memory_bytes=80 * GIB, memory_bandwidth=2039 * G,
        link_bandwidth=300 * G, domain=8, network_bandwidth=25 * G, watts=400, achievable=_rates(271.2), sparse_peaks=_rates(624),
        verified=True, source=_ML, note="no float8: 624 is its int8 rate and its sparse bfloat16 headline",
    ),
    Chip(
        name="A100-PCIe-80GB", peaks=_rates(312), memory_bytes=80 * GIB, memory_bandwidth=1940 * G,
        link_bandwidth=_BRIDGE, domain=2, network_bandwidth=12.5 * G, watts=300, achievable=_rates(252.9),
        sparse_peaks=_rates(624), verified=True, source=_ML, note="a bridge joins pairs; other neighbours are 31 GB/s away",
    ),
    Chip(
        name="H100-SXM", peaks=_rates(989, 1979), memory_bytes=80 * GIB, memory_bandwidth=3350 * G,
        link_bandwidth=450 * G, domain=8, network_bandwidth=50 * G, watts=700, achievable=_rates(794.5, 1402.6),
        sparse_peaks=_rates(1979, 3958), verified=True, source=_ML, note="the sheet's headline is sparse",
    ),
    Chip(
        name="H100-PCIe", peaks=_rates(756, 1513), memory_bytes=80 * GIB, memory_bandwidth=2000 * G,
        link_bandwidth=_BRIDGE, domain=2, network_bandwidth=50 * G, watts=350, sparse_peaks=_rates(1513, 3026),
        verified=True, source=_ML, note="a bridge joins pairs; other neighbours are 63 GB/s away",
    ),
    Chip(
        name="H100-NVL", peaks=_rates(835.5, 1671), memory_bytes=94 * GIB, memory_bandwidth=3900 * G,
        link_bandwidth=_BRIDGE, domain=2, network_bandwidth=50 * G, watts=400, sparse_peaks=_rates(1671, 3341),
        source="NVIDIA H100 datasheet, per device", note="a bridge joins pairs",
    ),
    Chip(
        name="H100-SXM-HBM2e", peaks=_rates(989, 1979), memory_bytes=96 * GIB, memory_bandwidth=2400 * G,
        link_bandwidth=450 * G, domain=8, network_bandwidth=50 * G, watts=500, achievable=_rates(671, 1185),
        sparse_peaks=_rates(1979, 3958),
        verified=True, source="pytorch/torchtitan benchmarks",
        note="peaks are those of the 700 W part; achievable falls with the root of the power limit: assumed",
    ),
    Chip(
        name="H20", peaks=_rates(148, 296), memory_bytes=96 * GIB, memory_bandwidth=4000 * G,
        link_bandwidth=450 * G, domain=8, network_bandwidth=50 * G, source="NVIDIA H20, as reported",
    ),
    Chip(
        name="H800-SXM", peaks=_rates(989, 1979), memory_bytes=80 * GIB, memory_bandwidth=3350 * G,
        link_bandwidth=200 * G, domain=8, network_bandwidth=50 * G, sparse_peaks=_rates(1979, 3958),
        source="arXiv:2412.19437 (160 GB/s effective in the node, 50 GB/s beyond)", note="H100 with slower links",
    ),
    Chip(
        name="H200-SXM", peaks=_rates(989, 1979), memory_bytes=141 * GIB, memory_bandwidth=4800 * G,
        link_bandwidth=450 * G, domain=8, network_bandwidth=50 * G, watts=700, achievable=_rates(794.5, 1453.4),
        sparse_peaks=_rates(1979, 3958), verified=True, source=_ML,
    ),
    Chip(
        name="GH200-96GB", peaks=_rates(989, 1979), memory_bytes=96 * GIB, memory_bandwidth=4000 * G,
        link_bandwidth=450 * G, domain=4, network_bandwidth=25 * G, achievable=_rates(828.6, 1535.0),
        sparse_peaks=_rates(1979, 3958), verified=True, source=_ML, note="domains of 4 to 32 were built",
    ),
    Chip(
        name="GH200-144GB", peaks=_rates(989, 1979), memory_bytes=141 * GIB, memory_bandwidth=4800 * G,
        link_bandwidth=450 * G, domain=4, network_bandwidth=25 * G, achievable=_rates(828.6, 1535.0),
        sparse_peaks=_rates(1979, 3958), verified=True, source=_ML, note="domains of 4 to 32 were built; 141 GiB can be used",
    ),
    Chip(
        name="B200-SXM", peaks=_rates(2250, 4500, 9000), memory_bytes=180 * GIB, memory_bandwidth=8000 * G,
        link_bandwidth=900 * G, domain=8, network_bandwidth=50 * G, watts=1000, achievable=_rates(1745, 3432.5),
        sparse_peaks=_rates(4500, 9000), verified=True, source=_ML, note="sold as 180 and as 192 GB",
    ),
    Chip(
        name="B300-SXM", peaks=_rates(2250, 4500, 12600), memory_bytes=288 * GIB, memory_bandwidth=8000 * G,
        link_bandwidth=900 * G, domain=8, network_bandwidth=100 * G, achievable=_rates(1769, 3353.3),
        sparse_peaks=_rates(4500, 9000), verified=True, source=_ML,
    ),
    Chip(
        name="GB200", peaks=_rates(2500, 5000, 10000), memory_bytes=186 * GIB, memory_bandwidth=8000 * G,
        link_bandwidth=900 * G, domain=72, network_bandwidth=50 * G, watts=1200, achievable=_rates(1822, 3615.6),
        sparse_peaks=_rates(5000, 10000), verified=True, source=_ML, note="per device; a rack of 72 is one domain",
    ),
    Chip(
        name="GB300", peaks=_rates(2500, 5000, 15000), memory_bytes=288 * GIB, memory_bandwidth=8000 * G,
        link_bandwidth=900 * G, domain=72, network_bandwidth=100 * G, watts=1400, sparse_peaks=_rates(5000, 10000),
        verified=True, source=_ML, note="per device; a rack of 72 is one domain; only rates verified",
    ),
    Chip(
        name="Rubin", peaks=_rates(4000, 17500, 35000), memory_bytes=288 * GIB, memory_bandwidth=22000 * G,
        link_bandwidth=1800 * G, domain=72, network_bandwidth=None, verified=True, announced=True, source=_ML, note="per device",
    ),
    Chip(
        name="L40S", peaks=_rates(362, 733), memory_bytes=48 * GIB, memory_bandwidth=864 * G,
        link_bandwidth=_PCIE4, domain=1, network_bandwidth=12.5 * G, watts=350, sparse_peaks=_rates(733, 1466),
        verified=True, source=_ML, note="the sheet's headline is sparse",
    ),
    Chip(
        name="L4", peaks=_rates(121, 242.5), memory_bytes=24 * GIB, memory_bandwidth=300 * G,
        link_bandwidth=_PCIE4, domain=1, network_bandwidth=None, watts=72, sparse_peaks=_rates(242, 485),
        source="NVIDIA L4 datasheet",
    ),
    Chip(
        name="A10G", peaks=_rates(70), memory_bytes=24 * GIB, memory_bandwidth=600 * G,
        link_bandwidth=_PCIE4, domain=1, network_bandwidth=None, source="AWS G5, NVIDIA A10G", note="125 is float16 accumulation",
    ),
    Chip(
        name="RTX-3090", peaks=_rates(71), memory_bytes=24 * GIB, memory_bandwidth=936 * G,
        link_bandwidth=_PCIE4, domain=1, network_bandwidth=None, sparse_peaks=_rates(142),
        source="GA102 whitepaper, float32 accumulation",
    ),
    Chip(
        name="RTX-4090", peaks=_rates(165.2, 330.3), memory_bytes=24 * GIB, memory_bandwidth=1008 * G,
        link_bandwidth=_PCIE4, domain=1, network_bandwidth=None, watts=450, sparse_peaks=_rates(330.4, 660.6),
        source="AD102 whitepaper, float32 accumulation",
    ),
    Chip(
        name="RTX-5090", peaks=_rates(209.5, 419), memory_bytes=32 * GIB, memory_bandwidth=1792 * G,
        link_bandwidth=_PCIE5, domain=1, network_bandwidth=None, watts=575, sparse_peaks=_rates(419, 838),
        source="GB202 whitepaper, float32 accumulation",
    ),
    Chip(
        name="MI250X", peaks=_rates(191.5), memory_bytes=64 * GIB, memory_bandwidth=1640 * G,
        link_bandwidth=175 * G, domain=8, network_bandwidth=12.5 * G, verified=True, source=_ML,
        note="one of the module's two devices: half of 383 TFLOP/s, 128 GB, 3,280 and 350 GB/s; network: Frontier, unverified",
    ),
    Chip(
        name="MI300X", peaks=_rates(1307, 2615), memory_bytes=192 * GIB, memory_bandwidth=5300 * G,
        link_bandwidth=448 * G, domain=8, network_bandwidth=50 * G, watts=750, achievable=_rates(668.4),
        sparse_peaks=_rates(2615, 5230), verified=True, source=_ML,
        note="a pair of neighbours has 64 GB/s; all seven links together 448",
    ),
    Chip(
        name="MI325X", peaks=_rates(1300, 2610), memory_bytes=256 * GIB, memory_bandwidth=6000 * G,
        link_bandwidth=448 * G, domain=8, network_bandwidth=50 * G, watts=1000, achievable=_rates(784.9), verified=True,
        source=_ML,
    ),
    Chip(
        name="MI355X", peaks=_rates(2500, 5000, 10100), memory_bytes=288 * GIB, memory_bandwidth=8000 * G,
        link_bandwidth=535.5 * G, domain=8, network_bandwidth=50 * G, watts=1400, achievable=_rates(1565),
        sparse_peaks=_rates(5000, 10100), verified=True, source=_ML, note="a pair of neighbours has 76.5 GB/s",
    ),
    Chip(
        name="MI455X", peaks=_rates(5000, 10000), memory_bytes=432 * GIB, memory_bandwidth=23300 * G,
        link_bandwidth=None, domain=1, network_bandwidth=None, verified=True, announced=True, source=_ML,
        note="rates are half of an announcement that did not say whether it was sparse; links not announced",
    ),
    Chip(
        name="Gaudi2", peaks=_rates(432, 865), memory_bytes=96 * GIB, memory_bandwidth=2460 * G,
        link_bandwidth=300 * G, domain=8, network_bandwidth=37.5 * G, achievable=_rates(418.7, 826.5), verified=True, source=_ML,
    ),
    Chip(
        name="Gaudi3", peaks=_rates(1677, 1677), memory_bytes=128 * GIB, memory_bandwidth=3700 * G,
        link_bandwidth=600 * G, domain=8, network_bandwidth=75 * G, achievable=_rates(1243, 1289.5), verified=True, source=_ML,
        note="runs at 1,600 MHz: 1,677, where the paper says 1,835",
    ),
    Chip(
        name="Trainium2", peaks=_rates(667, 1299), memory_bytes=96 * GIB, memory_bandwidth=2900 * G,
        link_bandwidth=640 * G, domain=16, network_bandwidth=25 * G, verified=True, source=_ML,
    ),
    Chip(
        name="TPU-v4", peaks={"bfloat16": 275 * T}, memory_bytes=32 * GIB, memory_bandwidth=1200 * G,
        link_bandwidth=270 * G, domain=4096, network_bandwidth=3.1 * G, verified=True, source=_TPU,
        note="3D torus, six links of 45 GB/s; a slice v4-N has N/2 chips: it counts cores",
    ),
    Chip(
        name="TPU-v5e", peaks={"bfloat16": 197 * T}, memory_bytes=16 * GIB, memory_bandwidth=819 * G,
        link_bandwidth=180 * G, domain=256, network_bandwidth=3.1 * G, verified=True, source=_TPU,
        note="2D torus of 16 x 16, four links of 45 GB/s; 394 is its int8 rate",
    ),
    Chip(
        name="TPU-v5p", peaks={"bfloat16": 459 * T}, memory_bytes=95 * GIB, memory_bandwidth=2765 * G,
        link_bandwidth=540 * G, domain=8960, network_bandwidth=6.25 * G, verified=True, source=_TPU,
        note="3D torus, six links of 90 GB/s; a slice v5p-N has N/2 chips; 918 is its int8 rate",
    ),
    Chip(
        name="TPU-v6e", peaks={"bfloat16": 918 * T, "float8": 918 * T}, memory_bytes=32 * GIB, memory_bandwidth=1640 * G,
        link_bandwidth=360 * G, domain=256, network_bandwidth=12.5 * G, verified=True, source=_TPU,
        note="2D torus, four links of 90 GB/s; float8 runs at the bfloat16 rate",
    ),
    Chip(
        name="TPU-v7x", peaks={"bfloat16": 2307 * T, "float8": 4614 * T}, memory_bytes=192 * GIB, memory_bandwidth=7370 * G,
        link_bandwidth=600 * G, domain=9216, network_bandwidth=None, verified=True, source=_TPU,
        note="Ironwood; memory unverified",
    ),
)  # fmt: skip

# What families of chips have in common. Attention is a share of what a product achieves, so that a part with less power loses as
# much of both. A100: 0.6 of the peak (arXiv 2307.08691). Hopper: 0.36 and 0.62 (arXiv 2407.08608: 35 %, up to 75 % without a
# mask). Assumed: Blackwell as Hopper, some 500 TFLOP/s on MI300X, half of the peak on TPUs.
_SWITCHED = {"switch_sums": True}
_HOPPER: dict[str, Any] = {"attention": {2: 0.45, 3: 0.77}}
_TRAITS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (("A100-SXM-40GB", "A100-SXM-80GB", "A100-PCIe-80GB"), {"attention": {2: 0.69}}),
    (("H100-SXM", "H100-SXM-HBM2e", "H800-SXM", "H200-SXM"), _HOPPER | _SWITCHED),
    (("H100-PCIe", "H100-NVL", "H20", "GH200-96GB", "GH200-144GB"), _HOPPER),
    (("B200-SXM", "B300-SXM", "GB200", "GB300"), {"attention": {3: 0.77}} | _SWITCHED),
    (("MI300X", "MI325X", "MI355X"), {"attention": {2: 0.75}, "topology": "mesh"}),
    (("TPU-v4", "TPU-v5p", "TPU-v7x"), {"attention": {2: 0.53}, "topology": "torus", "axes": 3}),
    (("TPU-v5e", "TPU-v6e"), {"attention": {2: 0.53}, "topology": "torus", "axes": 2}),
)
_MXU_SHARE = 0.95
"""Of their peak, what products reach on TPUs: assumed; published utilisations of 65 % with full recomputation need as much."""


def _complete(chip: Chip) -> Chip:
    """``chip`` with what its family has."""
    traits = next((traits for names, traits in _TRAITS if chip.name in names), {})
    if chip.name.startswith("TPU"):
        traits = traits | {"achievable": {precision: _MXU_SHARE * peak for precision, peak in chip.peaks.items()}}
    return replace(chip, **traits)


CHIPS: dict[str, Chip] = {chip.name: _complete(chip) for chip in _TABLE}

ALIASES = {
    "H100": "H100-SXM",  # the PCIe and NVL parts are always called so; what is only called H100 is the SXM one
    "H100-80GB": "H100-SXM",
    "H100-SXM5": "H100-SXM",
    "H100-SXM-80GB": "H100-SXM",
    "H100-80GB-700W": "H100-SXM",
    "H100-80GB-HBM3": "H100-SXM",
    "H100-96GB-HBM2e": "H100-SXM-HBM2e",
    "H800": "H800-SXM",
    "H200": "H200-SXM",
    "H200-141GB": "H200-SXM",
    "B200": "B200-SXM",
    "B300": "B300-SXM",
    "A100-40GB": "A100-SXM-40GB",
    "A100-SXM4-40GB": "A100-SXM-40GB",
    "A100-80GB": "A100-SXM-80GB",
    "A100-SXM4-80GB": "A100-SXM-80GB",
    "A100-80GB-PCIe": "A100-PCIe-80GB",
    "V100-16GB": "V100-SXM2-16GB",
    "V100-32GB": "V100-SXM2-32GB",
    "MI250X-GCD": "MI250X",
    "GB200-NVL72": "GB200",
    "GB300-NVL72": "GB300",
    "TPU-v6e-Trillium": "TPU-v6e",
    "Trillium": "TPU-v6e",
    "TPU-v7x-Ironwood": "TPU-v7x",
    "Ironwood": "TPU-v7x",
    "TPU-v7": "TPU-v7x",
}
"""Other usual names. Written marks and makers do not matter: ``nvidia_h100_80gb`` is H100-80GB."""

AMBIGUOUS = {
    "A100": ("A100-SXM-40GB", "A100-SXM-80GB", "A100-PCIe-80GB"),
    "A100-SXM": ("A100-SXM-40GB", "A100-SXM-80GB"),
    "A100-PCIe": ("A100-PCIe-80GB",),  # there is a 40 GB part too, which the table does not hold
    "V100": ("V100-SXM2-16GB", "V100-SXM2-32GB"),
    "GH200": ("GH200-96GB", "GH200-144GB"),
    "TPU-v5": ("TPU-v5e", "TPU-v5p"),
}
"""Names that several chips go by, whose memory differs: asked back, never guessed."""

STATED_TOLERANCE = 0.01
"""A stated figure this close to a headline is that headline: people round to three digits."""
ROUNDING_UP = 1.1
"""A stated peak up to this much above the dense one passes: 1P for 989T. More is no dense rate of the chip."""


def find_chip(name: str) -> Chip:
    """The chip called ``name``; ConfigError with the nearest name and the list, or with the choice, where several are."""
    key = _key(name)
    if key in _BY_KEY:
        return _BY_KEY[key]
    if key in _CHOICES:
        choices = ", ".join(_CHOICES[key])
        raise ConfigError(f"{name!r} is no single accelerator", "parts that differ in memory are told apart", f"use {choices}")
    close = difflib.get_close_matches(key, list(_BY_KEY), n=1, cutoff=0.6)
    hint = f"did you mean {_BY_KEY[close[0]].name}?" if close else "state accelerator.peak_flops and memory for others"
    raise ConfigError(f"{name!r} is no accelerator of the table", f"known are {', '.join(CHIPS)}", hint)


def unproven(chip: Chip) -> str | None:
    """Why the figures of ``chip`` deserve doubt, in words for a plan; None where they were checked and it can be bought."""
    if chip.announced:
        return f"{chip.name} is announced, not on sale: its figures are promises ({chip.source}; {chip.note})"
    if not chip.verified:
        return f"figures of {chip.name} are not verified: no source of them was at hand to check ({chip.source})"
    return None


def known_chip(name: str) -> Chip | None:
    """The chip called ``name``, or None where the table has none; ambiguous names are refused as in ``find_chip``."""
    key = _key(name)
    return find_chip(name) if key in _BY_KEY or key in _CHOICES else None


def dense_peak(chip: Chip, precision: str) -> float:
    """FLOP/s of ``chip`` in ``precision`` without sparsity; ConfigError where it has none."""
    if precision in chip.peaks:
        return chip.peaks[precision]
    rates = ", ".join(f"{name} {rate / T:g}T" for name, rate in chip.peaks.items())
    raise ConfigError(
        f"the table holds no {precision} peak of {chip.name}",
        f"its dense peaks are {rates}",
        "choose one, or state peak_flops",
    )


def check_peak(chip: Chip, stated: float, precision: str = "bfloat16") -> None:
    """Refuse a stated peak that is no dense rate of ``chip`` in ``precision``: sparse headlines first of all."""
    dense = chip.peaks.get(precision, max(chip.peaks.values()))  # a precision that is not listed is not faster than all others
    if stated <= dense * (1 + STATED_TOLERANCE):
        return
    way_out = f"the dense rate is {dense / T:g}T: write that, or leave the figure out"
    sparse = chip.sparse_peaks.get(precision)
    if sparse is not None and abs(stated / sparse - 1) <= STATED_TOLERANCE:
        seen = f"{stated / T:,g} TFLOP/s is the sparse headline of {chip.name} in {precision}"
        raise ConfigError(seen, "it counts multiplications with values that are zero; training is dense", way_out)
    if stated > dense * ROUNDING_UP:
        raise ConfigError(
            f"{stated / T:,g} TFLOP/s is more than {chip.name} does in {precision}", "a peak is the dense one", way_out
        )


def _key(name: str) -> str:
    """Lower case, without marks and makers: the form in which names are compared."""
    bare = re.sub(r"[^a-z0-9]", "", name.lower())
    return re.sub(r"^(nvidia|amdinstinct|amd|google|aws|intel)", "", bare)


_BY_KEY = {_key(name): chip for name, chip in CHIPS.items()} | {_key(name): CHIPS[of] for name, of in ALIASES.items()}
_CHOICES = {_key(name): choices for name, choices in AMBIGUOUS.items()}
