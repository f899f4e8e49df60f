"""A sweep in three phases, one hyperparameter at a time, each planned from the records of the one before.

    1  rates       widths x rates x parametrisations, everything else as the recipe has it
    2  the rest    at each width's best rate of phase 1: warm-ups, then init scales, one varied and the other as written (muP)
    3  seeds       more seeds at the best rate and at the rates beside it: a seed at the best one alone would say how high the
                   curve lies, not where it is lowest

That is one round of coordinate descent and no search of the whole space: an optimum of the warm-up that moves with the rate is
not seen. Phases 1 and 3 also run at the held-out width, which no fit uses.

Whatever has a record is not run again, so a sweep that was stopped goes on where it was, and one that is asked for with more
values runs those only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.base.digests import digest_json
from headway.base.errors import ConfigError, RunError
from headway.base.files import make_directory, read_json, write_json
from headway.base.plain import from_plain
from headway.data.freeze import freeze
from headway.data.manifest import DataManifest
from headway.experiment.asking import Ask, Tell, watched
from headway.experiment.conditions import conditions
from headway.experiment.grid import Proxy, Setting, Settings, crossed, octaves, refuse_widths
from headway.experiment.optimum import best_value
from headway.experiment.outcome import Outcome, outcome_of
from headway.experiment.records import Trial, TrialRecord, claim, has_record, read_records, records_digest, write_plan
from headway.experiment.transfer import FACTOR

SWEEP_FILE = "sweep.json"
SCHEMA_VERSION = 2
PHASES = ("rates", "warm-ups and init scales", "seeds")


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A finished sweep as it lies in its directory. ``conditions``: what the proxy had that a target may have otherwise."""

    recipe: str  # path or preset
    name: str
    recipe_digest: str
    manifest_digest: str
    settings: Settings
    mup: dict[str, Any]  # [model.mup] as the recipe has it
    matrix_rate_ratio: float | None  # of Muon's own rate to the peak rate
    conditions: dict[str, Any]  # by ``conditions.py``
    trials: tuple[str, ...]  # ids of those that were judged
    records_digest: str
    outcome: dict[str, Any] = field(repr=False)
    versions: dict[str, Any]
    kind: str = "mup_sweep"
    schema_version: int = SCHEMA_VERSION


def settings_for(
    proxy: Proxy,
    *,
    widths: Sequence[int] | None,
    hold_out: int | None,
    values: Mapping[str, Sequence[float] | None],
    seeds: int,
    standard: bool,
) -> Settings:
    """What is swept: as asked, and else values a factor of two apart around the recipe's own. One value: every trial has it.

    ``values``: by "rates", "warmups", "init_stds"; None: the default. ConfigError for what cannot be swept.
    """
    base = proxy.base
    wanted = tuple(sorted(set(widths or [base.width, 2 * base.width, 4 * base.width])))
    if hold_out in wanted:
        raise ConfigError(f"width {hold_out} is swept and held out", "a held-out width is one that no fit sees", "", "--hold-out")
    refuse_widths(proxy, wanted, "--widths")
    refuse_widths(proxy, [] if hold_out is None else [hold_out], "--hold-out")
    if not 1 <= seeds <= 100:
        raise ConfigError(f"{seeds} seeds", "a sweep has 1 to 100 seeds", "such as --seeds 3", "--seeds")
    rates = tuple(sorted(set(values.get("rates") or octaves(base.rate, 7))))
    if len(rates) < 3:
        raise ConfigError(f"{len(rates)} rates", "three or more values enclose an optimum", "such as 5e-4,1e-3,2e-3", "--rates")
    warmups = _around(values.get("warmups"), _default_warmups(proxy), "--warmups", int)
    init_stds = _around(values.get("init_stds"), octaves(base.init_std, 5), "--init-stds", float)
    fixed = {name: found[0] for name, found in (("warmup_tokens", warmups), ("init_std", init_stds)) if len(found) == 1}
    return Settings(
        base=dataclasses.replace(base, **fixed),
        widths=wanted,
        hold_out=hold_out,
        rates=rates,
        warmups=warmups,
        init_stds=init_stds,
        seeds=tuple(base.seed + place for place in range(seeds)),
        standard=standard,
    )


