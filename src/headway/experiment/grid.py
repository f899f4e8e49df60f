"""One proxy recipe -> the recipe and Spec of every trial: other widths, rates, warm-ups, init scales, seeds, parametrisations.

    recipe of width 64 with 4 heads --width 256--> 16 heads of the same width, feed-forward four times as wide
    parametrisation "mup": as written, with [model.mup]; "standard": the same recipe without it

Changes are made to the recipe's data and pass through the schema and its checks, as ``--set`` does: what a trial trains is what
a person could have written.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headway.base.errors import ConfigError, Problem
from headway.recipe.load import Document, LoadedRecipe, validated
from headway.recipe.overrides import apply_overrides
from headway.recipe.resolve import resolve
from headway.recipe.spec import Spec

if TYPE_CHECKING:
    from headway.recipe.schema import Model

PARAMETRIZATIONS = ("mup", "standard")
ARM_WORDS = {"mup": "muP", "standard": "standard parametrisation"}
WARMUP_PATH = "stages.0.rate.warmup"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What distinguishes a trial. ``rate`` is the recipe's peak rate; ``warmup_tokens`` of the first stage."""

    parametrization: str
    width: int
    rate: float
    warmup_tokens: int
    init_std: float
    seed: int

    @property
    def id(self) -> str:
        """Readable, and a file's name: equal settings have equal ids."""
        head = f"{self.parametrization}-w{self.width}-r{self.rate!r}"
        return f"{head}-u{self.warmup_tokens}-i{self.init_std!r}-s{self.seed}"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What was asked. ``base``: everything as the recipe has it; ``seeds``: the recipe's, then those of phase 3."""

    base: Setting
    widths: tuple[int, ...]
    hold_out: int | None
    rates: tuple[float, ...]
    warmups: tuple[int, ...]  # one value or none: not swept
    init_stds: tuple[float, ...]
    seeds: tuple[int, ...]
    standard: bool  # whether the standard parametrisation is swept beside muP

    @property
    def parametrizations(self) -> tuple[str, ...]:
        return PARAMETRIZATIONS if self.standard else PARAMETRIZATIONS[:1]

    @property
    def all_widths(self) -> tuple[int, ...]:
        return (*self.widths, *(() if self.hold_out is None else (self.hold_out,)))


@dataclass(frozen=True)
class Proxy:
    """A recipe to be swept, with the numbers that a sweep varies as the recipe has them."""

    loaded: LoadedRecipe
    draft: Spec

    @staticmethod
    def of(loaded: LoadedRecipe) -> Proxy:
        """ConfigError without [model.mup]: a sweep of widths says at which one the recipe's numbers hold."""
        draft = resolve(loaded, None)
        if draft.model.mup is None:
            raise ConfigError(
                "the recipe has no section [model.mup]",
                "muP counts width from a base width, at which the recipe's rates and init scale hold as written",
                f"add [model.mup] with base_width = {draft.model.width}, or --set model.mup.base_width={draft.model.width}",
                loaded.locate(("model",)),
            )
        return Proxy(loaded, draft)

    @property
    def base(self) -> Setting:
        return Setting(
            parametrization="mup",
            width=self.draft.model.width,
            rate=self.draft.optimizer.peak_rate,
            warmup_tokens=self.draft.stages[0].rate.warmup_tokens,
            init_std=self.draft.model.init_std,
            seed=self.draft.seed,
        )

    def recipe(self, setting: Setting) -> LoadedRecipe:
        """The recipe of one trial."""
        changes: dict[str, Any] = width_changes(self.loaded.recipe.model, self.draft, setting.width)
        changes |= {
            "optimizer.peak_rate": setting.rate,
            WARMUP_PATH: setting.warmup_tokens,
            "model.init_std": setting.init_std,
            "seed": setting.seed,
        }
        if (matrix_rate := self.matrix_rate(setting.rate)) is not None:
            changes["optimizer.matrix_rate"] = matrix_rate
        return _changed(self.loaded, changes, without=() if setting.parametrization == "mup" else ("mup",))

    def matrix_rate(self, rate: float) -> float | None:
        """A rate of its own for Muon's matrices keeps its ratio to the peak rate; None: they have none."""
        own = self.draft.optimizer.matrix_rate
        return None if own is None else own * rate / self.draft.optimizer.peak_rate


