"""``headway status RUN``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headway.base.errors import EXIT_FINDINGS, EXIT_OK
from headway.cli.options import Json, RunArgument

MOST_SOURCES, SAME_SHARE = 8, 5e-5
"""Sources that are listed; shares that are printed alike."""
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

    directory = RunDirectory.open(run)
    summary = summarise(directory)
    shares = source_shares(directory, summary.step)
    if json:
        told = {**encode_row(summary.to_json()), "sources": shares}
        print_json({"kind": "status", "schema_version": 1, "run": str(run), **told})
    else:
        for line in (*lines(summary, run), *intervention_lines(directory), *share_lines(directory, shares)):
            say(line)
    return EXIT_FINDINGS if summary.alarms or summary.state in WANTS_ATTENTION else EXIT_OK


def source_shares(run: Any, step: int) -> list[dict[str, Any]]:
    """Per source, over all steps so far: shares of target tokens asked, given and realised."""
    from headway.data.shares import parts, stage_shares, together
    from headway.data.stream import Stream
    from headway.rundir.segments import read_segments

    spec, segments = run.spec(), read_segments(run)
    stream = Stream.of_segment(spec, segments[-1]) if segments else Stream(spec)
    found = together([stage_shares(stream, part) for part in parts(spec, 0, step)]) if step else ()
    names = ("source", "asked", "given", "realised", "sequences", "tokens")
    return [{name: getattr(row, name) for name in names} for row in found]


def share_lines(run: Any, shares: list[dict[str, Any]]) -> Iterator[str]:
    """Sources, the largest first, and the mixture in force where it was changed."""
    from headway.base.units import format_count
    from headway.rundir.segments import read_segments

    for place, row in enumerate(sorted(shares, key=lambda row: -row["realised"])[:MOST_SOURCES]):
        moved = f", given {row['given']:.2%}" if abs(row["given"] - row["asked"]) > SAME_SHARE else ""
        told = f"asked {row['asked']:.2%}{moved}, realised {row['realised']:.2%}, {format_count(row['tokens'])} tokens"
        yield f"{'' if place else 'sources':<11} {row['source']}: {told}"
    if len(shares) > MOST_SOURCES:
        yield f"{'':<11} and {len(shares) - MOST_SOURCES} more: headway data mixture {run.root}"
    segments = read_segments(run)
    for record in segments[-1].transitions if segments else ():
        weights = ", ".join(f"{name} {weight:g}" for name, weight in record["weights"].items())
        why = f"by {record['author']}: {record['reason']}"
        yield f"mixture     changed at sequence {record['first']:,} of its stage: {weights}; {why}"


def intervention_lines(run: Any) -> Iterator[str]:
    """What was done about spikes, and the rate in force where that lowered it."""
    from headway.rundir.segments import ROLLED_BACK, read_segments

    segments = read_segments(run)
    for spike in segments[-1].spikes if segments else ():
        back = f"back to step {spike['restored']:,}" if spike["action"] == ROLLED_BACK else "accepted"
        skipped = f", {spike['skipped_batches']:,} batches skipped" if "skipped_batches" in spike else ""
        yield f"spike       at step {spike['step']:,}: {back}{skipped}"
    for rate in segments[-1].rates if segments else ():
        yield f"rate        {rate['factor']:g} times the recipe's from step {rate['first'] + 1:,} on, after spikes"


def lines(summary: Any, run: Any) -> Iterator[str]:
    """The summary for people; ``run``: its directory, as it was named."""
    from headway.base.units import format_count, format_seconds

    share = summary.tokens / summary.total_tokens if summary.total_tokens else 0.0
    held_out = ", ".join(f"{name} {float(loss):.3f}" for name, loss in summary.held_out.items())
    yield f"{summary.name}: {summary.state}{f' ({summary.reason})' if summary.reason else ''}"
    yield f"directory   {run}"
    yield f"step        {summary.step:,} of {summary.total_steps:,}{f', stage {summary.stage}' if summary.stage else ''}"
    yield f"tokens      {format_count(summary.tokens)} of {format_count(summary.total_tokens)} ({share:.1%})"
    if summary.seconds_left is not None:
        yield f"time left   {format_seconds(summary.seconds_left)}, at the pace since it was started last"
    if summary.loss is not None:
        yield f"loss        {float(summary.loss):.3f}{f'; held out: {held_out}' if held_out else ''}"
    if summary.bits_per_byte:
        bits = ", ".join(f"{name} {float(value):.3f}" for name, value in summary.bits_per_byte.items())
        yield f"bits/byte   held out: {bits}"
    yield f"checkpoint  {summary.checkpoint or 'none committed yet'}"
    if summary.interval is not None:
        from headway.cli.goodput import interval_words

        yield f"interval    {interval_words(summary.interval)}"
    if summary.segment is not None:
        yield f"segment     {summary.segment}, {summary.restarts} restart{'' if summary.restarts == 1 else 's'}"
    if summary.nodes is not None:
        yield from node_lines(summary.nodes)
    if summary.owner_alive:
        yield f"supervisor  alive: {owner_words(summary.owner)}"
    yield from time_lines(summary.ledger)
    yield from input_lines(summary.delivery)
    for finding in summary.findings:
        yield f"{'ALARM' if finding in summary.alarms else 'noted'} at step {finding.step}: {finding.message}"
    yield from (f"note: {flag}" for flag in summary.ledger.flags)


def owner_words(owner: dict[str, Any]) -> str:
    """As the lease names it; {}: its file cannot be read."""
    author = f", started by {owner['author']}" if owner.get("author") else ""
    return f"process {owner['pid']} on {owner.get('host', '?')}{author}" if "pid" in owner else "an unknown process"


def node_lines(nodes: Any) -> Iterator[str]:
    """Which train, and what became of the others."""
    fewer = f", {nodes.wanted} are wanted" if len(nodes.training) < nodes.wanted else ""
    yield f"nodes       {len(nodes.training)} train: {', '.join(nodes.training)}{fewer}"
    for host, why in nodes.away.items():
        yield f"{'':<11} {host} is {why}"


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
    from headway.base.units import format_seconds
    from headway.cli.goodput import speed_words

    if not ledger.total_ns:
        return
    yield f"time        {format_seconds(ledger.total_ns / 1e9)}, of it:"
    for category, nanoseconds in ledger.categories.items():
        words = category.replace("_", " ")
        yield f"            {nanoseconds / ledger.total_ns:6.1%}  {words:<18} {format_seconds(nanoseconds / 1e9):>14}"
    yield f"speed       {speed_words(ledger)}, over all of that time"
