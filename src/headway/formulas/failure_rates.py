"""How often a job is interrupted: from devices to jobs, and what published clusters measured.

    job MTBF = device MTBF / devices              the pure rate model: every device of a job is a single point of failure

Measured, as device-hours between interruptions (hours between interruptions of the job x its devices):

    devices      8            1,024        16,384
    A100, RSC-1  9,200        8,100        29,500 by the cluster's node rate, from which the pure model starts
    H100                                   50,700 (Llama 3)

So the pure model from the node rate is 3 to 4 times too hopeful for the small and middle jobs of the very cluster that it
was measured on: they are stopped by more than failing nodes. A plan says so instead of extrapolating silently.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.base.errors import ConfigError
from headway.formulas.quantity import Input, Quantity

HOUR = 3600.0


@dataclass(frozen=True, kw_only=True)
class MeasuredRate:
    """Interruptions of jobs of one size on one cluster. ``verified``: read in the source itself, not in notes about it."""

    name: str
    devices: int
    between_hours: float
    source: str
    verified: bool = False
    projected: bool = False

    @property
    def device_hours(self) -> float:
        return self.devices * self.between_hours

    @property
    def cited(self) -> str:
        """What a plan says of where the figure is from."""
        return self.source if self.verified else f"{self.source}, not verified: the source itself was not at hand"


LLAMA_3_INTERRUPTIONS = 419
LLAMA_3_DAYS = 54
LLAMA_3 = MeasuredRate(
    name="Llama 3 405B, H100",
    devices=16_384,
    between_hours=LLAMA_3_DAYS * 24 / LLAMA_3_INTERRUPTIONS,
    source="arXiv 2407.21783 table 5: 419 unexpected interruptions in 54 days",
    verified=True,
)
RSC = "arXiv 2410.21680"
RSC_1_NODE_RATE = 6.50e-3
RSC_2_NODE_RATE = 2.34e-3
"""Failures per node-day, eight devices a node."""


def _by_node_rate(name: str, devices: int, node_rate: float) -> MeasuredRate:
    """What the pure rate model says for that many devices."""
    return MeasuredRate(name=name, devices=devices, between_hours=24 / (devices / 8 * node_rate), source=RSC, projected=True)


MEASURED_RATES = (
    LLAMA_3,
    MeasuredRate(name="RSC-1, A100, 8 devices", devices=8, between_hours=47.7 * 24, source=RSC),
    MeasuredRate(name="RSC-1, A100, 1,024 devices", devices=1_024, between_hours=7.9, source=RSC),
    MeasuredRate(name="RSC-1, A100, projected", devices=16_384, between_hours=1.8, source=RSC, projected=True),
    _by_node_rate("RSC-1, A100, by its node rate", 1_024, RSC_1_NODE_RATE),
    _by_node_rate("RSC-2, A100, by its node rate", 1_024, RSC_2_NODE_RATE),
)

ASSUMED_DEVICE_HOURS = (20_000.0, 100_000.0)
"""Where nobody states a rate: around the node rates of both RSC clusters (29,500 and 82,100) and Llama 3 (50,700)."""
SMALL_JOB_DEVICES = 1_024
SMALL_JOB_DEVICE_HOURS = 8_000.0
"""Jobs up to that size were measured at 8,100 and 9,200 device-hours: the range of an assumption reaches down to that."""


def job_between_seconds(device_between_seconds: float, devices: int) -> float:
    """The pure rate model: failures of independent devices add up."""
    if device_between_seconds <= 0:
        raise ConfigError(f"a device fails every {device_between_seconds:g} s", "the time between failures is positive", "")
    if devices < 1:
        raise ConfigError(f"{devices} devices", "a job has at least one device", "")
    return device_between_seconds / devices


def small_job_divergence() -> Quantity:
    """How many times more often jobs of 1,024 devices were interrupted than the node rate of their cluster says."""
    measured = next(rate for rate in MEASURED_RATES if rate.name == "RSC-1, A100, 1,024 devices")
    smallest = next(rate for rate in MEASURED_RATES if rate.name == "RSC-1, A100, 8 devices")
    model = next(rate for rate in MEASURED_RATES if rate.name == "RSC-1, A100, by its node rate")
    factors = sorted(model.device_hours / rate.device_hours for rate in (measured, smallest))
    inputs: dict[str, Input] = {
        "by the node rate (hours at 1,024)": round(model.between_hours, 1),
        "measured (hours at 1,024)": measured.between_hours,
        "measured (hours at 8)": smallest.between_hours,
    }
    formula = "hours between interruptions by the rate model / measured, for 1,024 devices; range: down to jobs of 8"
    return Quantity("small_job_divergence", factors[1], "times", formula, inputs, measured.cited, *factors)


def device_between(stated_seconds: float | None, devices: int) -> Quantity:
    """As the deployment states it, or assumed with its range."""
    name = "device_mtbf_hours"
    if stated_seconds is not None:
        return Quantity(name, stated_seconds / HOUR, "hours", "stated", {}, "the deployment: failures.per_device")
    low, high = ASSUMED_DEVICE_HOURS
    inputs: dict[str, Input] = {"devices": devices, LLAMA_3.name: round(LLAMA_3.device_hours)}
    formula = "assumed: as Llama 3 measured; range: published clusters"
    if devices <= SMALL_JOB_DEVICES:
        low = SMALL_JOB_DEVICE_HOURS
        inputs["small_job_divergence"] = small_job_divergence()
        formula += ", and what small jobs met"
    return Quantity(name, LLAMA_3.device_hours, "hours", formula, inputs, f"{LLAMA_3.cited}; assumed of this device", low, high)


def job_between(device: Quantity, devices: int) -> Quantity:
    """Mean time between interruptions of the whole job, by the pure rate model."""
    low, high = (None if bound is None else job_between_seconds(bound * HOUR, devices) for bound in (device.low, device.high))
    value = job_between_seconds(device.number() * HOUR, devices)
    inputs: dict[str, Input] = {"device_mtbf_hours": device, "devices": devices}
    return Quantity("mean_time_between_interruptions", value, "seconds", "device MTBF / devices", inputs, "", low, high)
