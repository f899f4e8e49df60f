"""``headway stop RUN`` and ``headway pause RUN``: what its owner is asked, wherever that is."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from headway.base.errors import EXIT_OK, EnvironmentFault
from headway.cli.options import RunArgument

Reason = Annotated[str, Parameter(metavar="TEXT", help="Why; it is recorded.")]
Detach = Annotated[bool, Parameter(negative="", help="Ask, and do not wait until it is done.")]


def stop(run: RunArgument, /, *, reason: Reason = "", detach: Detach = False) -> int:
    """Stop a run cleanly: it finishes its step, saves, and its supervisor ends.

    Works from any machine that sees the run directory. Go on with headway resume.
    """
    from headway.cli.output import say

    directory, view = owned(run, "stop")
    ask_owner(directory, view.epoch, "stop", reason)
    say(f"asked its owner ({owner_words(view)}) to stop")
    if not detach:
        tell_end(directory, ("finish",))
    return EXIT_OK


def pause(run: RunArgument, /, *, reason: Reason = "", detach: Detach = False) -> int:
    """Let a run rest: it finishes its step and saves; its supervisor keeps the run and its nodes, and waits.

    Go on with headway resume, from anywhere. The time counts as a planned pause.
    """
    from headway.cli.output import say

    directory, view = owned(run, "pause")
    if rests(directory):
        say(f"{run} is already paused; go on with: headway resume {run}")
        return EXIT_OK
    ask_owner(directory, view.epoch, "pause", reason)
    say(f"asked its owner ({owner_words(view)}) to pause")
    if not detach:
        tell_end(directory, ("pause", "finish"))
    return EXIT_OK


def owned(run: Any, verb: str) -> tuple[Any, Any]:
    """The directory and its owner's lease; EnvironmentFault where nobody owns it, which says how it stands instead."""
    from headway.base.clocks import SystemClock
    from headway.rundir.layout import RunDirectory
    from headway.rundir.lease import glance_seconds, observe

    directory = RunDirectory.open(run)
    view = observe(directory, glance_seconds(directory), SystemClock())
    if view.state != "held":
        raise EnvironmentFault(*unowned(directory, view, verb))
    return directory, view


STANDS = {
    "created": "was never started",
    "complete": "is complete",
    "stopped": "is stopped already",
    "requeued": "waits in the queue of its batch system",
    "failed": "has failed",
}
"""By state; every other run without an owner has crashed."""


def unowned(directory: Any, view: Any, verb: str) -> tuple[str, str, str]:
    """Seen, rule and way out, for a run that nobody owns."""
    from headway.base.clocks import SystemClock
    from headway.base.units import format_seconds
    from headway.monitor.summary import state_of
    from headway.rundir.events import read_event_chain
    from headway.rundir.segments import read_segments
    from headway.supervise.takeover import seconds_alone

    run = directory.root
    state, _ = state_of(view, read_event_chain(directory), read_segments(directory), SystemClock())
    go_on = f"to go on: headway resume {run}"
    if state == "orphan":
        return (
            f"the owner of {run} is gone, so nobody can be asked to {verb}; its ranks still run",
            f"ranks whose owner is gone save and end by themselves, within {format_seconds(seconds_alone(directory))}",
            f"look with headway status {run} until they have; {go_on}",
        )
    return (
        f"{run} {STANDS.get(state, 'crashed: its owner is gone')}, so there is nothing to {verb}",
        "a run is owned by headway run or headway resume while it goes",
        f"see: headway report {run}" if state == "complete" else go_on,
    )


def ask_owner(directory: Any, epoch: int, verb: str, reason: str) -> None:
    from headway.base.clocks import SystemClock
    from headway.cli.run import author
    from headway.rundir.requests import Request, ask

    ask(directory, Request(verb=verb, author=author(), reason=reason, epoch=epoch), SystemClock())


def owner_words(view: Any) -> str:
    return f"process {view.owner.get('pid', '?')} on {view.owner.get('host', '?')}"


def is_owned(directory: Any) -> bool:
    from headway.base.clocks import SystemClock
    from headway.rundir.lease import glance_seconds, observe

    return observe(directory, glance_seconds(directory), SystemClock()).state == "held"


def tell_end(directory: Any, kinds: tuple[str, ...]) -> None:
    """Wait for what the owner answers, and say what it was: a run may as well have completed or failed meanwhile.

    A Ctrl-C ends the waiting alone.
    """
    import time

    from headway.cli.output import say
    from headway.rundir.events import read_events

    while True:
        events = read_events(directory)
        if events and events[-1]["kind"] in kinds:
            break
        if not is_owned(directory):
            raise EnvironmentFault(
                f"the owner of {directory.root} is gone without a word",
                "it answers a request by what it records",
                f"look with: headway status {directory.root}",
            )
        time.sleep(0.3)
    last = events[-1]
    state = "paused" if last["kind"] == "pause" else last["state"]
    more = f"; go on with: headway resume {directory.root}" if state in ("paused", "stopped", "failed") else ""
    say(f"{state}: {last['reason']}{more}")


def rests(directory: Any) -> bool:
    """Whether a pause is the last on record; its owner may have died since."""
    from headway.rundir.events import read_events

    events = read_events(directory)
    return bool(events) and events[-1]["kind"] == "pause"


def paused_owner(directory: Any) -> int | None:
    """The epoch of an owner that rests; None: nobody does."""
    from headway.base.clocks import SystemClock
    from headway.rundir.lease import glance_seconds, observe

    if not rests(directory):
        return None
    view = observe(directory, glance_seconds(directory), SystemClock())
    return view.epoch if view.state == "held" else None
