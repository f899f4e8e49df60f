"""Everything that somebody needs who wants to trust or repeat the run: checkpoints, data, digests, environment, findings."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime

from headway.base.errors import HeadwayError
from headway.base.units import format_bytes
from headway.data.stream import Stream
from headway.recipe.load import name_in_commands
from headway.report.material import Material
from headway.report.page import Block, Code, Inline, Notice, Prose, Section, Table, Tone, code
from headway.report.realised import source_use
from headway.report.rows import Save
from headway.report.words import NONE, duration, exact, percent, plural

CHECKPOINTS, FINDINGS = 24, 20
"""Most rows shown; the newest checkpoints, the first findings."""
MOVED = 1e-9
"""Of a share: less is rounding."""


def origin(material: Material) -> Section:
    blocks = [
        *_findings(material),
        *_checkpoints(material),
        *_sources(material),
        _digests(material),
        _environment(material),
        *_reproduce(material),
    ]
    return Section("origin", "Checkpoints and origin", tuple(blocks))


def _findings(material: Material) -> list[Block]:
    found = material.facts.findings
    if found is None:
        return []
    if not found:
        return [
            Prose(
                "The alarms that look over the history (non-finite values, gradient spikes, rising "
                "held-out loss, a slow end, failed saves) found nothing."
            )
        ]
    rows = tuple((finding.rule.replace("_", " "), exact(finding.step), finding.message) for finding in found[:FINDINGS])
    caption = f"{plural(len(found) - FINDINGS, 'more finding')} not shown." if len(found) > FINDINGS else ""
    return [Table(("finding", ">step", "what was seen"), rows, caption)]


def _checkpoints(material: Material) -> list[Block]:
    saves = material.facts.saves
    if not saves:
        return [Notice("No checkpoint was committed.", Tone.WARN)]
    rows = tuple(_save_row(save) for save in saves[-CHECKPOINTS:])
    caption = (
        "Blocking: training stood still that long, the read-back by retention included. Digest: of the tensors' content, "
        "independent of segment and time."
    )
    if len(saves) > CHECKPOINTS:
        caption += f" {plural(len(saves) - CHECKPOINTS, 'older checkpoint')} not shown."
    return [Table(("checkpoint", ">step", ">size", ">bytes", ">blocking", "state digest", "standing"), rows, caption)]


def _save_row(save: Save) -> tuple[Inline, ...]:
    standing = "in the history" if save.kept else "rolled back: not admissible"
    if not save.present:
        standing += ", removed by retention"
    digest: Inline = code(save.digest) if save.digest else NONE
    return (
        code(save.checkpoint),
        exact(save.step),
        format_bytes(save.size_bytes),
        exact(save.size_bytes),
        duration(save.blocking_ns),
        digest,
        standing,
    )


def _sources(material: Material) -> list[Block]:
    spec, segments = material.facts.spec, material.facts.segments
    if spec is None:
        return []
    try:
        stream = Stream.of_segment(spec, segments[-1].segment) if segments else Stream(spec)
        uses = source_use(stream, material.steps_done)
    except (HeadwayError, KeyError, AssertionError, ZeroDivisionError) as error:
        return [Notice(f"What was taken from each source cannot be worked out: {error}", Tone.WARN)]
    moved = any(abs(use.given_share - use.planned_share) > MOVED for use in uses)
    columns = (
        "source",
        ">tokens in it",
        ">tokens trained",
        ">passes",
        ">share asked",
        *((">share given",) if moved else ()),
        ">share realised",
        *(f">sequences, {s.name}" for s in spec.stages),
        "licence",
    )
    rows = tuple(
        (
            use.name,
            exact(use.tokens_available),
            exact(use.trained_tokens),
            f"{use.passes:.3f}",
            percent(use.planned_share, 3),
            *((percent(use.given_share, 3),) if moved else ()),
            percent(use.realised_share, 3),
            *(exact(n) for n in use.by_stage),
            source.licence,
        )
        for use, source in zip(uses, spec.sources, strict=True)
    )
    return [
        Table(
            columns,
            rows,
            "Shares are of target tokens, over the stages so far; realised ones follow from the stream's "
            "own arithmetic at this step." + (" Given: after caps or a transition changed the mixture." if moved else ""),
        )
    ]


def _digests(material: Material) -> Table:
    facts, spec = material.facts, material.facts.spec
    entries: list[tuple[str, str | None]] = [
        ("recipe", facts.info.get("recipe_digest")),
        ("spec", facts.info.get("spec_digest")),
        ("data manifest", spec.manifest_digest if spec else None),
        ("tokenizer", spec.tokenizer.digest if spec else None),
        *((f"source {source.name}", source.digest) for source in (spec.sources if spec else ())),
        ("final state" if facts.state == "complete" else "newest recorded state", facts.final_digest),
    ]
    rows = [(name, code(digest) if digest else NONE) for name, digest in entries]
    return Table(("what", "digest"), tuple(rows))


def _environment(material: Material) -> Table:
    facts = material.facts
    rows: list[tuple[Inline, ...]] = [
        ("run", (code(facts.info.get("run_id") or NONE), ", a drill: faults were injected" if facts.info.get("drill") else ""))
    ]
    created = (facts.info.get("created") or {}).get("real_ns")
    if isinstance(created, int):
        rows.append(("created", datetime.fromtimestamp(created / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")))
    rows.append(("author", str(facts.info.get("author") or NONE)))
    environments = [attempt.environment for attempt in facts.segments if attempt.environment]
    for key in dict.fromkeys(key for environment in environments for key in environment):
        values = list(dict.fromkeys(str(environment.get(key, NONE)) for environment in environments))
        rows.append((key.replace("_", " "), " → ".join(values)))
    versions = facts.info.get("versions")
    if isinstance(versions, dict):
        known = {key for environment in environments for key in environment}
        rows += [(f"{name} (at creation)", str(version)) for name, version in versions.items() if name not in known]
    return Table(("environment", "value"), tuple(rows))


def _reproduce(material: Material) -> list[Block]:
    info = material.facts.info
    recipe = shlex.quote(name_in_commands(str(info.get("recipe_path") or "recipe.toml")))
    sets = "".join(f" --set {shlex.quote(str(override))}" for override in info.get("overrides") or ())
    deployment = f" --deployment {shlex.quote(str(info['deployment_path']))}" if info.get("deployment_path") else ""
    run = shlex.quote(str(material.facts.root))
    lines = [
        f"headway data build {recipe}{sets}",
        f"headway run {recipe}{deployment}{sets}",
        f"headway report {run}",
    ]
    if material.facts.state != "complete":
        lines.insert(2, f"headway resume {run}")
    text = (
        "To do it again. The same recipe and the same data digests give the same stream and initial weights "
        "anywhere; the same bits follow on the same versions, processor capability and thread count."
    )
    return [Prose(text), Code("\n".join(lines))]
