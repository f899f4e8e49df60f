"""The worksheet: what a reservation buys once everything that others need is taken off. Shown by ``headway plan worksheet``.

    devices x duration = reserved
      - post-training, context                 first
      = shared out: exploration | rehearsal | main | contingency          100 %
                                              main - recovery - final evaluation = training, its end: annealing
    training hours x model FLOP/s, end-to-end / (6 N) = tokens, at the lower, base and upper rate

The declared rate becomes a model rate over the whole window by the factors that its kind needs, once (``formulas.flop_rates``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from headway.base.digests import digest_json
from headway.formulas.quantity import Input, Quantity, unknown
from headway.plan.outlook import kept_quantity
from headway.plan.plan import Column, Plan, Risk, Section, Table
from headway.plan.ranges import product
from headway.plan.worksheet.costs import (
    SECONDS_OF_MONTH,
    carbon_quantity,
    energy_quantity,
    pue_quantity,
    watts_quantity,
    worksheet_section,
)

if TYPE_CHECKING:
    from headway.plan.worksheet.file import CandidateModel, Figure, Worksheet

SHARES = ("exploration", "rehearsal", "main", "contingency")
FORMULA_OF_TOKENS = "training_hours x 3,600 x model_rate / (6 N)"
SOURCE_OF_SIX = "6 N per token: Kaplan et al. 2020; attention is left out, embeddings count with N"
LEAST_CONTINGENCY = 0.05
MOST_STORAGE = 0.1
"""Assumed: of the cost of device hours."""


def worksheet_plan(path_or_name: str | Path, overrides: tuple[str, ...] = ()) -> Plan:
    """Read a worksheet and derive what it buys."""
    from headway.plan.worksheet.file import load_worksheet

    worksheet = load_worksheet(path_or_name, overrides)
    digest = digest_json(worksheet.model_dump(mode="json"))
    sections = worksheet_sections(worksheet)
    risks = worksheet_risks(worksheet, {q.name: q for section in sections for q in section.quantities})
    return Plan(worksheet.name, digest, False, sections, risks, standing="a worksheet: what a reservation buys")


def worksheet_sections(worksheet: Worksheet) -> tuple[Section, ...]:
    """The reservation and its shares, the rate, what it buys, what it costs."""
    sheet = Sheet(worksheet)
    return (_reservation_section(sheet), _rate_section(sheet), _tokens_section(sheet), _costs_section(sheet))


@dataclass(frozen=True)
class Sheet:
    """A worksheet's quantities that several sections need, each computed once."""

    worksheet: Worksheet

    @cached_property
    def reserved(self) -> Quantity:
        """Device hours of the whole."""
        reservation = self.worksheet.reservation
        inputs: dict[str, Input] = {"devices": reservation.devices, "seconds": reservation.duration}
        return product("reserved_hours", HOURS, "devices x duration", inputs, 1 / 3600, "worksheet: reservation")

    @cached_property
    def shared(self) -> Quantity:
        first = self.worksheet.first
        inputs: dict[str, Input] = {"reserved_hours": self.reserved, **first.model_dump()}
        value = self.reserved.number() * (1 - first.post_training - first.context)
        return Quantity(
            "shared_hours", value, HOURS, "reserved_hours x (1 - post_training - context)", inputs, "worksheet: first"
        )

    def share(self, name: str) -> Quantity:
        """Device hours of one of the four shares."""
        part = getattr(self.worksheet.shares, name)
        inputs: dict[str, Input] = {"shared_hours": self.shared, name: part}
        return product(f"{name}_hours", HOURS, f"shared_hours x {name}", inputs, source="worksheet: shares")

    @cached_property
    def training(self) -> Quantity:
        """Device hours that train the base model, annealing included."""
        main, hours = self.worksheet.main, self.share("main")
        inputs: dict[str, Input] = {"main_hours": hours, "recovery": main.recovery, "final_evaluation": main.final_evaluation}
        value = hours.number() * (1 - main.recovery - main.final_evaluation)
        formula = "main_hours x (1 - recovery - final_evaluation)"
        return Quantity("training_hours", value, HOURS, formula, inputs, "worksheet: main")

    @cached_property
    def declared_rate(self) -> Quantity:
        stated = self.worksheet.rate
        kind = f"{stated.counts} FLOPs, {stated.window}, per device; range: lower and upper"
        return Quantity(
            "declared_rate", stated.base, "FLOP/s", kind, {}, f"worksheet: {stated.source}", stated.lower, stated.upper
        )

    @cached_property
    def model_rate(self) -> Quantity:
        """What tokens are bought with."""
        stated = self.worksheet.rate
        low, base, high = stated.model_rates()
        factors = {"recompute": stated.recompute, "goodput": stated.goodput}
        inputs: dict[str, Input] = {"declared_rate": self.declared_rate} | {k: v for k, v in factors.items() if v is not None}
        formula = "declared_rate" + (" / recompute" if stated.recompute else "") + (" x goodput" if stated.goodput else "")
        source = "each factor once: a model rate holds recomputation, an end-to-end rate holds failures"
        return Quantity("model_rate", base, "FLOP/s", formula, inputs, source, low, high)

    @cached_property
    def main_seconds(self) -> Quantity:
        """Time that the main run has, on all devices."""
        inputs: dict[str, Input] = {"main_hours": self.share("main"), "devices": self.worksheet.reservation.devices}
        value = self.share("main").number() * 3600 / self.worksheet.reservation.devices
        return Quantity("main_seconds", value, "seconds", "3,600 x main_hours / devices", inputs)

    def suffixed(self, name: str, model: CandidateModel) -> str:
        """The first model's quantities have plain names, the others' end in theirs."""
        return name if model is self.worksheet.models[0] else f"{name}_{model.name}"

    def tokens(self, model: CandidateModel) -> Quantity:
        """Tokens that ``model`` can be trained on."""
        inputs: dict[str, Input] = {"training_hours": self.training, "model_rate": self.model_rate, "N": model.parameters}
        hours, rate = self.training.number(), self.model_rate
        low, value, high = (hours * 3600 * float(r or 0) / (6 * model.parameters) for r in (rate.low, rate.value, rate.high))
        name = self.suffixed("affordable_tokens", model)
        return Quantity(name, value, "tokens", FORMULA_OF_TOKENS, inputs, SOURCE_OF_SIX, low, high)

    def annealing(self, model: CandidateModel) -> Quantity:
        """Those of them that the annealing phase sees: its share of the main run, at the same rate."""
        main, tokens = self.worksheet.main, self.tokens(model)
        inputs: dict[str, Input] = {tokens.name: tokens, **main.model_dump()}
        name, part = self.suffixed("annealing_tokens", model), main.annealing / (1 - main.recovery - main.final_evaluation)
        formula = f"{tokens.name} x annealing / (1 - recovery - final_evaluation)"
        return replace(product(name, "tokens", formula, {tokens.name: tokens}, part), inputs=inputs)


