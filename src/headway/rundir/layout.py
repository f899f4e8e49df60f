"""Where everything of a run lies. One run = one directory; many readers, one writer per file.

RUN/
  run.json              what this run is: name, drill or not, data directory, deployment, digests   (written once)
  spec.json             the frozen Spec                                                             (written once)
  recipe.toml           the recipe as written                                                       (written once)
  plan.json             the plan as predicted before the start                                      (written once)
  drill.json            faults to inject; only in runs created as drills
  lease/                epoch-000001.json, epoch-000001.beat      who owns the run
  events/               epoch-000001.jsonl                        the supervisor's records, one file per epoch
  segments/0001/        segment.json, steps.jsonl, trainer.log, error.json; of further ranks trainer-00001.log, stalls-00001.jsonl
                        ranks/00000.beat: heartbeats; ranks.jsonl: times of all ranks, by the supervisor
  checkpoints/          g0001-s00000040/ ...                      see store/
  requests/             000001.json                               what people ask of the owner: stop, pause, resume
  fleet/                HOST.log                                  what the commands said that start agents on nodes
  report/               report.html, report.md, plots
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.base.errors import ConfigError, RunError
from headway.base.files import read_json
from headway.recipe.digests import changed_sections, section_digests
from headway.recipe.spec import Spec

_EPOCH_FILE = re.compile(r"epoch-(\d{6,})\.(?:json|jsonl)", re.ASCII)

_REQUIRED: dict[str, type] = {
    "name": str,
    "run_id": str,
    "drill": bool,
    "data": str,
    "deployment": dict,
    "spec_digest": str,
}
_OPTIONAL: dict[str, type] = {
    "created": dict,
    "digests": dict,
    "recipe_digest": str,
    "recipe_path": str,
    "deployment_path": str,
    "overrides": list,
    "versions": dict,
    "author": str,
}
"""What ``run.json`` holds beside its kind and version. Readers rely on the required keys, and do without the optional ones."""


def epoch_of(path: Path) -> int:
    """The epoch that a file of ``lease/`` or ``events/`` belongs to; 0 for a file that is named otherwise, such as a copy."""
    match = _EPOCH_FILE.fullmatch(path.name)
    return int(match[1]) if match else 0


@dataclass(frozen=True)
class RunDirectory:
    """Paths of one run; opening checks that it is one."""

    root: Path

    @staticmethod
    def open(root: Path) -> RunDirectory:
        run = RunDirectory(Path(root))
        if not run.run_file.is_file():
            inside = RunDirectory(run.root / "run")  # of the demo's directory
            found = inside.run_file.is_file()
            way_out = f"use {inside.root}" if found else "check the path, or start one with: headway run RECIPE"
            raise ConfigError(f"{root} is not a run directory", "a run directory holds run.json", way_out)
        return run

    @property
    def run_file(self) -> Path:
        return self.root / "run.json"

    @property
    def spec_file(self) -> Path:
        return self.root / "spec.json"

    @property
    def recipe_file(self) -> Path:
        return self.root / "recipe.toml"

    @property
    def plan_file(self) -> Path:
        return self.root / "plan.json"

    @property
    def lease(self) -> Path:
        return self.root / "lease"

    @property
    def events(self) -> Path:
        return self.root / "events"

    @property
    def segments(self) -> Path:
        return self.root / "segments"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def requests(self) -> Path:
        return self.root / "requests"

    @property
    def report(self) -> Path:
        return self.root / "report"

    def segment(self, number: int) -> Path:
        return self.segments / f"{number:04d}"

    def steps_file(self, segment: int) -> Path:
        return self.segment(segment) / "steps.jsonl"

    def stalls_file(self, segment: int, rank: int) -> Path:
        """Where a rank that writes no other rows says that it waits for data."""
        return self.segment(segment) / f"stalls-{rank:05d}.jsonl"

    def info(self) -> dict[str, Any]:
        """``run.json``, proven to have the keys and types that readers rely on."""
        value = read_json(self.run_file, "run description")
        wrong = _description_problems(value)
        if wrong:
            raise RunError(
                f"run description is damaged: {'; '.join(wrong)}",
                f"a run description has the keys and types that it was created with; path: {self.run_file}",
                "restore the file from a copy; a change of the deployment is a new run with this one as its parent",
            )
        return value

    def spec(self) -> Spec:
        """The frozen Spec; RunError when it is not the one that the run was created with, naming the parts that differ."""
        spec, info = Spec.from_json(read_json(self.spec_file, "spec")), self.info()
        if spec.digest() != info["spec_digest"]:
            changed = (
                changed_sections(info["digests"], section_digests(spec)) if "digests" in info else ["which part is not recorded"]
            )
            raise RunError(
                f"{self.spec_file} is not the spec that this run was created with",
                f"run.json records its digests; changed: {', '.join(changed) or 'name, lineage or format'}",
                "restore the file; a change of the recipe is a new run with this one as its parent",
            )
        return spec


def _description_problems(value: Any) -> list[str]:
    """What keeps ``value`` from being a run description."""
    if not isinstance(value, dict):
        return ["no JSON object"]
    expected = {"kind": "run", "schema_version": 1}
    wrong = [f"{key} is {value.get(key)!r}, not {right!r}" for key, right in expected.items() if value.get(key) != right]
    if missing := [key for key in _REQUIRED if key not in value]:
        wrong.append(f"without {', '.join(missing)}")
    kinds = {**_REQUIRED, **_OPTIONAL}
    wrong += [f"{key} is no {cls.__name__}" for key, cls in kinds.items() if key in value and type(value[key]) is not cls]
    deployment = value.get("deployment")
    stated = deployment if isinstance(deployment, dict) else {}
    sizes = {key: stated[key] for key in ("nodes", "processes_per_node") if key in stated}
    return wrong + [f"deployment.{key} is {size!r}" for key, size in sizes.items() if type(size) is not int or size < 1]
