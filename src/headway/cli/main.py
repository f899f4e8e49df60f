"""The entry: ``headway VERB ...``.

Verbs are registered by the path of their function, so that each verb imports only its own module, and a verb's heavy
imports stand inside its functions. This keeps every help text under 200 ms.

Exit codes: 0 ok, 1 findings or alarm, 2 usage or configuration, 3 environment, 4 the run failed, 130 interrupted.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headway.base.errors import EXIT_OK

if TYPE_CHECKING:
    from cyclopts import App

VERBS: dict[str, str] = {
    "plan": "headway.cli.plan:app",
    "run": "headway.cli.run:run",
    "status": "headway.cli.status:status",
    "goodput": "headway.cli.goodput:goodput",
    "resume": "headway.cli.run:resume",
    "pause": "headway.cli.stop:pause",
    "stop": "headway.cli.stop:stop",
    "sample": "headway.cli.sample:sample",
    "report": "headway.cli.report:report",
    "prove": "headway.cli.prove:prove",
    "dryrun": "headway.cli.dryrun:dryrun",
    "doctor": "headway.cli.doctor:doctor",
    "demo": "headway.cli.demo:demo",
}
"""Verb -> where its function stands; its docstring is its help. Those of ``GROUPS`` have verbs of their own."""

DATA_VERBS: dict[str, str] = {
    "build": "headway.cli.data:build",
    "verify": "headway.cli.data_verify:verify",
    "show": "headway.cli.data_show:show",
    "diff": "headway.cli.data_diff:diff",
    "audit": "headway.cli.data_audit:audit",
    "inventory": "headway.cli.data_inventory:inventory",
    "mixture": "headway.cli.data_mixture:mixture",
    "bench": "headway.cli.data_bench:bench",
    "register": "headway.cli.data_register:register",
}

PLAN_VERBS: dict[str, str] = {
    "compare": "headway.cli.plan_compare:compare",
    "calibrate": "headway.cli.plan_calibrate:calibrate",
    "worksheet": "headway.cli.plan_worksheet:worksheet",
}
"""``headway plan RECIPE`` plans; these are other things to do with plans. No preset may be called like one of them."""

CHECKPOINT_VERBS: dict[str, str] = {
    "list": "headway.cli.checkpoint:list_",
    "verify": "headway.cli.checkpoint_verify:verify",
    "show": "headway.cli.checkpoint:show",
    "diff": "headway.cli.checkpoint_diff:diff",
    "prune": "headway.cli.checkpoint_prune:prune",
    "keep": "headway.cli.checkpoint:keep",
    "convert": "headway.cli.checkpoint_convert:convert",
}

MUP_VERBS: dict[str, str] = {
    "check": "headway.cli.mup:check",
    "sweep": "headway.cli.mup:sweep",
    "transfer": "headway.cli.mup:transfer",
}

GROUPS: dict[str, dict[str, str]] = {"plan": PLAN_VERBS, "data": DATA_VERBS, "checkpoint": CHECKPOINT_VERBS, "mup": MUP_VERBS}
"""Verbs with verbs of their own."""

HELP = "Plans, runs and watches the pretraining of language models."
EPILOGUE = """Start with: headway demo, or: headway plan demo
Exit codes: 0 ok, 1 findings or alarm, 2 usage or configuration,
            3 environment, 4 the run failed."""


def build_app() -> App:
    """The command tree; nothing of a verb is imported."""
    from cyclopts import App

    from headway.cli.help import house_style

    common = house_style()
    app = App(name="headway", help=HELP, help_epilogue=EPILOGUE, **common)
    data = App(
        name="data", help="Build the data of a recipe, and look into what was built.", sort_key=1, help_epilogue="", **common
    )
    about = "List, verify, show, compare, prune, keep and convert checkpoints."
    checkpoint = App(name="checkpoint", help=about, sort_key=11, help_epilogue="", **common)
    about = "Tune hyperparameters on a small model and carry them to a wide one (muP)."
    mup = App(name="mup", help=about, sort_key=13, help_epilogue="", **common)
    for position, (verb, target) in enumerate(VERBS.items()):
        if target.endswith(":app"):  # a group is set up where it stands
            app.command(target, name=verb)
        else:
            app.command(target, name=verb, sort_key=position * 2, help_epilogue="")
    for group, verbs in ((data, DATA_VERBS), (checkpoint, CHECKPOINT_VERBS), (mup, MUP_VERBS)):
        for position, (verb, target) in enumerate(verbs.items()):
            group.command(target, name=verb, sort_key=position, help_epilogue="")
        app.command(group)
    return app


def import_verbs(app: App, group: str) -> None:
    """Lists of verbs show each one's first line, and a mistyped verb the nearest: both need all that could stand there."""
    app.resolved_commands()
    if group in GROUPS:
        app[group].resolved_commands()


def invoke(arguments: Sequence[str]) -> int:
    """Parse and run; errors pass through."""
    app = build_app()
    group, verb = (*arguments, "", "")[:2]
    if group in GROUPS and verb in ("--help", "-h"):
        app[group].resolved_commands()  # it lists verbs of its own
    elif group not in VERBS and verb not in GROUPS.get(group, ()):
        import_verbs(app, group)
    code = app(list(arguments), exit_on_error=False, print_error=False, result_action="return_value")
    sys.stdout.flush()  # here, so that a closed pipe is met inside the guard
    return EXIT_OK if code is None else code


def run_guarded(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; every error is rendered, none shows a traceback."""
    try:
        return invoke(arguments)
    except SystemExit as error:
        # The console that prints help texts and the version meets a closed pipe first and exits with 1, which would mean
        # findings; nothing else here exits by itself.
        if error.code != 1:
            raise
        return unheard()
    except (Exception, KeyboardInterrupt) as error:
        if is_unheard(error):
            return unheard()
        if os.environ.get("HEADWAY_DEBUG") == "1":
            raise
        from headway.cli.errors import render

        return render(error, as_json="--json" in arguments)


def is_unheard(error: BaseException) -> bool:
    """The reader of the output has gone: a pipe that is closed, or a terminal."""
    lost_terminal = isinstance(error, OSError) and error.errno == errno.EIO and any(map(is_lost_terminal, (1, 2)))
    return lost_terminal or isinstance(error, BrokenPipeError)


def is_lost_terminal(descriptor: int) -> bool:
    """A disk gives the same error (EIO): a terminal that hung up gives it for nothing at all."""
    try:
        os.write(descriptor, b"")
    except OSError as error:
        return error.errno == errno.EIO
    return False


def unheard() -> int:
    """Say nothing any more, not even at interpreter exit; the exit code that a shell expects."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    return 128 + 13


def main() -> None:
    """Console script."""
    raise SystemExit(run_guarded(sys.argv[1:]))


if __name__ == "__main__":
    main()
