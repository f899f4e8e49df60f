"""``headway checkpoint prune RUN``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from cyclopts import Parameter

from headway.base.errors import EXIT_FINDINGS, EXIT_OK, EnvironmentFault
from headway.cli.options import Json, RunArgument


def prune(
    run: RunArgument,
    /,
    *,
    dry_run: Annotated[bool, Parameter(negative="", help="Say what would go and why, and delete nothing.")] = False,
    json: Json = False,
) -> int:
    """Delete what the run's own policy lets go: keep_last, permanent_every, keep_best, budget of its deployment.

    A run that is going does that itself after each save, so only a dry run is allowed then. Nothing is deleted before a newer
    checkpoint was read back from the storage and verified; what was damaged, late or rolled back is evidence and stays. The
    exit code is 1 when what stays takes more than the budget.
    """
    from headway.cli.output import print_json, say
    from headway.rundir.layout import RunDirectory
    from headway.rundir.segments import current_chain, read_segments
    from headway.store.policy import policy_of
    from headway.store.retention import carry_out, plan_retention

    directory = RunDirectory.open(run)
    policy = policy_of(directory)
    if not dry_run:
        refuse_if_owned(directory)
    plan = plan_retention(directory, current_chain(read_segments(directory)), policy)
    gone = None if dry_run else carry_out(directory, plan)
    if json:
        print_json(facts(str(run), plan, gone))
    else:
        for line in lines(plan, gone):
            say(line)
    return EXIT_FINDINGS if plan.note else EXIT_OK


def refuse_if_owned(run: Any) -> None:
    """Somebody who owns the run prunes it himself."""
    from headway.base.clocks import SystemClock
    from headway.rundir.lease import glance_seconds, observe

    view = observe(run, glance_seconds(run), SystemClock())
    if view.state == "held":
        raise EnvironmentFault(
            f"{run.root} is owned by process {view.owner.get('pid', '?')} on {view.owner.get('host', '?')}",
            "the owner of a run deletes its checkpoints itself, after each save",
            f"look with --dry-run; or prune after: headway stop {run.root}",
        )


def facts(run: str, plan: Any, gone: list[str] | None) -> dict[str, Any]:
    """Plain values. ``gone`` None: a dry run."""
    from dataclasses import asdict

    known = {"kind": "checkpoint_prune", "schema_version": 1, "run": run, "dry_run": gone is None}
    lists = {"kept": [asdict(item) for item in plan.kept], "going": [asdict(item) for item in plan.going]}
    refused = [{"checkpoint": name, "reason": reason} for name, reason in plan.refused]
    return known | lists | {"deleted": gone or [], "verified": plan.anchor, "refused": refused, "note": plan.note}


def lines(plan: Any, gone: list[str] | None) -> Iterator[str]:
    """What stays and what goes, each with its reason."""
    from headway.base.units import format_bytes
    from headway.cli.output import table

    word = {item.name: "would go" if gone is None else "deleted" if item.name in gone else "spared" for item in plan.going}
    rows = [[item.name, format_bytes(item.nbytes), word[item.name], item.reason] for item in plan.going]
    rows += [[item.name, format_bytes(item.nbytes), "stays", "; ".join(item.reasons)] for item in plan.kept]
    if rows:
        yield from table(["checkpoint", "size", "", "why"], sorted(rows), left=(0, 2, 3))
        yield ""
    freed_bytes = sum(item.nbytes for item in plan.going if gone is None or item.name in gone)
    if plan.anchor is not None:
        yield f"{plan.anchor} was read back from the storage and is whole"
    yield f"{format_bytes(freed_bytes)} {'would be freed' if gone is None else 'freed'}" if word else "nothing goes"
    if plan.note:
        yield f"note: {plan.note}"
