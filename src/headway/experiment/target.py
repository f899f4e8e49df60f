"""Carries what a sweep found to a target recipe, with a record; refuses where it is no transfer.

    sweep + outcome + target recipe --transfer--> record {verdict, what is set, why, what the evidence does not cover}

Set on the target are peak rate, init scale and [model.mup], all as they hold at the base width: under muP the factors of a wider
model follow from the table. The init scale is the swept optimum where that transfers too, else the proxy's own, under which the
rate was tuned. The warm-up is set where its optimum transfers, and else stays the target's: as many tokens as a short proxy warms
up for say nothing of a long run. Width is the only difference that the sweep speaks for; every other one is listed, and where the
target is another kind of model or has another kind of update (``ANOTHER_KIND``), it is no transfer.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from headway.base.errors import ConfigError
from headway.experiment.conditions import KINDS_OF_MODEL, conditions, differences
from headway.experiment.grid import WARMUP_PATH
from headway.experiment.optimum import Optimum
from headway.experiment.outcome import Finding, Outcome
from headway.experiment.sweep import Sweep, sweep_digest
from headway.experiment.transfer import TRANSFERS
from headway.recipe.load import LoadedRecipe, load_recipe
from headway.recipe.resolve import resolve

ANOTHER_KIND = ("optimizer.kind", *(f"model.{key}" for key in KINDS_OF_MODEL))
"""Keys that make another thing of what was tuned."""
TARGET = "as the target has it"
PATHS = {"rate": "optimizer.peak_rate", "warmup_tokens": WARMUP_PATH, "init_std": "model.init_std"}
"""Of each hyperparameter in a recipe."""


@dataclass(frozen=True, kw_only=True)
class Value:
    """One hyperparameter as carried. ``source``: from the sweep, the proxy or the target, and why."""

    path: str
    value: float | int
    low: float | None
    high: float | None
    verdict: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """The record. ``overrides`` is empty where it was refused."""

    sweep: str
    sweep_digest: str
    proxy_recipe: str
    proxy_recipe_digest: str
    target_recipe: str
    target_recipe_digest: str  # as it was named, before anything was set
    target_overrides: tuple[str, ...]  # that it was named with
    result_recipe_digest: str | None  # with what was set; None: nothing was
    verdict: str
    reason: str
    despite: str | None  # why a person carried it over all the same
    allowed_factor: float
    values: tuple[Value, ...]
    overrides: tuple[str, ...]
    another_kind: tuple[str, ...]  # of the differences, those that are refused
    not_covered: tuple[str, ...]  # differences between proxy and target that no trial speaks for
    evidence: dict[str, Any]
    author: str
    kind: str = "mup_transfer"
    schema_version: int = 1

    @property
    def refused(self) -> bool:
        return not self.overrides

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """``despite``: a reason to set it whatever the verdict; None: a verdict other than "transfers" is refused."""

    sweep_directory: str
    target: str
    overrides: tuple[str, ...] = ()
    despite: str | None = None
    author: str = "unknown"


def transfer(sweep: Sweep, outcome: Outcome, asked: Asked) -> Transfer:
    """The record of carrying ``outcome`` to the target. ConfigError where the target cannot take it."""
    if asked.despite is not None and not asked.despite.strip():
        raise ConfigError("an empty reason", "what is done despite a verdict is recorded with its reason", "", "--despite")
    target = load_recipe(asked.target, asked.overrides)
    _refuse_another_base(sweep, target)
    verdict, reason = outcome.rate.verdict
    values = _values(sweep, outcome, target)
    another = tuple(line for line in not_covered(sweep, target) if line.startswith(tuple(f"{key}:" for key in ANOTHER_KIND)))
    allowed = (verdict == TRANSFERS and not another) or asked.despite is not None
    overrides = _overrides(sweep, values) if allowed else ()
    result = load_recipe(asked.target, (*asked.overrides, *overrides)) if overrides else None
    return Transfer(
        sweep=asked.sweep_directory,
        sweep_digest=sweep_digest(sweep),
        proxy_recipe=sweep.recipe,
        proxy_recipe_digest=sweep.recipe_digest,
        target_recipe=target.path,
        target_recipe_digest=target.digest,
        target_overrides=asked.overrides,
        result_recipe_digest=result.digest if result else None,
        verdict=verdict,
        reason=reason,
        despite=asked.despite,
        allowed_factor=outcome.rate.drift.allowed,
        values=values,
        overrides=overrides,
        another_kind=another,
        not_covered=not_covered(sweep, result or target),
        evidence=outcome.to_json() | {"records_digest": sweep.records_digest, "manifest_digest": sweep.manifest_digest},
        author=asked.author,
    )


def _values(sweep: Sweep, outcome: Outcome, target: LoadedRecipe) -> tuple[Value, ...]:
    base, warmup = sweep.settings.base, resolve(target, None).stages[0].rate.warmup_tokens
    return (
        _rate(outcome.rate),
        _other("warmup_tokens", outcome.finding("mup", "warmup_tokens"), warmup, TARGET),
        _other("init_std", outcome.finding("mup", "init_std"), base.init_std, "as the proxy has it"),
    )


def _rate(finding: Finding) -> Value:
    """Carried over the widths; despite a verdict without such a value, that of the widest width."""
    verdict, _ = finding.verdict
    best: Optimum | None = finding.carried
    source = f"the sweep's optimum over widths {', '.join(map(str, finding.curves))}"
    if best is None:
        best = finding.optima[max(finding.optima)]
        source = f"the lowest loss at width {max(finding.optima)}, {best.state}"
    if best.value is None:
        raise ConfigError("every trial at the widest width diverged", "there is no rate to carry over", "sweep lower rates")
    return Value(path=PATHS["rate"], value=_rounded(best.value), low=best.low, high=best.high, verdict=verdict, source=source)


def _other(name: str, finding: Finding | None, own: float | int, as_whose: str) -> Value:
    """``own``: what stays where the sweep has no answer, ``as_whose`` has it."""
    kept: dict[str, Any] = {"path": PATHS[name], "value": own, "low": None, "high": None}
    if finding is None:
        return Value(**kept, verdict="not swept", source=f"{as_whose}: it was not swept")
    verdict, reason = finding.verdict
    best = finding.carried
    if verdict != TRANSFERS or best is None or best.value is None:
        return Value(**kept, verdict=verdict, source=f"{as_whose}: {reason}")
    value = round(best.value) if isinstance(own, int) else _rounded(best.value)
    source = "the sweep's optimum, at each width's best rate"
    return Value(path=PATHS[name], value=value, low=best.low, high=best.high, verdict=verdict, source=source)


def _rounded(value: float) -> float:
    """Four figures: far finer than any interval."""
    return float(f"{value:.4g}")


def _overrides(sweep: Sweep, values: tuple[Value, ...]) -> tuple[str, ...]:
    set_: dict[str, Any] = {value.path: value.value for value in values if not value.source.startswith(TARGET)}
    if sweep.matrix_rate_ratio is not None:
        set_["optimizer.matrix_rate"] = _rounded(sweep.matrix_rate_ratio * float(set_[PATHS["rate"]]))
    set_ |= {f"model.mup.{key}": value for key, value in sweep.mup.items()}
    return tuple(f"{key}={value!r}" for key, value in set_.items())


def _refuse_another_base(sweep: Sweep, target: LoadedRecipe) -> None:
    """A depth that only the target counts from would stand beside the sweep's width: numbers of two bases in one recipe."""
    own = target.recipe.model.mup.base_layers if target.recipe.model.mup else None
    depth = sweep.conditions["model"]["layers"]
    if own is not None and "base_layers" not in sweep.mup and own != depth:
        raise ConfigError(
            f"the target has model.mup.base_layers = {own}, the sweep's recipe has {depth} layers and no base_layers",
            "rates and init scale hold at one base, in width and in depth",
            f"remove base_layers from the target, write {depth}, or sweep a recipe that has it",
            target.locate(("model", "mup", "base_layers")),
        )


def not_covered(sweep: Sweep, target: LoadedRecipe) -> tuple[str, ...]:
    """What the target has otherwise than the proxy, besides the width and what is set."""
    return tuple(differences(sweep.conditions, conditions(resolve(target, None))))
