"""What a sweep leaves on disk: the plan that the engine works off, and one record per trial.

DIR/origin.json        of which recipe and data
DIR/plan.json          every trial asked for so far, each with the place of its Spec
DIR/specs/ID.json      what a trial trains, whole
DIR/trials/ID.json     how it ended; written by the engine, once, whole or not at all
DIR/sweep.json         what was asked, and what came out (``sweep.py``)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.base.digests import digest_json, is_sealed
from headway.base.errors import ConfigError, RunError
from headway.base.files import make_directory, read_json, write_json
from headway.base.plain import from_plain
from headway.experiment.grid import Setting
from headway.experiment.optimum import Point
from headway.recipe.spec import Spec

SCHEMA_VERSION = 2
"""Of a trial's record."""
ORIGIN_FILE = "origin.json"
PLAN_FILE, SPECS, TRIALS = "plan.json", "specs", "trials"


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """How one trial ended. ``loss``: held-out nats per token over all sources at the end, None where it diverged."""

    id: str
    parametrization: str
    width: int
    rate: float
    warmup_tokens: int
    init_std: float
    seed: int
    spec_digest: str
    tokens: int
    steps: int
    loss: float | None
    train_loss: float | None
    diverged: bool
    seconds: float
    versions: dict[str, Any]
    digest: str  # of everything else in the record
    kind: str = "mup_trial"
    schema_version: int = SCHEMA_VERSION

    @property
    def setting(self) -> Setting:
        return Setting(**{f.name: getattr(self, f.name) for f in dataclasses.fields(Setting)})

    def point(self, hyperparameter: str) -> Point:
        return Point(float(getattr(self, hyperparameter)), None if self.diverged else self.loss, self.seed)


@dataclass(frozen=True)
class Trial:
    """A setting, and the Spec that it stands for."""

    setting: Setting
    spec: Spec

    @property
    def id(self) -> str:
        return self.setting.id

    @property
    def spec_path(self) -> str:
        return f"{SPECS}/{self.id}.json"


def write_plan(root: Path, trials: Sequence[Trial]) -> Path:
    """The plan of ``trials`` with their Specs beside it. ConfigError where a record is of another Spec."""
    refuse_other_specs(root, trials)
    make_directory(root / SPECS, "directory for the specs")
    make_directory(root / TRIALS, "directory for the trials")
    for trial in trials:
        path = root / trial.spec_path
        if not path.exists() or read_json(path, "spec") != trial.spec.to_json():
            write_json(path, trial.spec.to_json())
    entries = [{"id": t.id, "spec": t.spec_path, **dataclasses.asdict(t.setting)} for t in trials]
    write_json(root / PLAN_FILE, {"kind": "mup_plan", "schema_version": 1, "trials": entries})
    return root / PLAN_FILE


def claim(root: Path, recipe_digest: str, manifest_digest: str) -> None:
    """Say whose sweep the directory is. ConfigError where it is another's, or holds anything else."""
    mine = {"kind": "mup_sweep_origin", "schema_version": 1, "recipe_digest": recipe_digest, "manifest_digest": manifest_digest}
    path = root / ORIGIN_FILE
    if path.exists():
        differ = [key for key, value in mine.items() if read_json(path, "origin of the sweep").get(key) != value]
        if differ:
            raise ConfigError(
                f"{root} is the sweep of another recipe or other data: {', '.join(differ)} differs",
                "a sweep compares trials of one recipe on one data set, and nothing of it is overwritten",
                "name another directory with --out",
            )
        return
    if any(root.iterdir()):
        raise ConfigError(f"{root} is not empty, and no sweep", "a sweep has a directory of its own", "name another with --out")
    write_json(path, mine)


def refuse_other_specs(root: Path, trials: Iterable[Trial]) -> None:
    """A trial that was already run was run as it is asked for now."""
    other = [t.id for t in trials if (found := read_record(root, t.id)) is not None and found.spec_digest != t.spec.digest()]
    if other:
        raise ConfigError(
            f"{root} holds trials of another recipe or other data: {len(other)} of those asked for, such as {other[0]}",
            "a sweep compares trials of one recipe on one data set",
            "name another directory with --out, or remove that one",
        )


def has_record(root: Path, trial_id: str) -> bool:
    return (root / TRIALS / f"{trial_id}.json").exists()


def read_record(root: Path, trial_id: str) -> TrialRecord | None:
    """None where the trial has not ended yet."""
    if not has_record(root, trial_id):
        return None
    path = root / TRIALS / f"{trial_id}.json"
    try:
        content = read_json(path, "trial record")
        record = from_plain(TrialRecord, content, str(path))
    except RunError as error:
        raise _no_record(path, error.problems[0].seen) from error
    if seen := _contradiction(record, content, trial_id):
        raise _no_record(path, seen)
    return record


def _no_record(path: Path, seen: str) -> RunError:
    return RunError(f"{path} is no record of this trial: {seen}", "a record says what was run", "remove it: it is run again")


def _contradiction(record: TrialRecord, content: dict[str, Any], trial_id: str) -> str:
    """Empty where it holds together."""
    seen = ""
    if record.kind != "mup_trial" or record.schema_version != SCHEMA_VERSION:
        seen = f"it is a {record.kind} of schema {record.schema_version}"
    elif not is_sealed(content):
        seen = "it was altered after the trial had ended: its digest is of other content"
    elif record.id != trial_id or record.setting.id != trial_id:
        seen = f"it is of trial {record.id}, with the settings of {record.setting.id}"
    elif not record.diverged and (record.loss is None or not math.isfinite(record.loss)):
        seen = f"its loss is {record.loss} and it did not diverge"
    return seen


def read_records(root: Path, ids: Iterable[str]) -> dict[Setting, TrialRecord]:
    """Of all trials named; RunError names those that have none."""
    found = {trial_id: read_record(root, trial_id) for trial_id in dict.fromkeys(ids)}
    missing = [trial_id for trial_id, record in found.items() if record is None]
    if missing:
        raise RunError(
            f"{len(missing)} of {len(found)} trials have no record in {root / TRIALS}, such as {missing[0]}",
            "a sweep is judged when all of its trials have ended",
            "run the same command again: it goes on with those that are missing",
        )
    return {record.setting: record for record in found.values() if record is not None}


def records_digest(records: Mapping[Setting, TrialRecord]) -> str:
    """Of what the trials measured; times and versions left out."""
    plain = [dataclasses.asdict(record) for _, record in sorted(records.items(), key=lambda item: item[0].id)]
    return digest_json([{k: v for k, v in record.items() if k not in ("seconds", "versions", "digest")} for record in plain])
