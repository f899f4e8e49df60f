"""``headway prove [RECIPE]``: on this machine, does a small model of the recipe's architecture train alike under every layout?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from headway.base.errors import EXIT_FINDINGS, EXIT_OK, ConfigError
from headway.cli.options import Json, Overrides

if TYPE_CHECKING:
    from headway.recipe.spec import Spec

EVIDENCE = "prove.json"
LEAST_RANKS, MOST_RANKS, RANK_BYTES = 4, 8, 2**30
"""Processes that are used where nobody says: as many as there are cores, and a GiB for each."""
STEPS, QUICK_STEPS = 20, 6
COLUMNS = ("initial weights", "loss", "gradients", "norm", "update", "curve")


def prove(
    recipe: Annotated[str, Parameter(help="A recipe file, the name of a preset, or a run directory.")] = "demo",
    /,
    *,
    layout: Annotated[
        list[str] | None,
        Parameter(
            metavar="LAYOUT",
            negative="",
            help="A layout to prove instead of the list: sizes of the mesh axes (pp, dp_replicate, dp_shard, cp, tp, ep), such "
            "as dp_shard=2,tp=2. Repeatable.",
        ),
    ] = None,
    ranks: Annotated[
        int | None,
        Parameter(metavar="N", help="Most processes to use. Default: one per core, by memory; at least 4, at most 8."),
    ] = None,
    steps: Annotated[int | None, Parameter(metavar="N", help="Steps of a curve. Default: 20, quick: 6.")] = None,
    quick: Annotated[bool, Parameter(negative="", help="A few layouts only, and short curves.")] = False,
    out: Annotated[
        Path | None,
        Parameter(metavar="DIR", help="Where prove.json is written. Default: prove-NAME, or the run directory."),
    ] = None,
    overrides: Overrides = None,
    json: Json = False,
) -> int:
    """Prove on this machine that layouts do not change the mathematics.

    A small model of the recipe's architecture is trained under each layout and on one process: initial weights, loss, the raw
    gradient of every parameter, norm, update and curve must agree. Then a training is killed and goes on from its checkpoint,
    under the same layout to the bit, and under others. Needs no data. Exit code 1 where anything differs.
    """
    from headway.base.files import make_directory, write_json
    from headway.cli.engine import require_engine
    from headway.cli.output import print_json, say

    require_engine()
    spec, directory = described(recipe, overrides or ())
    layouts = [read_layout(text) for text in layout or ()]
    request = {
        "spec": spec.to_json(),
        "layouts": layouts,
        "ranks": ranks or most_ranks(layouts),
        "steps": steps or (QUICK_STEPS if quick else STEPS),
        "quick": quick,
    }
    _check_counts(ranks, steps)
    directory = out or directory
    evidence = _measure(request, to_stderr=json) | {"recipe": spec.name, "spec_digest": spec.digest()}
    make_directory(directory, "directory for the evidence")
    write_json(directory / EVIDENCE, evidence)
    if json:
        print_json(evidence | {"file": str(directory / EVIDENCE)})
    else:
        for line in proof_lines(evidence, directory / EVIDENCE):
            say(line)
    return EXIT_OK if evidence["holds"] else EXIT_FINDINGS


def described(recipe: str, overrides: Sequence[str]) -> tuple[Spec, Path]:
    """The Spec, and where evidence goes when nobody says: a run's own and its directory, or a draft of the recipe."""
    from headway.cli.describe import split_overrides
    from headway.recipe.load import load_recipe
    from headway.recipe.resolve import resolve
    from headway.recipe.trainable import refuse_untrainable
    from headway.rundir.layout import RunDirectory

    for_recipe, for_deployment = split_overrides(overrides)
    if for_deployment:
        rule = "layouts are proven one by one, whatever the deployment says"
        raise ConfigError(f"--set deployment.{for_deployment[0]}", rule, "name layouts with --layout", "--set")
    if (Path(recipe) / "run.json").is_file():
        if for_recipe:
            raise ConfigError(f"--set {for_recipe[0]} for a run", "a run's spec is frozen", "prove the recipe instead", "--set")
        run = RunDirectory.open(Path(recipe))
        return run.spec(), run.root
    loaded = load_recipe(recipe, for_recipe)
    spec = resolve(loaded, None)
    refuse_untrainable(spec.precision, loaded.locate, spec.model)
    return spec, Path(f"prove-{spec.name}")


def read_layout(text: str) -> dict[str, Any]:
    """``dp_shard=2,tp=2`` -> sizes by name. ConfigError for what no layout has, and for what only plans use."""
    from dataclasses import replace

    from headway.plan.layout.stated import stated_fields
    from headway.recipe.engine_layouts import NAMES

    try:
        stated = stated_fields(",".join(text.replace(",", " ").split()))
    except ConfigError as error:
        raise ConfigError([replace(problem, where=f"--layout {text}") for problem in error.problems]) from None
    only_planned = [name for name in stated if name not in NAMES]
    if only_planned:
        raise ConfigError(f"--layout {text}", f"{only_planned[0]} is for plans", f"fields here are {', '.join(NAMES)}")
    return {name: str(value) if isinstance(value, str) else value for name, value in stated.items()}