HOURS = "device hours"


# --- sections -----------------------------------------------------------------------------------------------------------


def _reservation_section(sheet: Sheet) -> Section:
    worksheet = sheet.worksheet
    columns = (
        Column("part"),
        Column("of"),
        Column("share", "share"),
        Column("device hours", HOURS),
        Column("on all devices", "seconds"),
    )
    main = sheet.share("main")
    rows = [
        *(("taken off first: " + _words(n), "reserved", part, sheet.reserved.number() * part) for n, part in worksheet.first),
        *((name, "shared", getattr(worksheet.shares, name), sheet.share(name).number()) for name in SHARES),
        *((f"main: {_words(n)}", "main", part, main.number() * part) for n, part in worksheet.main),
        ("main: training, annealing included", "main", sheet.training.number() / (main.number() or 1), sheet.training.number()),
    ]
    devices = worksheet.reservation.devices
    table = Table("Shares", columns, tuple((*row, row[3] * 3600 / devices or None) for row in rows))
    shares = tuple(sheet.share(name) for name in SHARES)
    return Section("Reservation", (sheet.reserved, sheet.shared, *shares, sheet.training, sheet.main_seconds), (table,))


def _words(name: str) -> str:
    return name.replace("_", " ")


def _rate_section(sheet: Sheet) -> Section:
    quantities = [sheet.declared_rate, sheet.model_rate]
    reservation, chip, stated = sheet.worksheet.reservation, sheet.worksheet.reservation.chip, sheet.worksheet.rate
    peak = reservation.peak or (chip.peaks.get(reservation.precision) if chip else None)
    if peak:
        name = "mfu" if stated.counts == "model" else "hfu"
        inputs: dict[str, Input] = {"declared_rate": sheet.declared_rate, "peak": peak}
        formula = f"declared_rate / dense peak in {reservation.precision}, over {stated.window} time; 6 N"
        share = product(f"declared_{name}", "share", formula, {"declared_rate": sheet.declared_rate}, 1 / peak)
        quantities.append(replace(share, inputs=inputs))
    return Section("Rate", tuple(quantities))


def _tokens_section(sheet: Sheet) -> Section:
    quantities: list[Quantity] = []
    rows = []
    for model in sheet.worksheet.models:
        tokens, annealed = sheet.tokens(model), sheet.annealing(model)
        quantities += [tokens, annealed] if annealed.value else [tokens]
        per = tokens.number() / model.parameters
        rows.append((model.name, model.parameters, tokens.low, tokens.number(), tokens.high, per, annealed.number()))
    titles = ("model", "parameters", "tokens, lower", "tokens, base", "tokens, upper", "per parameter", "of which annealing")
    units = ("", "", "tokens", "tokens", "tokens", "", "tokens")
    columns = tuple(Column(title, unit) for title, unit in zip(titles, units, strict=True))
    note = "A budget is no recommendation: whether there are that many tokens worth reading, and what serving costs, decides too."
    return Section("Tokens affordable", tuple(quantities), (Table("By model", columns, tuple(rows)),), (note,))


