"""Where everything of a run lies. One run = one directory; many readers, one writer per file.

RUN/
  run.json              what this run is: name, drill or not, data directory, deployment, digests   (written once)
  spec.json             the frozen Spec                                                             (written once)
  recipe.toml           the recipe as written                                                       (written once)
  plan.json             the plan as predicted before the start                                      (written once)
  drill.json            faults to inject; only in runs created as drills
  lease/                epoch-000001.json, epoch-000001.beat      who owns the run
  events/               epoch-000001.jsonl                        the supervisor's records, one file per epoch
  segments/0001/        segment.json, steps.jsonl, trainer.log, error.json
  checkpoints/          g0001-s00000040/ ...                      see store/
  report/               report.html, report.md, plots
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.base.errors import ConfigError
from headway.base.files import read_json
from headway.recipe.spec import Spec


@dataclass(frozen=True)
class RunDirectory:
    """Paths of one run; opening checks that it is one."""

    root: Path

    @staticmethod
    def open(root: Path) -> RunDirectory:
        run = RunDirectory(Path(root))
        if not run.run_file.is_file():
            raise ConfigError(
                f"{root} is not a run directory",
                "a run directory holds run.json",
                "check the path, or start one with: headway run RECIPE",
            )
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
    def report(self) -> Path:
        return self.root / "report"

    def segment(self, number: int) -> Path:
        return self.segments / f"{number:04d}"

    def steps_file(self, segment: int) -> Path:
        return self.segment(segment) / "steps.jsonl"

    def info(self) -> dict[str, Any]:
        return read_json(self.run_file, "run description")

    def spec(self) -> Spec:
        return Spec.from_json(read_json(self.spec_file, "spec"))
