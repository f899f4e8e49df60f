"""Loss, schedule, gradients and throughput over the tokens."""

from __future__ import annotations

import numpy as np

from headway.report.curves import SMOOTHING
from headway.report.material import Material
from headway.report.page import Block, Figure, Notice, Prose, Section, Table, Tone
from headway.report.positions import FEWEST, KINDS, bucket_name, last_by_position
from headway.report.rows import Buckets
from headway.report.words import NONE, exact, listed, loss, percent, plural

CHECKED = 10_000
"""About how many steps' rates are compared with the schedule in a very long run."""


def training(material: Material) -> Section:
    facts = material.facts
    if not len(facts.kept):
        return Section("training", "Training", (Prose("No step is recorded yet, so there is no curve to show."),))
    blocks: list[Block] = [
        *_oddities(material),
        _loss(material),
        *_positions(material),
        *_routers(material),
        _health(material),
    ]
    return Section("training", "Training", tuple(blocks))


def _oddities(material: Material) -> list[Block]:
    kept = material.facts.kept
    wild, skipped = int((~np.isfinite(kept.loss)).sum()), int((~kept.applied).sum())
    if not wild and not skipped:
        return []
    first = int(kept.step[~np.isfinite(kept.loss) | ~kept.applied][0])
    high = int((~kept.applied & np.isfinite(kept.grad_norm)).sum())
    text = (
        f"{plural(wild, 'step')} with a loss that is not finite; {plural(skipped, 'update')} left out, {skipped - high} because "
        f"the gradient was not finite, {high} because its norm was far above the recent ones; first at step {first:,}."
    )
    return [Notice(text, Tone.BAD)]


def _routers(material: Material) -> list[Block]:
    """How even the loads of experts were, and what the heads for further tokens learned, over the last tenth of the steps."""
    kept = material.facts.kept
    last = kept.where(np.arange(len(kept)) >= 0.9 * len(kept))
    found: list[Block] = []
    if np.isfinite(last.largest_load).any():
        load, idle = float(np.nanmean(last.largest_load)), float(np.nanmax(last.idle_experts))
        text = (
            f"Experts, in the last tenth of the steps: the fullest of the least even layer had {load:.1f} times the mean load, "
            f"and at most {percent(idle, 0)} of a layer's experts had no token. None was dropped."
        )
        found.append(Prose(text))
    if np.isfinite(last.further_loss).any():
        begin, end = float(kept.further_loss[0]), float(np.nanmean(last.further_loss))
        found.append(Prose(f"Heads for further tokens: their weighted loss went from {loss(begin, 2)} to {loss(end, 2)}."))
    return found


def _loss(material: Material) -> Figure:
    facts = material.facts
    kept, lost = facts.kept, facts.discarded
    alt = (
        f"Training loss falls from {loss(float(kept.loss[0]), 2)} to {loss(float(kept.loss[-1]), 2)} nats per "
        f"token over {exact(material.tokens_done)} tokens on a log axis"
    )
    parts = [
        f"Thin blue: each of {plural(len(kept), 'step')} of the history; thick: mean over the steps within "
        f"±{SMOOTHING:.0%} of the tokens."
    ]
    if any(evaluation.kept for evaluation in facts.evaluations):
        parts.append("Marked lines: held-out loss by source.")
    if len(lost):
        parts.append(
            f"Grey open circles: {plural(len(lost), 'step')} that were executed and rolled back; they lie "
            "under the history where the replay agrees. Red: where an attempt ended; the band is what was "
            "done again."
        )
    return Figure("loss", alt, " ".join(parts))


def _positions(material: Material) -> list[Block]:
    """Of the newest evaluation that knows positions; older runs have none."""
    evaluation = last_by_position(material.facts)
    if evaluation is None:
        return []
    alt = f"Held-out loss of {listed(list(evaluation.by_position))} by position in the window and in the document"
    caption = (
        f"After step {evaluation.step:,}. A point is the mean over the targets from its position up to the next; where fewer "
        f"than {FEWEST} were scored, none is drawn."
    )
    blocks: list[Block] = [Figure("positions", alt, caption)]
    for kind, what in KINDS.items():
        sources = {name: parts[kind] for name, parts in evaluation.by_position.items() if kind in parts}
        count = max((len(buckets.targets) for buckets in sources.values()), default=0)
        rows = tuple(
            (bucket_name(bucket), *(_bucket_cell(buckets, bucket) for buckets in sources.values())) for bucket in range(count)
        )
        if rows:
            blocks.append(
                Table((what, *(f">{name}" for name in sources)), rows, "Nats per target token, and of how many targets.")
            )
    return blocks


def _bucket_cell(buckets: Buckets, bucket: int) -> str:
    if bucket >= len(buckets.targets) or not buckets.targets[bucket]:
        return NONE
    return f"{loss(float(buckets.loss[bucket]), 3)} ({exact(int(buckets.targets[bucket]))})"


def _health(material: Material) -> Figure:
    kept = material.facts.kept
    alt = (
        "Four panels over tokens: learning rate planned and used, gradient norm with the clipping threshold, "
        "throughput, input wait"
    )
    caption = (
        f"Only steps of the history.{_rates(material)} {percent(float(kept.clipped.mean()), 1)} of the steps were clipped "
        f"({plural(int(kept.clipped.sum()), 'step')})."
    )
    return Figure("health", alt, caption)


def _rates(material: Material) -> str:
    off = _rate_gap(material)
    if off is None:
        return ""
    checked = plural(min(len(material.facts.kept), 2 * CHECKED), "step")
    if off == 0:
        return f" The rate that was used equals the schedule, checked at {checked}."
    return f" The rate that was used differs from the schedule by at most {off:.1e} (relative), checked at {checked}."


def _rate_gap(material: Material) -> float | None:
    """Largest relative difference between a step's recorded rate and the one implementation of the schedule."""
    schedule, kept = material.facts.schedule, material.facts.kept
    if schedule is None or not len(kept) or int(kept.step[-1]) > schedule.total_steps:
        return None
    kept = kept.where(np.arange(len(kept)) % max(1, len(kept) // CHECKED) == 0)
    planned = np.array([schedule.rate(int(step) - 1) for step in kept.step])
    gaps = np.abs(kept.rate - planned) / np.maximum(np.abs(planned), 1e-300)
    return float(np.nanmax(gaps)) if np.isfinite(gaps).any() else None