def _costs_section(sheet: Sheet) -> Section:
    """Of the whole reservation, and the checkpoints of the first model's main run."""
    worksheet = sheet.worksheet
    hours, prices, grid = sheet.reserved, worksheet.prices, worksheet.power
    currency = prices.currency
    price = _figure("price_per_device_hour", currency, prices.device_hour, "needs prices.device_hour")
    factors: dict[str, Input] = {hours.name: hours, price.name: price}
    cost = product("cost", currency, "reserved_hours x price_per_device_hour", factors, source=price.source)
    watts = _figure("watts_per_device", "W", grid.watts, "") if grid.watts else watts_quantity(worksheet.reservation.chip)
    pue = _figure("pue", "", grid.pue, "") if grid.pue else pue_quantity()
    energy = energy_quantity(hours, watts, pue)
    intensity = _figure(
        "carbon_per_kwh", "kg/kWh", grid.kg_per_kwh, "needs power.kg_per_kwh, which differs tenfold between grids"
    )
    quantities = [hours, cost, energy, carbon_quantity(energy, intensity), *_kept(sheet)]
    return Section("Cost, energy and carbon", tuple(quantities[1:]))


def _kept(sheet: Sheet) -> list[Quantity]:
    """Checkpoints kept for good: half of the run's time on average, and all of ``kept_for``."""
    kept, prices, made = sheet.worksheet.checkpoints, sheet.worksheet.prices, []
    if not kept.permanent_every:
        return []
    count = kept_quantity(sheet.main_seconds, kept.every, kept.permanent_every)
    price = _figure("price_per_tb_month", prices.currency, prices.tb_month, "needs prices.tb_month")
    months = (sheet.main_seconds.number() / 2 + kept.kept_for) / SECONDS_OF_MONTH
    for model in sheet.worksheet.models:
        size: dict[str, Input] = {count.name: count, "bytes_per_parameter": kept.bytes_per_parameter}
        size["N"] = model.stored or model.parameters
        name = sheet.suffixed("kept_checkpoint_bytes", model)
        stored = product(name, "bytes", "kept_checkpoints x bytes_per_parameter x N", size)
        factors: dict[str, Input] = {name: stored, "months": months, price.name: price}
        formula = f"{name} x (half of main_seconds + kept_for) x price"
        made += [stored, product(sheet.suffixed("storage_cost", model), prices.currency, formula, factors, 1e-12, price.source)]
    return [count, *made]


def _figure(name: str, unit: str, figure: Figure | None, missing: str) -> Quantity:
    """A figure of the file, with its range."""
    if figure is None:
        return unknown(name, unit, missing)
    low, high = figure.bounds
    exact = low == high
    source = figure.source or "the worksheet"
    return Quantity(name, figure.base, unit, "stated", {}, source, None if exact else low, None if exact else high)


# --- risks --------------------------------------------------------------------------------------------------------------


def worksheet_risks(worksheet: Worksheet, known: Mapping[str, Quantity]) -> tuple[Risk, ...]:
    """What the worksheet itself provokes: resources that nobody set apart, a rate that nobody measured."""
    reserves = {
        "post-training": worksheet.first.post_training,
        "context extension": worksheet.first.context,
        "recovery": worksheet.main.recovery,
        "final evaluation": worksheet.main.final_evaluation,
    }
    missing = [name for name, share in reserves.items() if share == 0]
    risks = []
    if missing:
        consequence = "the tokens above spend what these stages will need, or they must be paid for elsewhere"
        risks.append(Risk("nothing is set apart for stages that follow", consequence, f"0 % for {', '.join(missing)}"))
    if worksheet.rate.source in ("assigned", "assumed"):
        spread = 100 * (worksheet.rate.upper / worksheet.rate.lower - 1)
        consequence = "a scenario is no measurement: tokens move with the rate, one to one"
        risks.append(Risk("the rate is assigned, not rehearsed", consequence, f"upper is {spread:.0f} % above lower"))
    if worksheet.shares.contingency < LEAST_CONTINGENCY:
        share = f"{100 * worksheet.shares.contingency:.3g} % contingency"
        risks.append(Risk("little is left for what goes wrong", "any delay shortens the run, whose decay comes last", share))
    storage, cost = known.get("storage_cost"), known["cost"]
    if storage is not None and storage.value and cost.value and storage.number() > MOST_STORAGE * cost.number():
        part, count = 100 * storage.number() / cost.number(), known["kept_checkpoints"].shown()
        consequence = "nobody restores so many: keep fewer, or for a shorter time"
        risks.append(
            Risk("kept checkpoints cost a large part", consequence, f"{count} for {part:.3g} % of the device hours' cost")
        )
    return tuple(risks)


__all__ = ["Sheet", "worksheet_plan", "worksheet_risks", "worksheet_section", "worksheet_sections"]
