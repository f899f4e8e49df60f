"""``headway run RECIPE`` and ``headway resume RUN``: train under the supervisor, showing its progress."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from headway.base.errors import (
    EXIT_CONFIG,
    EXIT_ENVIRONMENT,
    EXIT_FINDINGS,
    EXIT_OK,
    ConfigError,
    EnvironmentFault,
    HeadwayError,
    Problem,
    RunError,
)
from headway.cli.options import (
    DataOption,
    DeploymentOption,
    JsonLines,
    OtherDeploymentOption,
    Overrides,
    RecipeArgument,
    RunArgument,
)


def run(
    recipe: RecipeArgument,
    /,
    *,
    overrides: Overrides = None,
    deployment: DeploymentOption = None,
    data: DataOption = None,
    directory: Annotated[
        Path | None,
        Parameter(
            name="--run",
            metavar="DIR",
            help="The run directory to create. Default: runs/NAME, with -2, -3, ... where it is taken.",
        ),
    ] = None,
    drill: Annotated[
        list[str] | None,
        Parameter(
            metavar="POINT:ACTION:STEP",
            negative="",
            help="Create the run as a drill and inject a fault, such as step.gradients:kill:120 or "
            "save.receipt_written:io_error:80. Repeatable.",
        ),
    ] = None,
    json: JsonLines = False,
) -> int:
    """Train a recipe under the supervisor.

    The spec is frozen from the recipe and the built data, the plan is stored beside it, and the trainer is restarted from
    its last committed checkpoint when it dies. Ctrl-C stops it cleanly, with a checkpoint: go on with headway resume.
    """
    from headway.cli.describe import describe, manifest_of
    from headway.cli.engine import require_engine
    from headway.cli.output import say

    faults = [parse_fault(text) for text in drill or ()]
    require_engine()
    description = describe(recipe, overrides, deployment)
    data_directory, manifest = manifest_of(description, data)
    root = directory or free_directory(Path("runs") / description.recipe.name)
    created = create(description, data_directory, manifest, root=root, faults=faults)
    if not json:
        for line in mixture_lines(created.spec()):
            say(line)
    return follow(created, json=json)


def resume(
    run: RunArgument,
    /,
    *,
    deployment: OtherDeploymentOption = None,
    mixture: Annotated[
        str | None,
        Parameter(
            metavar="SOURCE=WEIGHT,...",
            help="Mix the rest of the stage by these weights: shares of target tokens, any scale; sources left out get nothing. "
            'For recipes with interventions.mixture = "adaptive". Each source goes on where it was.',
        ),
    ] = None,
    reason: Annotated[str | None, Parameter(metavar="TEXT", help="Why the mixture changes; it is recorded.")] = None,
    spike: Annotated[
        Literal["roll-back", "accept"] | None,
        Parameter(
            help="What to do about the spike at which the run stopped: go back and skip the batches around it, or go on over it. "
            "Neither: the steps up to it are done once more."
        ),
    ] = None,
    json: JsonLines = False,
) -> int:
    """Go on with a run that was stopped or has crashed.

    A new supervisor takes the run over and continues from the last committed checkpoint: same data order, same learning
    rates, same numbers. A run that another supervisor still holds is refused. Under another deployment (other processes,
    layouts, threads) it is the same run: same data, numbers within tolerance. A run that was paused (headway pause) is told
    to go on, and stays with its owner. The exit code is 1 where it stops at a spike that a person is to answer (--spike).
    """
    from headway.cli.engine import require_engine
    from headway.cli.stop import paused_owner
    from headway.rundir.layout import RunDirectory

    require_engine()
    directory = RunDirectory.open(run)
    if (epoch := paused_owner(directory)) is not None:
        return wake(directory, epoch, {"--deployment": deployment, "--mixture": mixture, "--reason": reason, "--spike": spike})
    change = mixture_change(directory, mixture, reason)
    other = other_deployment(directory, deployment) if deployment else None
    return follow(directory, json=json, deployment=other, change=change, spike=spike_answer(directory, spike))


def spike_answer(run: Any, answer: str | None) -> Any:
    """ConfigError where there is no spike to answer."""
    from headway.rundir.segments import read_segments
    from headway.supervise.spikes import Answer, pending_spike

    if answer is not None and pending_spike(run, read_segments(run)) is None:
        raise ConfigError(
            f"--spike {answer}, and the run did not end at a spike",
            "it answers the spike at which a run stopped",
            "leave it out",
        )
    return None if answer is None else Answer(answer)


def wake(directory: Any, epoch: int, options: dict[str, Any]) -> int:
    """Ask the owner of a paused run to go on; changes need an owner of their own."""
    from headway.cli.output import say
    from headway.cli.stop import ask_owner

    given = [name for name, value in options.items() if value is not None]
    if given:
        raise ConfigError(
            f"{given[0]} for a run that is paused",
            "a paused run goes on as it was, under its owner",
            f"headway stop {directory.root}, then resume with {given[0]}",
        )
    ask_owner(directory, epoch, "resume", "")
    say(f"asked its owner to go on; watch it with: headway status {directory.root}")
    return EXIT_OK


def mixture_change(run: Any, mixture: str | None, reason: str | None) -> Any:
    """Checked before anything starts, as far as it can be: where it begins is known once the checkpoint is chosen."""
    from headway.cli.data_mixture import steps_done
    from headway.data.stream import Stream
    from headway.data.transition import MixtureChange, with_change
    from headway.rundir.segments import read_segments

    if mixture is None:
        if reason is not None:
            raise ConfigError(
                "--reason without --mixture", "a reason is recorded with a change", "leave it out, or add --mixture"
            )
        return None
    change = MixtureChange(weights=weights_of(mixture), reason=reason or "")
    segments, spec = read_segments(run), run.spec()
    with_change(Stream.of_segment(spec, segments[-1]) if segments else Stream(spec), steps_done(run), change, author())
    return change


def weights_of(text: str) -> dict[str, float]:
    """``code=0.6,prose=0.4`` -> weights by source."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, sign, weight = part.rpartition("=")
        try:
            value = float(weight)
        except ValueError:
            sign = ""
        if not sign or name.strip() in found:
            raise ConfigError(f"--mixture {text}", "it is SOURCE=WEIGHT,..., each source once", "such as code=0.6,prose=0.4")
        found[name.strip()] = value
    return found


