"""What muP makes of the recipe's numbers at this width and depth: the rows of ``recipe/mup.py`` that the model has."""

from __future__ import annotations

from collections.abc import Iterator

from headway.formulas.quantity import Input, Quantity
from headway.plan.facts import PlanFacts
from headway.plan.plan import Cell, Column, Section, Table
from headway.recipe.mup import Rule, is_muon, multipliers, ratios, rule
from headway.recipe.roles import ParameterShape, Role, parameter_shapes

SOURCE = "Yang et al. 2022, arXiv 2203.03466; Dey et al. 2025, arXiv 2505.01618"


def parametrisation_section(facts: PlanFacts) -> Section | None:
    """None in the standard parametrisation, where every number is the recipe's own."""
    if facts.spec.model.mup is None:
        return None
    return Section("Parametrisation", tuple(_factors(facts)), (_roles_table(facts),))


def _factors(facts: PlanFacts) -> Iterator[Quantity]:
    model = facts.spec.model
    mup = model.mup
    assert mup is not None
    (width_ratio, depth_ratio), found = ratios(model), multipliers(model)
    widths = {"width": model.width, "base_width": mup.base_width}
    n = Quantity("width_ratio", width_ratio, "", "width / base_width", widths, "recipe: model.mup")
    depths = {"layers": model.layers, "base_layers": mup.base_layers}
    depth = Quantity("depth_ratio", depth_ratio, "", "layers / base_layers", depths, "recipe: model.mup")
    yield from (n, depth)
    alpha: dict[str, Input] = {"depth_ratio": depth, "alpha": mup.depth_alpha}
    yield Quantity("residual_multiplier", found.residual, "", "depth_ratio^-alpha", alpha, SOURCE)
    yield Quantity("logit_multiplier", found.logits, "", "1 / width_ratio", {"width_ratio": n}, SOURCE)
    if model.experts is not None:
        yield Quantity("router_multiplier", found.router, "", "1 / width_ratio", {"width_ratio": n}, SOURCE)
    heads = {"attention_multiplier": mup.attention_multiplier, "head_width": model.head_width}
    yield Quantity("score_multiplier", found.attention, "", "attention_multiplier / head_width", heads, SOURCE)


def _roles_table(facts: PlanFacts) -> Table:
    """A row per role and place; initial values that follow a matrix's own columns are shown from least to most."""
    spec = facts.spec
    rows: dict[tuple[str, str], list[tuple[ParameterShape, Rule]]] = {}
    for shape in parameter_shapes(spec.model):
        if shape.role is not Role.BALANCE:
            place = "block" if shape.in_block else "in, out"
            rows.setdefault((shape.role.value, place), []).append((shape, rule(shape, spec.model, spec.optimizer)))
    titles = (
        Column("role"),
        Column("place"),
        Column("init std"),
        Column("peak rate", "rate"),
        Column("decay"),
        Column("epsilon"),
    )
    return Table("Rows by role", titles, tuple(_row(facts, *key, found) for key, found in rows.items()))


def _row(facts: PlanFacts, role: str, place: str, found: list[tuple[ParameterShape, Rule]]) -> tuple[Cell, ...]:
    optimizer, (shape, first) = facts.spec.optimizer, found[0]
    epsilon = "Muon" if is_muon(shape, optimizer) else f"{first.epsilon:.3g}"
    return (role, place, _initial([row.std for _, row in found]), optimizer.peak_rate * first.rate, first.decay, epsilon)


def _initial(stds: list[float | None]) -> str:
    known = sorted({f"{std:.3g}": std for std in stds if std is not None}.values())
    if not known:
        return "ones"
    if known == [0.0]:
        return "zeros"
    return f"{known[0]:.3g}" if len(known) == 1 else f"{known[0]:.3g} to {known[-1]:.3g}"
