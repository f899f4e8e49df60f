"""Surviving faults in a deployment: what can be stated, what contradicts itself, what is planned and not run."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from headway.base.errors import ConfigError
from headway.cli.reference import SURVIVAL_EXAMPLE
from headway.plan.failure.faults import Kind, published_faults
from headway.recipe.deployment import ALL_FAULTS, STOPPING, Deployment, FaultName
from headway.recipe.load import load_deployment

CLUSTER = ("nodes=4", "processes_per_node=8", "layouts.default.dp_shard=32")
REPAIR = "failures.repair=12h"
TIER = {"name": "host memory", "every": "1min", "cost": "200ms", "restore": "5s", "survives": ["process"]}
MEMORY = TIER | {"survives": ["process"]}
DISK = TIER | {"name": "local disk", "every": "5min", "survives": ["process", "network"]}


def toml(value: object) -> str:
    """Inline TOML of plain data."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def planned(*settings: str) -> Deployment:
    return load_deployment(None, [*CLUSTER, *settings], runnable=False)


def tiers(*given: dict) -> str:
    return f"checkpoints.tiers={toml(list(given))}"


def pauses(*given: tuple[str, str]) -> str:
    return f"failures.pauses={toml([{'what': f'work {i}', 'every': e, 'length': n} for i, (e, n) in enumerate(given)])}"


def test_the_example_of_the_reference_page_is_what_it_says(tmp_path: Path):
    path = tmp_path / "d.toml"
    path.write_text("nodes = 4\nprocesses_per_node = 8\n" + SURVIVAL_EXAMPLE + "\n[layouts.default]\ndp_shard = 32\n")
    deployment = load_deployment(path, runnable=False)
    memory, disk = deployment.checkpoints.tiers
    assert (memory.every, memory.cost, memory.restore, memory.keep, disk.keep) == (60, 0.2, 5, 2, 1)
    assert (memory.outlives, disk.outlives) == ({"process"}, {"process", "network"})
    (pause,) = deployment.failures.pauses
    assert (pause.what, pause.every, pause.length) == ("firmware", 30 * 86_400, 4 * 3_600)
    assert deployment.failures.elastic.reconfigure == 90
    assert deployment.failures.elastic.pace is None
    page = (Path(__file__).parents[2] / "docs/reference/deployment.md").read_text()
    assert SURVIVAL_EXAMPLE in page


def test_names_of_faults_are_those_that_are_simulated():
    made = {fault.name: fault.kind for fault in published_faults()}
    assert made.keys() | {"domain"} == ALL_FAULTS
    assert {name for name, kind in made.items() if kind is Kind.STOP} | {"domain"} == STOPPING
    assert set(get_args(FaultName)) == ALL_FAULTS | {Kind.STOP.value}


def test_stop_names_all_faults_that_end_the_job():
    tier = TIER | {"survives": ["stop"]}
    assert planned(tiers(tier)).checkpoints.tiers[0].outlives == STOPPING
    both = TIER | {"survives": ["stop", "silent"]}
    assert planned(tiers(both)).checkpoints.tiers[0].outlives == ALL_FAULTS


def test_what_may_be_stated():
    """Neighbours of what is refused below."""
    partner = DISK | {"name": "partner's memory", "every": "1min", "survives": ["process", "node"]}
    flash = TIER | {"name": "flash", "every": "10min", "survives": ["stop", "silent"], "keep": 30}
    archive = TIER | {"name": "archive", "every": "20min", "survives": ["silent"], "keep": 50}
    quick = TIER | {"name": "quick", "every": "5min", "restore": "1s"}  # no more than memory, but read faster
    for given in ([MEMORY, DISK], [MEMORY, partner], [MEMORY, flash, archive], [MEMORY, quick]):
        assert len(planned(tiers(*given), "checkpoints.every=30min").checkpoints.tiers) == len(given)
    assert len(planned(pauses(("2h", "59min"), ("2h", "59min"))).failures.pauses) == 2
    assert planned(REPAIR, "failures.elastic={reconfigure='11h', pace=0.5}").failures.elastic.pace == 0.5