def other_deployment(run: Any, source: str | Path) -> dict[str, Any]:
    """Resolved, checked against the run's stages; a run keeps the second place of its checkpoints."""
    from headway.recipe.engine_layouts import check_layouts
    from headway.recipe.load import load_deployment
    from headway.recipe.placement import check_stages, settle
    from headway.rundir.segments import deployment_of

    spec, before = run.spec(), deployment_of(run)
    loaded = load_deployment(source)
    check_stages(loaded, [stage.name for stage in spec.stages])
    check_layouts(loaded, spec)
    resolved = settle(loaded, spec.precision.compute).resolved()
    now, then = resolved["checkpoints"]["mirror"], before.get("checkpoints", {}).get("mirror")
    if now != then:
        raise ConfigError(
            f"checkpoints.mirror = {now or 'none'}, and this run has {then or 'none'}",
            "the second place of a run's checkpoints stays where it was",
            "give the same mirror in the deployment",
        )
    return resolved


def mixture_lines(spec: Any) -> Iterator[str]:
    """Of stages whose weights are not as the recipe writes them: the rule, and what caps made of it."""
    from headway.data.inspect.mixture import report
    from headway.recipe.mixture_rules import rule_words

    for stage in report(spec, None, (0, 0)).stages:
        own = spec.stages[stage.stage]
        if own.mixture_rule is None and not own.asked_quanta:
            continue
        rows = zip(spec.sources, stage.asked, stage.given, strict=True)
        moved = [f"{s.name} {asked:.2%}" + (f" -> {given:.2%}" if own.asked_quanta else "") for s, asked, given in rows]
        yield f"stage {own.name}: {rule_words(own)}: {', '.join(moved)}"


def parse_fault(text: str) -> dict[str, Any]:
    """``POINT:ACTION:STEP`` -> a fault of a drill; the step may be left out."""
    from headway.base.failpoints import parse_faults

    parts = text.split(":")
    if len(parts) not in (2, 3) or (len(parts) == 3 and not re.fullmatch("[0-9]{1,15}", parts[2])):
        raise ConfigError(
            f"--drill {text} is not a fault",
            "a fault is POINT:ACTION or POINT:ACTION:STEP",
            "such as --drill step.gradients:kill:120",
        )
    fault = {"point": parts[0], "action": parts[1], "step": int(parts[2]) if len(parts) == 3 else None}
    parse_faults([fault])
    return fault


def free_directory(wanted: Path) -> Path:
    """``wanted``, or the first of wanted-2, wanted-3, ... that does not exist."""
    path, number = wanted, 2
    while path.exists():
        path, number = wanted.with_name(f"{wanted.name}-{number}"), number + 1
    return path


def create(
    description: Any,
    data: Path | str,
    manifest: Any,
    *,
    root: Path,
    faults: Sequence[dict[str, Any]],
    calibration: dict[str, Any] | None = None,
) -> Any:
    """Freeze the spec, plan it (with times where a calibration is given), and create the run directory; faults make a drill."""
    from headway.data.freeze import freeze
    from headway.plan.plan import make_plan
    from headway.rundir.create import RunInfo, create_run

    spec = freeze(description.loaded, manifest)
    info = RunInfo(
        data=data if isinstance(data, str) else str(data.resolve()),
        deployment=description.deployment.resolved(),
        recipe_path=description.loaded.path,
        overrides=(*description.loaded.overrides, *description.deployment_overrides),
        deployment_path=description.deployment_path,
        versions=versions(),
        author=author(),
    )
    plan = make_plan(spec, description.deployment, calibration).to_json()
    return create_run(
        root, spec=spec, recipe_text=description.loaded.text, info=info, drill_faults=list(faults) or None, plan=plan
    )


