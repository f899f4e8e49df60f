"""``headway status RUN``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headway.base.errors import EXIT_FINDINGS, EXIT_OK
from headway.cli.options import Json, RunArgument

WANTS_ATTENTION = ("failed", "crashed", "orphan", "lost")


def status(run: RunArgument, /, *, json: Json = False) -> int:
    """Show how far a run is, and where its time went.

    Reads the run's records only: it works while the run is going, after it, and on another machine. The exit code is 1
    when something wants attention: an alarm of the newest steps, or a run that failed or lost its supervisor.
    """
    from headway.cli.output import print_json, say
    from headway.monitor.summary import summarise
    from headway.rundir.layout import RunDirectory
    from headway.rundir.metrics import encode_row

    summary = summarise(RunDirectory.open(run))
    if json:
        print_json({"kind": "status", "schema_version": 1, "run": str(run), **encode_row(summary.to_json())})
    else:
        for line in lines(summary):
            say(line)
    return EXIT_FINDINGS if summary.alarms or summary.state in WANTS_ATTENTION else EXIT_OK


def lines(summary: Any) -> Iterator[str]:
    """The summary for people."""
    from headway.base.units import format_count

    share = summary.tokens / summary.total_tokens if summary.total_tokens else 0.0
    held_out = ", ".join(f"{name} {float(loss):.3f}" for name, loss in summary.held_out.items())
    yield f"{summary.name}: {summary.state}{f' ({summary.reason})' if summary.reason else ''}"
    yield f"step        {summary.step:,} of {summary.total_steps:,}{f', stage {summary.stage}' if summary.stage else ''}"
    yield f"tokens      {format_count(summary.tokens)} of {format_count(summary.total_tokens)} ({share:.1%})"
    if summary.loss is not None:
        yield f"loss        {float(summary.loss):.3f}{f'; held out: {held_out}' if held_out else ''}"
    if summary.bits_per_byte:
        bits = ", ".join(f"{name} {float(value):.3f}" for name, value in summary.bits_per_byte.items())
        yield f"bits/byte   held out: {bits}"
    yield f"checkpoint  {summary.checkpoint or 'none committed yet'}"
    if summary.segment is not None:
        yield f"segment     {summary.segment}, {summary.restarts} restart{'' if summary.restarts == 1 else 's'}"
    if summary.owner_alive:
        yield f"supervisor  alive: {', '.join(f'{key} {value}' for key, value in summary.owner.items())}"
    yield from time_lines(summary.ledger)
    yield from input_lines(summary.delivery)
    for finding in summary.findings:
        yield f"{'ALARM' if finding in summary.alarms else 'noted'} at step {finding.step}: {finding.message}"
    yield from (f"note: {flag}" for flag in summary.ledger.flags)


def input_lines(delivery: Any) -> Iterator[str]:
    """How the input came, and from a distance: what each source took."""
    from headway.base.units import format_bytes, format_seconds
    from headway.cli.output import table

    if delivery is None:
        return
    ready = f"{delivery.mean_ready:.1f} of {delivery.depth} batches ready"
    waited = f"waited {delivery.wait_share:.1%} of the steps' time"
    yield f"input       {waited}, {ready}, loader at {delivery.saturation:.0%} of a core"
    for shard, waited_ns in sorted(delivery.stalls.items(), key=lambda item: -item[1])[:3]:
        yield f"            stood still {format_seconds(waited_ns / 1e9)} while {shard} was read"
    if not delivery.is_remote:
        return
    rows = [
        [
            s.name,
            format_seconds(s.wait_ns / 1e9),
            *(f"{n:,}" for n in (s.hits, s.misses, s.ahead, s.evictions)),
            format_bytes(s.fetched_bytes),
        ]
        for s in delivery.sources
    ]
    for line in table(["source", "waited", "hits", "misses", "ahead", "evicted", "fetched"], rows, left=(0,)):
        yield f"            {line}"


def time_lines(ledger: Any) -> Iterator[str]:
    """Where every second went; the categories add up to the total exactly."""
    from headway.base.units import format_count, format_seconds

    if not ledger.total_ns:
        return
    yield f"time        {format_seconds(ledger.total_ns / 1e9)}, of it:"
    for category, nanoseconds in ledger.categories.items():
        words = category.replace("_", " ")
        yield f"            {nanoseconds / ledger.total_ns:6.1%}  {words:<18} {format_seconds(nanoseconds / 1e9):>14}"
    yield f"speed       {format_count(ledger.committed_tokens_per_second)} committed tokens per second, over all of that time"