def _default_warmups(proxy: Proxy) -> tuple[float, ...]:
    """Around the recipe's, as far as they end inside the first half of the stage; none where the recipe has none, or where
    fewer than the three that enclose an optimum are left."""
    found = tuple(w for w in octaves(proxy.base.warmup_tokens, 5) if 1 <= w <= proxy.draft.stages[0].tokens / 2)
    return found if len(set(map(round, found))) >= 3 else ()


def _around(asked: Sequence[float] | None, default: Sequence[float], option: str, kind: type[int | float]) -> tuple[Any, ...]:
    """Rising, each once, as ``kind``."""
    found = default if asked is None else asked
    if any(not 0 < value < float("inf") for value in found):
        raise ConfigError(f"{option} has a value of 0", "optima are sought in log2 of positive values", "leave it out", option)
    if len(set(found)) == 2:
        raise ConfigError("two values", "three or more enclose an optimum; one: every trial has it", "add values", option)
    return tuple(sorted({round(value) if kind is int else float(value) for value in found}))


# --- the phases ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Runner:
    """Runs settings: Specs, plan, engine, records."""

    proxy: Proxy
    manifest: DataManifest
    root: Path
    data: Path
    ask: Ask
    tell: Tell
    trials: dict[Setting, Trial] = field(default_factory=dict)

    def refuse_settings(self, settings: Settings) -> None:
        """ConfigError for a value that no recipe may have, before anything is trained, though its phase comes late."""
        base = settings.base
        for name, values in (("rate", settings.rates), ("warmup_tokens", settings.warmups), ("init_std", settings.init_stds)):
            for setting in crossed(base, **{name: values}):
                freeze(self.proxy.recipe(setting), self.manifest)

    def run(self, phase: str, settings: Sequence[Setting]) -> dict[Setting, TrialRecord]:
        """The records of ``settings``, after the engine has run those that had none."""
        new = [setting for setting in dict.fromkeys(settings) if setting not in self.trials]
        for setting in new:
            self.trials[setting] = Trial(setting, freeze(self.proxy.recipe(setting), self.manifest))
        plan = write_plan(self.root, list(self.trials.values()))
        waiting = [setting.id for setting in new if not has_record(self.root, setting.id)]
        before = len(new) - len(waiting)
        self.tell.phase(phase, len(new), before)
        with watched(self.root, waiting, before, self.tell):
            answer = self.ask("mup-trials", [str(plan), str(self.root), str(self.data)])
        if not isinstance(answer, dict) or not {"done", "skipped", "failed"} <= answer.keys():
            raise RunError(f"the engine's answer is {str(answer)[:200]}", "mup-trials counts done, skipped and failed trials")
        return read_records(self.root, [setting.id for setting in settings])


def run_sweep(runner: Runner, settings: Settings) -> Outcome:
    """All three phases, and ``sweep.json``."""
    runner.refuse_settings(settings)
    make_directory(runner.root, "directory for the sweep")
    claim(runner.root, runner.proxy.loaded.digest, runner.manifest.digest())
    first, second, third = PHASES
    records = runner.run(first, rate_settings(settings))
    if found := rest_settings(settings, records):
        records |= runner.run(second, found)
    if found := seed_settings(settings, records):
        records |= runner.run(third, found)
    outcome = outcome_of(settings, records)
    write_json(runner.root / SWEEP_FILE, dataclasses.asdict(_sweep(runner, settings, records, outcome)))
    return outcome


def most_trials(settings: Settings) -> dict[str, int]:
    """By phase, how many trials a sweep has at most: with each best rate between two others, and at no width all diverged."""
    base, seeds = settings.base, len(settings.seeds) - 1
    swept = ((settings.warmups, base.warmup_tokens), (settings.init_stds, base.init_std))
    rest = sum(len(values) - (own in values) for values, own in swept if len(values) > 1)
    curves = len(settings.parametrizations) * len(settings.all_widths)
    return dict(zip(PHASES, (curves * len(settings.rates), len(settings.widths) * rest, curves * 3 * seeds), strict=True))