def versions() -> dict[str, str]:
    """What the run is created with; the trainer records its own environment."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    from headway import __version__

    found = {"headway": __version__, "python": platform.python_version()}
    for package in ("torch", "numpy", "tokenizers", "safetensors"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def author() -> str:
    """Who answers for the run: the name of the account."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def follow(run: Any, *, json: bool, **how: Any) -> int:
    """Supervise ``run``, show it, and say how it ended; ``how``: as ``follow_to_end`` takes it."""
    from headway.cli.output import print_json_line, say

    outcome = follow_to_end(run, json=json, **how)
    if json:
        print_json_line(
            {
                "kind": "outcome",
                "run": str(run.root),
                "state": outcome.state,
                "reason": outcome.reason,
                "attempts": outcome.attempts,
            }
        )
    elif outcome.state == "stopped" and outcome.exit_code == EXIT_FINDINGS:
        for line in spike_answers(run):
            say(line)
    elif outcome.state == "stopped":
        say(f"go on with: headway resume {run.root}")
    else:
        if not outcome.attempts:
            unused = [name for key, name in (("deployment", "--deployment"), ("change", "--mixture")) if how.get(key)]
            without = f"; {' and '.join(unused)} changed nothing" if unused else ""
            say(f"{run.root} is complete: {outcome.reason}{without}")
        say(f"see: headway report {run.root}")
    return int(outcome.exit_code)


def spike_answers(run: Any) -> list[str]:
    """What a person can say to the spike at which ``run`` stopped, and what each does."""
    from headway.recipe.spike_rules import SpikeRules

    rules = SpikeRules.of(run.spec())
    skips = f" and leave out {rules.skip_batches:,} batches around it" if rules.skip_batches else ""
    return [
        "go on with one of:",
        f"  headway resume {run.root} --spike roll-back   go back at least {rules.rewind_steps:,} steps before it{skips}",
        f"  headway resume {run.root} --spike accept      go on over it: what follows is judged anew",
        f"  headway resume {run.root}                     do the same steps once more, in case the machine was at fault",
    ]


def follow_to_end(
    run: Any, *, json: bool = False, deployment: dict[str, Any] | None = None, change: Any = None, spike: Any = None
) -> Any:
    """Supervise ``run`` with its progress on stdout; the outcome, or what went wrong as an error.

    ``deployment`` (resolved) and ``change`` of the mixture: from here on; ``spike``: the answer to the one it stopped at."""
    from headway.cli.output import print_json_line, say
    from headway.cli.progress import Screen, is_terminal, progress_of
    from headway.cli.unread import unread_output
    from headway.rundir.metrics import encode_row
    from headway.rundir.segments import deployment_of
    from headway.supervise.options import SuperviseOptions
    from headway.supervise.supervisor import supervise

    in_force = deployment or deployment_of(run)
    steps_per_row = in_force.get("log", {}).get("every_steps")
    if not json:
        say(f"run directory {run.root}")
    screen = Screen(progress_of(run.spec(), steps_per_row), live=is_terminal())
    show = (lambda record: print_json_line(encode_row(record))) if json else screen.show
    options = SuperviseOptions.of(in_force, author=author())
    with unread_output(lambda pieces: left_out_words(pieces, json)):
        outcome = supervise(run, options=options, on_record=show, deployment=deployment, change=change, spike=spike)
    if outcome.state in ("failed", "lost"):
        raise failure(run, outcome)
    return outcome


def left_out_words(pieces: int, as_json: bool) -> str:
    """A line in place of records for which there was no room while nobody read."""
    if as_json:
        return f'{{"kind": "left_out", "records": {pieces}}}\n'
    return f"- nobody read for so long that {pieces:,} lines are left out: the run's records have them\n"


def failure(run: Any, outcome: Any) -> HeadwayError:
    """The outcome as an error: the reason, then what the trainer itself said."""
    from headway.rundir.events import read_events

    finish: dict[str, Any] = next((event for event in reversed(read_events(run)) if event["kind"] == "finish"), {})
    cause = (finish.get("cause") or {}) if outcome.state == "failed" else {}
    said = [
        Problem(**{key: value for key, value in problem.items() if key in PROBLEM})
        for problem in (cause.get("error") or {}).get("problems", [])
    ]
    tail = "\n".join(cause.get("log_tail") or ()) if not said else ""
    way_out = f"see headway status {run.root}; when the cause is mended: headway resume {run.root}"
    first = Problem(
        f"the run {outcome.state} after {outcome.attempts} attempt{'' if outcome.attempts == 1 else 's'}: {outcome.reason}"
        + (f"\n{tail}" if tail else ""),
        "",
        way_out,
    )
    kinds: dict[int, type[HeadwayError]] = {EXIT_CONFIG: ConfigError, EXIT_ENVIRONMENT: EnvironmentFault}
    return kinds.get(outcome.exit_code, RunError)([first, *said])


PROBLEM = ("seen", "rule", "way_out", "where")