def most_ranks(layouts: Sequence[dict[str, Any]]) -> int:
    """By cores and memory; what the layouts named need, where there are any."""
    import os

    from headway.recipe.engine_layouts import Sizes
    from headway.store.writer.memory import available_bytes

    if layouts:
        return max(Sizes(**layout).world for layout in layouts)
    room = (available_bytes() or LEAST_RANKS * RANK_BYTES) // RANK_BYTES
    return max(LEAST_RANKS, min(MOST_RANKS, len(os.sched_getaffinity(0)), room))


def _check_counts(ranks: int | None, steps: int | None) -> None:
    if ranks is not None and not 2 <= ranks <= 64:
        raise ConfigError(f"--ranks {ranks}", "layouts need at least 2 processes, and one machine runs at most 64", "--ranks 4")
    if steps is not None and not 2 <= steps <= 60:
        raise ConfigError(f"--steps {steps}", "a curve has at least 2 steps, and at most 60", "--steps 20")


def _measure(request: dict[str, Any], *, to_stderr: bool) -> dict[str, Any]:
    """The engine's evidence, with a line for each layout as it is measured."""
    from tempfile import TemporaryDirectory

    from headway.base.files import write_json
    from headway.cli import engine
    from headway.cli.output import say, say_aside

    found: list[dict[str, Any]] = []

    def hear(record: dict[str, Any]) -> None:
        found.append(record)
        for line in progress_lines(record):
            (say_aside if to_stderr else say)(line)

    with TemporaryDirectory(prefix="headway-prove-") as directory:
        write_json(Path(directory) / "request.json", request)
        engine.follow_engine("prove", [str(Path(directory) / "request.json")], hear)
    return found[-1]


def progress_lines(record: dict[str, Any]) -> Iterator[str]:
    if record["kind"] == "begin":
        names = ", ".join(record["layouts"]) or "none"
        yield f"- layouts: {names}; {record['steps']} steps each, on up to {record['ranks']} processes"
    elif record["kind"] == "ready":
        yield f"- {record['ranks']} processes started, {record['seconds']:.1f} s"
    elif record["kind"] in ("layout", "continuation") and record["verdict"] != "not run":
        seconds = "" if record["seconds"] is None else f", {record['seconds']:.1f} s"
        yield f"- {record['name']}: {record['verdict']}{seconds}"


def proof_lines(evidence: dict[str, Any], file: Path) -> Iterator[str]:
    """The table, what differs and where, what was not run and why, and the verdict."""
    from headway.cli.output import table

    measured = [record for record in evidence["layouts"] if record["findings"]]
    yield ""
    yield from table(["layout", *COLUMNS, "verdict"], [_row(record) for record in measured], left=(0, len(COLUMNS) + 1))
    tolerances = ", ".join(f"{what} {evidence['tolerances'][what]['tolerance']:g}" for what in COLUMNS)
    yield "largest differences, relative to what is compared; * above the tolerance"
    yield f"tolerances: {tolerances}; in 16 bits {evidence['wider_in_16_bits']:,.0f} times as wide"
    yield ""
    rows = [[record["name"], *_continued(record), record["verdict"]] for record in evidence["continuations"]]
    if rows:
        yield from table(["killed, and gone on", "state", "curve", "verdict"], rows, left=(0, 1, 3))
        yield ""
    yield from _failures(evidence)
    not_run = [record for record in evidence["layouts"] if record["verdict"] == "not run"]
    for reason in dict.fromkeys(record["reason"] for record in not_run):
        yield f"not run: {', '.join(record['name'] for record in not_run if record['reason'] == reason)}: {reason}"
    yield f"verdict: {'every layout gives the run of one process' if evidence['holds'] else 'NOT the run of one process'}"
    yield f"written: {file}"


def _row(record: dict[str, Any]) -> list[str]:
    by_kind = {finding["what"]: finding for finding in record["findings"]}
    return [record["name"], *(_difference(by_kind.get(what)) for what in COLUMNS), record["verdict"]]


def _continued(record: dict[str, Any]) -> tuple[str, str]:
    by_exact = {finding["tolerance"] == 0 and finding["what"].startswith("the same"): finding for finding in record["findings"]}
    state, curve = by_exact.get(True), by_exact.get(False)
    return ("" if state is None else "the same bits" if state["holds"] else "OTHER bits"), _difference(curve)


def _difference(finding: dict[str, Any] | None) -> str:
    if finding is None:
        return "-"
    difference = finding["difference"]
    shown = "none" if difference is None else "0" if difference == 0 else f"{difference:.1e}"
    return shown + ("" if finding["holds"] else " *")


def _failures(evidence: dict[str, Any]) -> Iterator[str]:
    for record in [*evidence["layouts"], *evidence["continuations"]]:
        if record["verdict"] == "failed":
            yield f"failed: {record['name']}: {record['reason']}"
        for finding in record["findings"]:
            if not finding["holds"]:
                apart = "nothing to compare" if finding["difference"] is None else f"{finding['difference']:.1e}"
                yield (
                    f"differs: {record['name']}: {finding['what']}: {apart}, tolerance {finding['tolerance']:.0e}, "
                    f"at {finding['where']}"
                )
