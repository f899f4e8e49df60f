"""A small real run: two text sources, a two-layer decoder; every test drives the real supervisor and trainer."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from pathlib import Path

from headway.data.freeze import freeze
from headway.data.manifest import DataManifest
from headway.recipe.deployment import AXES, Deployment
from headway.recipe.load import load_recipe
from headway.rundir.create import RunInfo, create_run
from headway.rundir.events import read_events
from headway.rundir.layout import RunDirectory
from headway.rundir.metrics import read_chain_rows, read_steps
from headway.rundir.segments import current_chain, read_segments
from headway.supervise.supervisor import Outcome, SuperviseOptions, supervise

RECIPE = """
kind = "recipe"
schema_version = 1
name = "small"
seed = 7

[objective]
why = "to be tested"

[tokenizer]
kind = "bpe"
vocabulary = 400

[model]
layers = 2
width = 64
heads = 4
kv_heads = 2
ffn_width = 128
tied_embeddings = true

[data]
held_out = "600"

[[data.sources]]
name = "numbers"
kind = "text-tree"
path = "{numbers}"
include = ["*.txt"]
licence = "none"
cap_epochs = 8.0

[[data.sources]]
name = "words"
kind = "text-tree"
path = "{words}"
include = ["*.txt"]
licence = "none"
cap_epochs = 8.0

[[stages]]
name = "main"
tokens = "{main_tokens}"
sequence = 64
ramp = [{{ from = "0", batch = "256" }}, {{ from = "1024", batch = "512" }}]
rate = {{ warmup = "1024", shape = "constant" }}
mixture = {{ numbers = 0.7, words = 0.3 }}

[[stages]]
name = "anneal"
tokens = "3072"
sequence = 64
batch = "512"
rate = {{ shape = "linear", start = 1.0, end = 0.0 }}
mixture = {{ numbers = 0.3, words = 0.7 }}

[optimizer]
kind = "adamw"
peak_rate = 3e-3

[evaluation]
every = "4096"
tokens_per_source = "512"
prompts = ["one two"]
sample_tokens = 4
"""


def write_sources(root: Path) -> None:
    """Two kinds of text with something to learn; the same on every machine."""
    generator = random.Random(20)
    words = ["one", "two", "three", "red", "green", "blue", "sail", "wind", "water", "rope", "north", "south"]
    for source in ("numbers", "words"):
        (root / source).mkdir(parents=True)
        for number in range(60):
            if source == "numbers":
                start, step = generator.randrange(100), generator.randrange(1, 9)
                text = " ".join(str(start + step * k) for k in range(120))
            else:
                text = " ".join(generator.choice(words) for _ in range(160)) + "."
            (root / source / f"{number:03d}.txt").write_text(text)


@dataclass(frozen=True)
class Bench:
    """Builds runs of the small recipe on one set of data."""

    root: Path
    data: Path
    recipe_text: str

    def spec(self, overrides: tuple[str, ...] = ()):
        path = self.root / "small.toml"
        path.write_text(self.recipe_text)
        return freeze(load_recipe(path, list(overrides)).recipe, DataManifest.load(self.data))

    def run(
        self,
        where: Path,
        faults: list[dict] | None = None,
        every_steps: int = 4,
        overrides=(),
        checkpoints: dict | None = None,
        layouts: dict[str, dict[str, int]] | None = None,
        fleet: dict | None = None,
        corruption: dict[str, int] | None = None,
        per_step: str = "off",
    ) -> RunDirectory:
        deployment = self.deployment(layouts, {"every_steps": every_steps, **(checkpoints or {})}, fleet, corruption, per_step)
        return create_run(
            where,
            spec=self.spec(overrides),
            recipe_text=self.recipe_text,
            info=RunInfo(
                data=str(self.data),
                deployment=deployment.resolved(),
                recipe_path="small.toml",
                overrides=overrides,
                versions={},
                author="test",
            ),
            drill_faults=faults,
        )

    @staticmethod
    def deployment(
        layouts: dict[str, dict[str, int]] | None = None,
        checkpoints: dict | None = None,
        fleet: dict | None = None,
        corruption: dict[str, int] | None = None,
        per_step: str = "off",
    ) -> Deployment:
        """One thread per process, and as many processes as the layouts (stage -> axes) ask for; with a fleet one per node."""
        worlds = {math.prod(axes.get(axis, 1) for axis in AXES) for axes in (layouts or {}).values()} or {1}
        return Deployment.model_validate(
            {
                "threads": 1,
                **({"nodes": worlds.pop(), "fleet": fleet} if fleet else {"processes_per_node": worlds.pop()}),
                "layouts": layouts or {},
                "checkpoints": {"every_steps": 4, "keep_last": 3, "when_busy": "wait"} | (checkpoints or {}),
                "state_digest_every": 1,
                "supervise": {"corruption": corruption or {}, "per_step": per_step},
            }
        )

    def go(
        self, run: RunDirectory, on_record=None, layouts: dict[str, dict[str, int]] | None = None, spike=None, **options
    ) -> Outcome:
        """``layouts``: go on under these. ``spike``: the answer to the one at which it stopped."""
        chosen = SuperviseOptions(**{"backoff_seconds": 0.0, **options})
        deployment = None if layouts is None else self.deployment(layouts).resolved()
        return supervise(run, options=chosen, on_record=on_record, deployment=deployment, spike=spike)


@dataclass(frozen=True)
class Trace:
    """What a finished run is compared by: the committed steps' losses and digests, and the final state."""

    losses: tuple[float, ...]
    digests: tuple[str, ...]
    final: str


def trace(run: RunDirectory) -> Trace:
    chain = current_chain(read_segments(run))
    rows = [row for row in read_chain_rows(run, chain).kept if row["kind"] == "step"]
    end = [row for row in read_steps(run, chain[-1].id) if row["kind"] == "end"][-1]
    return Trace(tuple(row["loss"] for row in rows), tuple(row["digest"] for row in rows), end["digest"])


def events_of(run: RunDirectory) -> list[dict]:
    return read_events(run)