NAMED_SIZE = "nominal_parameters"
"""Of a model: the size that one width is called by, which no other has."""


def _changed(loaded: LoadedRecipe, changes: Mapping[str, Any], *, without: Sequence[str]) -> LoadedRecipe:
    """``loaded`` with ``changes`` (key path -> value) and without some keys of its model, read anew."""
    from headway.recipe.checks import check_recipe
    from headway.recipe.digests import recipe_digest
    from headway.recipe.schema import Recipe

    data = copy.deepcopy(loaded.document.data)
    for key in (*without, NAMED_SIZE):
        data["model"].pop(key, None)
    overrides = [f"{key}={value!r}" for key, value in changes.items()]
    applied, problems = apply_overrides(data, overrides)
    before = loaded.document
    document = Document(before.text, before.path, data, before.lines, before.applied | applied)
    recipe = validated(Recipe, document, problems, check_recipe)
    return LoadedRecipe(recipe, loaded.text, loaded.path, (*loaded.overrides, *overrides), recipe_digest(recipe), document)


# --- widths -------------------------------------------------------------------------------------------------------------


def width_changes(model: Model, draft: Spec, width: int) -> dict[str, Any]:
    """Key path -> value: what follows the width, for a model as wide as ``width``. Heads become more, not wider."""
    resolved, base = draft.model, draft.model.width
    changes: dict[str, Any] = {
        "model.width": width,
        "model.heads": resolved.heads * width // base,
        "model.kv_heads": resolved.kv_heads * width // base,
        "model.ffn_width": _in_proportion(resolved.ffn_width, width, base),
    }
    if resolved.latent is None:
        changes["model.head_width"] = resolved.head_width
    else:
        ranks = {"query_rank": resolved.latent.query_rank, "kv_rank": resolved.latent.kv_rank}
        changes |= {f"model.latent.{name}": _in_proportion(r, width, base) for name, r in ranks.items() if r is not None}
    if resolved.experts is not None:
        changes["model.experts.width"] = _in_proportion(resolved.experts.width, width, base)
    return changes


def _in_proportion(size: int, width: int, base: int) -> int:
    """Exactly where that is whole, else the nearest multiple of 8."""
    whole, rest = divmod(size * width, base)
    return whole if not rest else max(8, round(size * width / base / 8) * 8)


def refuse_widths(proxy: Proxy, widths: Iterable[int], option: str) -> None:
    """ConfigError for every width that would need a part of a head."""
    model = proxy.draft.model
    counts = [model.heads] if model.latent is not None else [model.heads, model.kv_heads]
    step = math.lcm(*(model.width // math.gcd(model.width, count) for count in counts))
    problems = [
        Problem(
            f"a width of {width} has no whole number of heads",
            f"the recipe has {model.heads} heads and {model.kv_heads} key and value heads at width {model.width}; "
            f"a head keeps its width of {model.head_width}",
            f"choose multiples of {step}",
            option,
        )
        for width in widths
        if width % step
    ]
    if problems:
        raise ConfigError(problems)


# --- the grid -----------------------------------------------------------------------------------------------------------


def crossed(base: Setting, **varied: Sequence[Any]) -> list[Setting]:
    """Every combination of the values given, by field name; the rest as in ``base``. The last field varies fastest."""
    settings = [base]
    for name, values in varied.items():
        settings = [dataclasses.replace(setting, **{name: value}) for setting in settings for value in values]
    return settings


def octaves(centre: float, count: int) -> tuple[float, ...]:
    """``count`` values a factor of two apart around ``centre``."""
    return tuple(centre * 2.0 ** (place - count // 2) for place in range(count))