@pytest.mark.parametrize(
    ("settings", "seen", "rule"),
    [
        ([tiers(TIER | {"survives": []})], "host memory survives nothing", "nothing is ever restored"),
        ([tiers(TIER | {"cost": "60s"})], "blocks training for 1 min 0 s every 1 min 0 s", "takes less time than passes"),
        ([tiers(DISK, MEMORY)], "host memory every 1 min 0 s stands after local disk", "tiers stand in order"),
        ([tiers(MEMORY, DISK | {"name": "host memory"})], "two tiers are called host memory", "a name of its own"),
        ([tiers(DISK | {"every": "1min"}, MEMORY)], "survives nothing that local disk does not", "or keeps longer"),
        (
            [tiers(MEMORY | {"survives": ["silent"], "keep": 20}, MEMORY | {"name": "b", "survives": ["silent"], "keep": 9})],
            "b survives nothing that host memory does not",
            "keeps longer",
        ),
        ([tiers(DISK), "checkpoints.every=4min"], "every 5 min 0 s, the storage every 4 min 0 s", "more often than that"),
        (
            [tiers(DISK | {"survives": ["stop", "silent"]}), "checkpoints.every=5min"],
            "survives everything and is written every 5 min 0 s, as the storage is",
            "the storage is the last tier itself",
        ),
        ([pauses(("1h", "1h"))], "work 0 takes 1 h 0 min every 1 h 0 min", "shorter than the time"),
        ([pauses(("2h", "1h"), ("2h", "1h"))], "planned pauses take 100 % of the time", "leave time to train"),
        (["failures.elastic={reconfigure='1min'}"], "no repair time says when", "weighed against waiting"),
        ([REPAIR, "failures.elastic={reconfigure='12h'}"], "shrinking takes 12 h 0 min", "before the repair"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_contradictions_are_findings(settings, seen, rule):
    with pytest.raises(ConfigError) as error:
        planned(*settings)
    (problem,) = error.value.problems
    assert seen in problem.seen
    assert rule in problem.rule


def test_one_node_cannot_shrink():
    with pytest.raises(ConfigError, match="a job on one node shrinks"):
        load_deployment(None, ["failures.repair=1h", "failures.elastic={reconfigure='1s'}"], runnable=False)


@pytest.mark.parametrize(
    "setting",
    [
        tiers(TIER | {"survives": ["fire"]}),
        tiers(TIER | {"every": "0s"}),
        tiers(TIER | {"every": 60}),
        tiers(TIER | {"keep": 0}),
        tiers(TIER | {"costs": "1s"}),
        tiers({key: value for key, value in TIER.items() if key != "survives"}),
        pauses(("1h", "0s")),
        "failures.elastic={}",
        "failures.elastic={reconfigure='1s', pace=1.0}",
        "failures.elastic={reconfigure='1s', pace=0.0}",
        "failures.elastic=true",
    ],
)
def test_fields_are_strict(setting):
    with pytest.raises(ConfigError):
        planned(REPAIR, setting)


def test_a_finding_names_the_line(tmp_path: Path):
    path = tmp_path / "d.toml"
    path.write_text("[failures]\n[[failures.pauses]]\nwhat = 'x'\nevery = '1h'\nlength = '2h'\n")
    with pytest.raises(ConfigError) as error:
        load_deployment(path)
    assert f"{path}:5" in [problem.where for problem in error.value.problems]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[checkpoints.adaptive]\nmost = '9min'\nleast = '10min'\n", 3),
        ("[checkpoints.adaptive]\nleast = '2h'\n", 2),
        ("[checkpoints]\n[checkpoints.adaptive]\nmost = '30s'\n", 3),
        ("[checkpoints]\nkeep_last = 3\nadaptive = {least = '2h', most = '1h'}\n", 3),
    ],
    ids=["both", "least", "most", "inline"],
)
def test_bounds_of_the_trainers_choice_leave_a_choice(tmp_path: Path, text, line):
    """Stated or by default; the line is that of the bound that somebody wrote."""
    path = tmp_path / "d.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_deployment(path)
    (problem,) = error.value.problems
    assert problem.where == f"{path}:{line}"
    assert problem.seen.startswith("saves come at least ")
    assert "least is not above most" in problem.rule
    assert "checkpoints.adaptive.least" in problem.way_out


def test_bounds_may_be_equal():
    adaptive = load_deployment(None, ["checkpoints.adaptive={least='10min', most='10min'}"]).checkpoints.adaptive
    assert (adaptive.least, adaptive.most) == (600, 600)


@pytest.mark.parametrize(
    ("settings", "seen"),
    [
        ([tiers(TIER)], "checkpoints.tiers has 1 entry"),
        ([pauses(("2h", "1h"), ("9h", "1h"))], "failures.pauses has 2 entries"),
        (["failures.elastic={reconfigure='1s'}", REPAIR, "nodes=2", "layouts.default.dp_shard=2"], "failures.elastic is stated"),
        (["checkpoints.every=30min"], "checkpoints.every = 1800.0"),
    ],
)
def test_what_is_planned_is_not_run(settings, seen):
    with pytest.raises(ConfigError) as error:
        load_deployment(None, settings)
    assert seen in [problem.seen for problem in error.value.problems if "planned, not run" in problem.rule]
    assert load_deployment(None, settings, runnable=False) is not None


def test_stating_nothing_changes_nothing_that_runs():
    assert load_deployment(None, ["failures.repair=12h", "failures.every=3h", "failures.spares=2"]).failures.pauses == ()
