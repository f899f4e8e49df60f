"""``headway data bench RECIPE|RUN``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter, validators

from headway.base.errors import ConfigError
from headway.cli.options import DataOption, DeploymentOption, Json, Overrides

SAME = 0.97
"""Real updates at this share of the resident ones' speed wait for nothing."""
SATURATED = 0.9
"""A loader whose thread computes this share of its time would be faster with a faster core only."""


def bench(
    what: Annotated[str, Parameter(help="A recipe file or preset; or a run directory, for its own spec, data and deployment.")],
    /,
    *,
    data: DataOption = None,
    overrides: Overrides = None,
    deployment: DeploymentOption = None,
    step: Annotated[
        int, Parameter(metavar="N", help="Measure from this step of the run on, from 1.", validator=validators.Number(gte=1))
    ] = 1,
    seconds: Annotated[
        float, Parameter(metavar="S", help="How long to measure, about.", validator=validators.Number(gte=1, lte=3600))
    ] = 20.0,
    json: Json = False,
) -> None:
    """Say which limits a run, its input or its step, and what to do about it.

    Whole updates on a batch that stays in memory, the loader alone, and updates on fresh batches as a run takes them: on this
    machine, in one process, with real shapes and the real data. Nothing is kept.
    """
    from headway.cli.engine import ask_engine
    from headway.cli.output import print_json, say

    request = request_of(what, data, overrides, deployment) | {"first_step": step - 1, "seconds": seconds}
    found = ask_engine("bench-input", [], send=request)
    found |= {"of": what, "verdict": verdict(found)}
    if json:
        print_json(found)
    else:
        for line in lines(found):
            say(line)


def request_of(what: str, data: str | None, overrides: list[str] | None, deployment: Path | None) -> dict[str, Any]:
    """Spec, data and deployment: of a run as they are, or of a recipe."""
    from headway.cli.describe import describe, manifest_of
    from headway.data.freeze import freeze
    from headway.rundir.layout import RunDirectory
    from headway.rundir.segments import deployment_of

    if (Path(what) / "run.json").is_file():
        if overrides or deployment is not None:
            raise ConfigError(
                "--set or --deployment with a run", "a run has its own spec and deployment", "name the recipe in place of the run"
            )
        run = RunDirectory.open(Path(what))
        return {"spec": run.spec().to_json(), "data": data or run.info()["data"], "deployment": deployment_of(run)}
    description = describe(what, overrides, deployment)
    where, manifest = manifest_of(description, data)
    resolved = description.deployment.resolved()
    return {"spec": freeze(description.loaded, manifest).to_json(), "data": str(where), "deployment": resolved}


def verdict(found: dict[str, Any]) -> dict[str, str]:
    """``limit``: step, loader, storage or cores; with a reason in numbers and a way out."""
    resident, real = (found[name]["tokens_per_second"] for name in ("resident", "real"))
    loader, share = found["loader"]["first_touch"], found["real"]["tokens_per_second"] / found["resident"]["tokens_per_second"]
    again = found["loader"]["again"]["tokens_per_second"]
    ratio = f"the loader alone is {loader['tokens_per_second'] / resident:,.1f} times as fast as the step"
    if share >= SAME or (real >= found["resident"]["low"] and found["real"]["wait_share"] <= 1 - SAME):
        noise = "" if share >= SAME else ", which is within what the resident ones vary by"
        return {
            "limit": "step",
            "reason": f"real updates run at {share:.1%} of the speed that they have on resident input{noise}; {ratio}",
            "way_out": "input is no matter: a faster step makes a faster run (headway plan RECIPE shows what it is made of)",
        }
    if loader["tokens_per_second"] >= resident:
        return {
            "limit": "cores",
            "reason": f"real updates run at {share:.1%} of the resident ones although {ratio}: both compute on the same cores",
            "way_out": f"leave the loader a core: deployment.threads = {max(1, found['threads'] - 1)} (now {found['threads']})",
        }
    if loader["cpu_share"] >= SATURATED:
        return {
            "limit": "loader",
            "reason": f"its thread computes {loader['cpu_share']:.0%} of its time, and {ratio}; real updates: {share:.1%}",
            "way_out": "train more tokens per process and core, or longer sequences: a window costs more than its tokens",
        }
    way = (
        "give cache.size room for the coming chunks, fetch before the run (headway data audit URL), or a nearer storage"
        if found["remote"]
        else "put the data on a faster disk, or leave more memory to the page cache"
    )
    waits = f"the loader waits for storage {1 - loader['cpu_share']:.0%} of its time, and {ratio}"
    return {
        "limit": "storage",
        "reason": f"{waits}; over the same tokens again it is {again / loader['tokens_per_second']:,.1f} times as fast; "
        f"real updates: {share:.1%}",
        "way_out": way,
    }


def lines(found: dict[str, Any]) -> Iterator[str]:
    """A table, the prefetcher, and the verdict."""
    from headway.base.units import format_count
    from headway.cli.output import table

    loader = found["loader"]
    measured = [
        ("step on resident input", found["resident"], ""),
        ("loader alone, first touch", loader["first_touch"], f"{loader['first_touch']['cpu_share']:.0%} of a core"),
        ("loader alone, again", loader["again"], f"{loader['again']['cpu_share']:.0%} of a core"),
        ("step on real input", found["real"], f"waits {found['real']['wait_share']:.1%} of its time"),
    ]
    base = found["resident"]["tokens_per_second"]
    rows = [
        [name, format_count(what["tokens_per_second"]), f"{what['tokens_per_second'] / base:,.2f}", f"{what['steps']:,}", note]
        for name, what, note in measured
    ]
    yield f"step {found['first_step']:,} on: batches of {found['batch_sequences']:,} x {found['sequence_length']:,} tokens"
    yield ""
    yield from table(["measured", "tokens/s", "of resident", "steps", ""], rows, left=(0, 4))
    counts = found["prefetcher"]
    if counts["steps"]:
        ready = counts["ready"] / counts["steps"]
        yield f"queue: {ready:.1f} of {counts['depth']} batches ready when asked for, none {counts['empty']:,} times"
    yield ""
    said = found["verdict"]
    yield f"limit: {said['limit']}: {said['reason']}"
    yield f"{said['way_out']}"
