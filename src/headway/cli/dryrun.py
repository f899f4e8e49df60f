"""``headway dryrun RECIPE --layout ...``: the engine's own step at its real size, on ranks that are not there; and the plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from headway.base.errors import EXIT_FINDINGS, EXIT_OK, ConfigError
from headway.cli.options import Json, Overrides, RecipeArgument

if TYPE_CHECKING:
    from headway.plan.reconcile import Line
    from headway.plan.work import Layout
    from headway.recipe.spec import Spec


UNDRY = {"sequence_parallel": True}
"""What a dry run has no counterpart for in the plan, with the only value that it takes."""


def refuse_undry(layout: Layout) -> None:
    """ConfigError for what is run and planned, and not yet run dry."""
    for name, only in UNDRY.items():
        value = getattr(layout, name)
        if str(value) != str(only):
            raise ConfigError(
                f"--layout {name}={value}",
                "what is exchanged otherwise with it is not set beside the plan yet",
                f"leave {name} out; headway plan has it, and headway prove and headway run carry it out",
                "--layout",
            )


def dryrun(
    recipe: RecipeArgument,
    /,
    *,
    layout: Annotated[
        str,
        Parameter(
            metavar="LAYOUT",
            help="Sizes of the axes (dp_replicate, dp_shard, cp, tp, ep, pp, virtual), pipeline, zero, recompute, offload and "
            "micro_batch (sequences), such as tp=8,dp_shard=2048. Of a pipeline the first stage with most layers is run.",
        ),
    ],
    world: Annotated[int | None, Parameter(metavar="N", help="Ranks; dp_shard fills what the layout leaves open.")] = None,
    stage: Annotated[str | None, Parameter(metavar="STAGE", help="A training stage of the recipe. Default: the first.")] = None,
    overrides: Overrides = None,
    json: Json = False,
) -> int:
    """Run one step of one rank without the others, and compare what it does with what is planned.

    The engine's own model at its real size, in one process on this machine: tensors have sizes and no values, and exchanges go
    nowhere. Counts every exchange with its bytes and order, parameters, state and FLOPs. Of deep models few layers are run, and
    the rest follows. Exit code 1 where the plan does not agree.
    """
    from headway.cli.engine import require_engine
    from headway.cli.output import print_json, say
    from headway.plan.host_link import refuse_uncounted
    from headway.plan.reconcile import engine_work, reconcile

    require_engine()
    spec, sizes = read(recipe, overrides or ()), read_layout(layout, world)
    refuse_undry(sizes)
    at = stage_of(spec, stage)
    task = spec.stages[at]
    work = engine_work(spec.model, spec.precision, task.sequence_length, max(p.batch_sequences for p in task.phases))
    refuse_uncounted(work, sizes)
    seen = _ask(spec, sizes, at, sizes.micro_batches(work.batch))
    lines = reconcile(work, sizes, seen)
    if json:
        print_json({**seen, "layout": sizes.shown(), "stage": task.name, "reconciled": [_plain(line) for line in lines]})
    else:
        for text in dryrun_lines(sizes, seen, lines):
            say(text)
    return EXIT_OK if all(line.agrees for line in lines) else EXIT_FINDINGS


def read(recipe: str, overrides: Sequence[str]) -> Spec:
    from headway.recipe.load import load_recipe
    from headway.recipe.resolve import resolve
    from headway.recipe.trainable import refuse_untrainable

    loaded = load_recipe(recipe, list(overrides))
    spec = resolve(loaded, None)
    refuse_untrainable(spec.precision, loaded.locate, spec.model)
    return spec


def read_layout(text: str, world: int | None) -> Layout:
    """As the planner takes it."""
    from dataclasses import replace

    from headway.plan.layout.stated import parse_layout
    from headway.plan.work import Layout

    try:
        found = parse_layout(",".join(text.replace(",", " ").split()), Layout(), world)
    except ConfigError as error:
        raise ConfigError([replace(problem, where=f"--layout {text}") for problem in error.problems]) from None
    if world is not None and found.world != world:
        rule = "pp x dp_replicate x dp_shard x cp x tp is the number of ranks"
        raise ConfigError(f"a layout of {found.world:,} for {world:,} ranks", rule, "leave out dp_shard", f"--layout {text}")
    return found


def stage_of(spec: Spec, name: str | None) -> int:
    """Its index."""
    from headway.recipe.checks import nearest_hint

    names = [stage.name for stage in spec.stages]
    if name is None:
        return 0
    if name not in names:
        hint = nearest_hint(name, names) or "leave it out"
        raise ConfigError(f"--stage {name}", f"stages are {', '.join(names)}", hint)
    return names.index(name)


def _ask(spec: Spec, layout: Layout, stage: int, passes: int) -> dict[str, Any]:
    from dataclasses import asdict
    from tempfile import TemporaryDirectory

    from headway.base.files import write_json
    from headway.cli import engine
    from headway.plan.held import stage_run

    axes = {name: str(value) if isinstance(value, str) else value for name, value in asdict(layout).items()}
    request = {"spec": spec.to_json(), "axes": axes, "stage": stage, "micro_batch": layout.micro_batch, "passes": passes}
    request["pipeline_stage"] = stage_run(spec.model, layout)
    with TemporaryDirectory(prefix="headway-dryrun-") as directory:
        write_json(Path(directory) / "request.json", request)
        return engine.ask_engine("dryrun", [str(Path(directory) / "request.json")])


def _plain(line: Line) -> dict[str, Any]:
    return {**vars(line), "agrees": line.agrees}


def dryrun_lines(layout: Layout, seen: dict[str, Any], lines: Sequence[Line]) -> Iterator[str]:
    """What was run, the order of a micro-batch, what a rank holds, the table, reasons, the verdict."""
    from headway.base.units import format_bytes
    from headway.cli.output import table

    yield f"rank {seen['rank']:,} of {seen['world']:,} ({layout.shown()}), {seen['seconds']:.0f} s"
    if layout.pp > 1:
        at = seen["rank"] // (seen["world"] // layout.pp)
        yield f"of pipeline stage {at} of {layout.pp}, counted from 0: the first of those with most layers"
    yield from extrapolated(seen)
    yield ""
    passes = seen["order"]["passes"]
    yield f"order of the first {f'{passes} micro-batches' if passes > 1 else 'micro-batch'}:"
    yield from (f"  {text}" for text in order_lines(seen["order"]["seen"]))
    yield ""
    state = ", ".join(f"{name} {format_bytes(size)}" for name, size in seen["state_bytes"].items())
    yield f"state of the rank, float32: {state}"
    yield ""
    if seen["host_bytes"]:
        moved = ", ".join(f"{name} {format_bytes(size)}" for name, size in seen["host_bytes"].items())
        yield f"over the host's link in a step: {moved}"
        yield ""
    rows = [_row(line) for line in lines]
    yield from table(
        ["of a step and rank", "calls planned", "expected", "seen", "planned", "expected", "seen", ""], rows, left=(0, 7)
    )
    yield "exchanges: whole messages; expected: as planned, with the departures of this engine:"
    for line in lines:
        yield from (f"  {line.what}: {reason}" for reason in dict.fromkeys(line.reasons))
    if seen["not_run"]:
        names = ", ".join(f"{name} ({size} bytes)" for name, size in seen["not_run"].items())
        yield f"not run, since the host reads them: sums over ranks of {names}"
    yield from (f"assumed, since tensors have no values: {text}" for text in seen["assumed"])
    apart = [line.what for line in lines if not line.agrees]
    yield f"verdict: {'the plan agrees' if not apart else 'the plan does NOT agree on ' + ', '.join(apart)}"


def extrapolated(seen: dict[str, Any]) -> Iterator[str]:
    """What was run and what was not."""
    if seen["layers_run"] != [seen["layers"]]:
        depths = " and ".join(map(str, seen["layers_run"]))
        yield f"run with {depths} layers; {seen['layers']} follow from the difference between them"
    *few, most = seen["passes_run"]
    if few:
        counts = f"{few[0]:,} and {most:,}"
        yield f"run with {counts} micro-batches; {seen['passes']:,} follow from the difference between them"
    elif most < seen["passes"]:
        yield f"run with 3 of {seen['passes']:,} micro-batches: the first, one between, the last; the rest is as the one between"


def order_lines(order: Sequence[dict[str, Any]]) -> Iterator[str]:
    """``forward: dp_shard all-gather; (tp all-gather, tp reduce-scatter) x 2; ...``: what repeats stands once."""
    for phase in ("forward", "backward"):
        words = [
            f"{one['axis']} {one['kind'].replace('_', '-')}"
            for one in order
            if one["phase"] == phase
            for _ in range(one["times"])
        ]
        if words:
            yield f"{phase}: {'; '.join(folded(words))}"


def folded(words: Sequence[str], longest: int = 8) -> Iterator[str]:
    """Runs of the same few words, in brackets with their number; of several ways the one that covers most."""
    at = 0
    while at < len(words):
        ways = [(_repeats(words, at, size), size) for size in range(1, longest + 1)]
        times, size = max(ways, key=lambda way: (way[0] * way[1] if way[0] > 1 else 0, -way[1]))
        if times == 1:
            yield words[at]
            at += 1
            continue
        inner = ", ".join(words[at : at + size])
        yield f"({inner}) x {times}" if size > 1 else f"{inner} x {times}"
        at += times * size


def _repeats(words: Sequence[str], at: int, size: int) -> int:
    """How often the next ``size`` words follow each other."""
    piece, times = words[at : at + size], 1
    while len(piece) == size and words[at + times * size : at + (times + 1) * size] == piece:
        times += 1
    return times


def _row(line: Line) -> list[str]:
    calls = [line.planned_calls, line.expected_calls, line.seen_calls]
    sizes = [line.planned, line.expected, line.seen]
    shown = _bytes if line.seen_calls is not None else lambda value: f"{value:.4g}"
    return [
        line.what,
        *("" if count is None else f"{count:,.0f}" for count in calls),
        *map(shown, sizes),
        "agrees" if line.agrees else "DIFFERS",
    ]


def _bytes(value: float) -> str:
    from headway.base.units import format_bytes

    return format_bytes(round(value)) if value else "0"