def rate_settings(settings: Settings) -> list[Setting]:
    return crossed(settings.base, width=settings.all_widths, parametrization=settings.parametrizations, rate=settings.rates)


def best_rate(settings: Settings, records: Mapping[Setting, TrialRecord], parametrization: str, width: int) -> float | None:
    """Of phase 1: of its one seed, so that later seeds move no trial that depends on it. None where all rates diverged."""
    wanted = crossed(settings.base, parametrization=[parametrization], width=[width], rate=settings.rates)
    return best_value([records[setting].point("rate") for setting in wanted])


def rest_settings(settings: Settings, records: Mapping[Setting, TrialRecord]) -> list[Setting]:
    found: list[Setting] = []
    for width in settings.widths:
        rate = best_rate(settings, records, "mup", width)
        if rate is None:
            continue
        best = dataclasses.replace(settings.base, width=width, rate=rate)
        for name, values in (("warmup_tokens", settings.warmups), ("init_std", settings.init_stds)):
            found += crossed(best, **{name: values}) if len(values) > 1 else []
    return found


def seed_settings(settings: Settings, records: Mapping[Setting, TrialRecord]) -> list[Setting]:
    found: list[Setting] = []
    for base in crossed(settings.base, parametrization=settings.parametrizations, width=settings.all_widths):
        rate = best_rate(settings, records, base.parametrization, base.width)
        if rate is not None:
            place = settings.rates.index(rate)
            found += crossed(base, rate=settings.rates[max(0, place - 1) : place + 2], seed=settings.seeds[1:])
    return found


# --- sweep.json ---------------------------------------------------------------------------------------------------------


def _sweep(runner: Runner, settings: Settings, records: Mapping[Setting, TrialRecord], outcome: Outcome) -> Sweep:
    from headway import __version__

    loaded, draft = runner.proxy.loaded, runner.proxy.draft
    mup = loaded.recipe.model.mup
    assert mup is not None, "a proxy has a base width"
    return Sweep(
        recipe=loaded.path,
        name=loaded.recipe.name,
        recipe_digest=loaded.digest,
        manifest_digest=runner.manifest.digest(),
        settings=settings,
        mup=mup.model_dump(mode="json", exclude_none=True),
        matrix_rate_ratio=runner.proxy.matrix_rate(1.0),
        conditions=conditions(draft),
        trials=tuple(setting.id for setting in records),
        records_digest=records_digest(records),
        outcome=outcome.to_json(),
        versions={"headway": __version__},
    )


def read_sweep(root: Path, allowed: float = FACTOR) -> tuple[Sweep, Outcome]:
    """A finished sweep, judged anew from its records at the factor ``allowed``.

    ConfigError where there is none, RunError where the records are not those that it was written for.
    """
    path = root / SWEEP_FILE
    if not path.is_file():
        raise ConfigError(
            f"there is no finished sweep in {root}",
            f"a sweep that has ended leaves a {SWEEP_FILE}",
            "name the directory that headway mup sweep wrote, or run that command to its end",
        )
    sweep = from_plain(Sweep, read_json(path, "sweep"), str(path))
    if sweep.kind != "mup_sweep" or sweep.schema_version != SCHEMA_VERSION:
        raise RunError(
            f"{path} is a {sweep.kind} of schema {sweep.schema_version}",
            f"a sweep has kind mup_sweep and schema {SCHEMA_VERSION}",
            "run headway mup sweep again with the same options: it keeps the trials and writes the file anew",
        )
    records = read_records(root, sweep.trials)
    if records_digest(records) != sweep.records_digest or not records.keys() >= set(rate_settings(sweep.settings)):
        raise RunError(
            f"the trials in {root} are not those that {SWEEP_FILE} was written for",
            "a transfer rests on the records that were judged",
            "run headway mup sweep again with the same options: it judges them anew",
        )
    return sweep, outcome_of(sweep.settings, records, allowed)


def sweep_digest(sweep: Sweep) -> str:
    return digest_json(dataclasses.asdict(sweep))
