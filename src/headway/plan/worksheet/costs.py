"""What device hours cost: money, energy, carbon, and the checkpoints that are kept for good. For a plan and a worksheet.

    devices x wall_seconds --price per hour----------------------> cost
                           --watts x PUE------------> energy ----> carbon, by the grid's kg per kWh
    kept checkpoints ----------------------> bytes x price per TB and month

Every factor is a quantity with its range; a product's range is that of all factors erring the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.formulas.chips import Chip
from headway.formulas.quantity import Input, Quantity, unknown
from headway.plan.outlook import kept_checkpoints
from headway.plan.plan import Section
from headway.plan.ranges import product

if TYPE_CHECKING:
    from headway.plan.facts import PlanFacts

OVERHEAD_OF_A_DEVICE = (1.2, 1.5, 1.9)
"""Least, usual, most watts at the machine over a device's own limit: hosts, fans and network add, devices rarely reach it."""
OVERHEAD_SOURCE = "assumed; a machine of eight 700 W devices is rated at 10.2 kW, 1.8 times theirs (DGX H100 datasheet)"
USUAL_PUE = (1.05, 1.2, 1.56)
PUE_SOURCE = "assumed; 1.56 is the mean of the Uptime Institute's survey of 2024, large new sites report 1.1 and less"
SECONDS_OF_MONTH = 30 * 86400


# --- factors ------------------------------------------------------------------------------------------------------------


def watts_quantity(chip: Chip | None, stated: float | None = None) -> Quantity:
    """Per device with its share of the machine: as stated, or from the chip's limit."""
    name, unit = "watts_per_device", "W"
    if stated is not None:
        return Quantity(name, stated, unit, "stated", {}, "deployment: power.watts")
    if chip is None or chip.watts is None:
        return unknown(name, unit, "needs power.watts: the table has no limit of this device")
    low, middle, high = (chip.watts * factor for factor in OVERHEAD_OF_A_DEVICE)
    inputs: dict[str, Input] = {"limit": chip.watts, "overhead": OVERHEAD_OF_A_DEVICE[1]}
    return Quantity(name, middle, unit, "limit of the chip x overhead", inputs, f"{chip.source}; {OVERHEAD_SOURCE}", low, high)


def pue_quantity(stated: float | None = None) -> Quantity:
    if stated is not None:
        return Quantity("pue", stated, "", "stated", {}, "deployment: power.pue")
    low, middle, high = USUAL_PUE
    return Quantity("pue", middle, "", "power of the building / power of the machines", {}, PUE_SOURCE, low, high)


def energy_quantity(hours: Quantity, watts: Quantity, pue: Quantity, name: str = "energy_kwh") -> Quantity:
    factors: dict[str, Input] = {hours.name: hours, watts.name: watts, pue.name: pue}
    return product(name, "kWh", f"{hours.name} x watts x PUE / 1,000", factors, 1e-3)


def carbon_quantity(energy: Quantity, intensity: Quantity, name: str = "carbon_kg") -> Quantity:
    factors: dict[str, Input] = {energy.name: energy, intensity.name: intensity}
    return product(name, "kg", "energy x kg per kWh", factors, source=intensity.source)


# --- of an ordinary plan ------------------------------------------------------------------------------------------------


def worksheet_section(facts: PlanFacts) -> Section:
    """Device hours, cost, energy, carbon, kept checkpoints."""
    deployment = facts.deployment
    held = facts.wall_seconds
    factors: dict[str, Input] = {"devices": deployment.world, held.name: held}
    hours = product("gpu_hours", "device hours", f"devices x {held.name} / 3,600", factors, 1 / 3600)
    energy = energy_quantity(hours, watts_quantity(deployment.chip, deployment.power.watts), pue_quantity(deployment.power.pue))
    parts = [hours, _cost(facts, hours), energy, *_electricity(facts, energy), _carbon(facts, energy)]
    return Section("Cost, energy and carbon", (*parts, *_kept(facts)))


def _cost(facts: PlanFacts, hours: Quantity) -> Quantity:
    price, currency = facts.deployment.price_per_hour, facts.deployment.currency
    if price is None:
        return unknown("cost", currency, "needs price_per_hour of a device")
    factors: dict[str, Input] = {"gpu_hours": hours, "price_per_hour": price}
    return product("cost", currency, "gpu_hours x price_per_hour", factors, source="deployment: price_per_hour")


def _electricity(facts: PlanFacts, energy: Quantity) -> list[Quantity]:
    """Only where its price is known; it may be part of the hour's price, so it is never added to it."""
    price = facts.deployment.power.price_per_kwh
    if price is None:
        return []
    factors: dict[str, Input] = {"energy_kwh": energy, "price_per_kwh": price}
    formula = "energy x price, beside the cost of device hours"
    return [product("electricity_cost", facts.deployment.currency, formula, factors, source="deployment: power")]


def _carbon(facts: PlanFacts, energy: Quantity) -> Quantity:
    power = facts.deployment.power
    if power.carbon_per_kwh is None:
        return unknown("carbon_kg", "kg", "needs power.carbon_per_kwh, which differs tenfold between grids")
    source = power.carbon_source or "deployment: power.carbon_per_kwh, whose source is not stated"
    return carbon_quantity(energy, Quantity("carbon_per_kwh", power.carbon_per_kwh, "kg/kWh", "stated", {}, source))


def _kept(facts: PlanFacts) -> list[Quantity]:
    """Checkpoints that are kept for good, and what they cost a month."""
    policy, price = facts.deployment.checkpoints, facts.deployment.storage.price_per_tb_month
    if not policy.permanent_every:
        return []
    count, unit = kept_checkpoints(facts), f"{facts.deployment.currency}/month"
    size: dict[str, Input] = {"kept_checkpoints": count, "checkpoint_bytes": facts.checkpoint_size}
    stored = product("kept_checkpoint_bytes", "bytes", "kept_checkpoints x checkpoint_bytes", size)
    if price is None:
        return [count, stored, unknown("storage_cost", unit, "needs storage.price_per_tb_month")]
    factors: dict[str, Input] = {"kept_checkpoint_bytes": stored, "price_per_tb_month": price}
    formula = "all kept bytes x price: what they cost a month once the run has ended"
    return [count, stored, product("storage_cost", unit, formula, factors, 1e-12, "deployment: storage.price_per_tb_month")]
