"""The written files: that they say what the records say, are self-contained, escaped, deterministic, and never fail."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from synthetic_run import Story, tell, tell_attempts

from headway.base.clocks import FakeClock
from headway.base.digests import digest_json
from headway.base.files import write_json
from headway.base.records import encode_record, read_records
from headway.formulas.flops import Convention, flops_per_token
from headway.report import html, markdown
from headway.report.facts import gather
from headway.report.material import Material
from headway.report.page import Code, Comparison, Page, Prose, Section, Table, Tone, code, strong
from headway.report.planned_values import step_rate
from headway.report.report import ReportPaths, build_page, write_report
from headway.report.sections.proof import _places
from headway.report.sections.time import time
from headway.rundir.events import EventLog, read_events
from headway.rundir.layout import RunDirectory
from headway.store.admissible import REJECTED

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>|`</style>&amp;"
SHORT = Story(kill_step=13, restored_step=8, steps=24, save_every=8)
VOID = {"meta", "img", "br", "hr", "link", "input"}


class Checker(HTMLParser):
    """Collects tags, attributes and text; every tag must be closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1:] == [tag], (tag, self.open[-3:])
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parse(path: Path) -> Checker:
    checker = Checker()
    checker.feed(path.read_text())
    checker.close()
    assert checker.open == []
    return checker


def words(path: Path) -> str:
    return " ".join(" ".join(parse(path).text).split())


def test_page_is_self_contained(written: ReportPaths) -> None:
    checker = parse(written.html)
    assert not {"script", "link", "iframe", "object", "embed", "img", "base", "form"} & set(checker.tags)
    for name, value in checker.attributes:
        assert not name.startswith("on"), name
        if name in ("src", "href", "xlink:href", "action", "data"):
            assert value.startswith("#"), (name, value)
    text = written.html.read_text()
    assert "http:" not in text
    assert "https:" not in text
    assert "@import" not in text
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))


def test_fragments_of_the_page_exist(written: ReportPaths) -> None:
    checker = parse(written.html)
    ids = {value for name, value in checker.attributes if name == "id"}
    targets = {value[1:] for name, value in checker.attributes if name == "href"}
    assert targets <= ids
    assert {"outcome", "plan", "training", "recovery", "time", "samples", "origin"} <= ids


def test_markdown_links_resolve(written: ReportPaths) -> None:
    links = re.findall(r"!?\[[^\]]*\]\(([^)]*)\)", written.markdown.read_text())
    assert {f"plots/{path.name}" for path in written.plots} == set(links)
    assert all((written.markdown.parent / link).is_file() for link in links)
    assert len(written.plots) == 7


def test_both_renderings_hold_the_same_content(written: ReportPaths, material: Material) -> None:
    page = build_page(material)
    html_text, markdown_text = words(written.html), written.markdown.read_text()
    for section in page.sections:
        assert section.title in html_text
        assert f"## {section.title}" in markdown_text
        for block in section.blocks:
            if isinstance(block, Table):
                for row in block.rows:
                    assert markdown.inline(row[0]) in markdown_text


def test_numbers_on_the_page_equal_their_source(written: ReportPaths, material: Material) -> None:
    """Each derived number, worked out here from the records, stands on both pages."""
    facts, ledger = material.facts, material.facts.ledger
    assert ledger is not None
    total = ledger.total_ns
    evaluation = facts.evaluations[-1]
    wanted = [
        f"sum to {total:,} ns",
        f"written {total:,} ns after the first",
        *(f"{ns:,}" for ns in ledger.categories.values()),
        f"{100 * ledger.categories['productive'] / total:.2f} %",
        *(f"{value:.4f}" for value in evaluation.loss.values()),
        *(repr(float(loss)) for loss in facts.discarded.loss[[0, -1]]),
        str(facts.discarded.digest[0]).partition(":")[2][:12],
        f"{ledger.committed.tokens:,}",
        f"{ledger.attempted.tokens:,}",
        f"{17 * 4096:,}",
        f"{step_rate(material):,.0f} tokens/s",
        f"{100 * float(facts.kept.clipped.mean()):.1f} % of the steps were clipped",
        *(str(save.digest) for save in facts.saves),
        str(facts.info["spec_digest"]),
        str(facts.final_digest),
    ]
    for text in (words(written.html), written.markdown.read_text()):
        for number in wanted:
            assert number in text, number
    assert ledger.attempted.tokens == ledger.committed.tokens + 17 * 4096


def test_verdict_of_a_clean_recovery(written: ReportPaths) -> None:
    text = words(written.html)
    assert "Complete." in text
    assert "17 steps had to be repeated and came out with bit-identical states." in text
    assert "Nothing was lost but time." in text
    assert "signal 9" in text


def test_verdict_of_a_replay_that_differs(tmp_path: Path) -> None:
    material = Material.of(gather(tell(tmp_path / "run", dataclasses.replace(SHORT, differ_at=11))))
    page = build_page(material)
    assert page.tone is Tone.BAD
    assert "3 did NOT come out as before" in markdown.inline(page.verdict)
    text = markdown.render(page, dict.fromkeys(("loss", "positions", "health", "time", "goodput", "segments", "closeup-2"), ""))
    assert "3 steps came out different, first step 11" in text
    assert "The recorded environments are the same" in text


def test_replay_that_differs_names_what_changed(tmp_path: Path) -> None:
    story = dataclasses.replace(SHORT, differ_at=11, changed_environment={"threads": 4})
    assert "What changed between the segments: threads (2, then 4)." in words(write_report(tell(tmp_path / "run", story)).html)


OTHER_CODE = {"code": "0.1.0+ba9876543210"}


def test_replay_that_differs_after_a_change_of_code_names_it(tmp_path: Path) -> None:
    story = dataclasses.replace(SHORT, differ_at=11, changed_environment=OTHER_CODE)
    text = words(write_report(tell(tmp_path / "run", story)).html)
    assert "3 did NOT come out as before: the code changed in between." in text
    assert "the code changed between the segments (0.1.0+0123456789ab, then 0.1.0+ba9876543210)." in text
    assert "went on with other code (code: 0.1.0+0123456789ab -> 0.1.0+ba9876543210)" in text


def test_the_trainers_own_comparison_counts_where_the_environments_are_lost(tmp_path: Path) -> None:
    """A checkpoint may come from a third segment: what ``restored`` says is the comparison with that one."""
    run = tell(tmp_path / "run", dataclasses.replace(SHORT, differ_at=11, changed_environment=OTHER_CODE))
    for number in (1, 2):
        records = read_records(run.steps_file(number)).records
        without = [{k: v for k, v in record.items() if k != "environment"} for record in records]
        run.steps_file(number).write_bytes(b"".join(encode_record(record) for record in without))
    assert "the code changed between the segments" in words(write_report(run).html)


def test_how_exactly_a_segment_repeats_is_in_the_table(tmp_path: Path) -> None:
    text = write_report(
        tell(tmp_path / "run", dataclasses.replace(SHORT, changed_environment={"threads": 4}))
    ).markdown.read_text()
    assert "| 1 | – | initial weights | bitwise |" in text
    assert "| 2 | 1 | step 8, `g0001-s00000008` | within tolerance |" in text


def test_killed_before_the_first_commit(tmp_path: Path) -> None:
    text = words(write_report(tell_attempts(tmp_path / "run", [5, 3, 24])).html)
    assert "nothing interrupted the run" not in text
    assert "Segment 1 was killed after step 5" in text
    assert "The kill and the recovery" in text
    assert "Segment 2 was killed after step 3" in text
    assert (
        "Segment 3 restored the initial weights and went on from step 0. 3 steps with 12,288 tokens had to be done again" in text
    )
    assert "Steps 1 to 5 were executed more than once and agree to the bit." in text


def test_killed_before_a_step(tmp_path: Path) -> None:
    text = words(write_report(tell_attempts(tmp_path / "run", [9, 8, 24])).html)
    assert "Segment 2 was killed before it had done a step" in text
    assert "No work was lost." in text


def test_a_trainer_whose_owner_died_was_cut_off(tmp_path: Path) -> None:
    exits = {"signal": None, "reason": "its owner had died; its trainer was gone too, and nobody saw how it ended"}
    text = words(write_report(tell_attempts(tmp_path / "run", [13, 24], exits=exits)).html)
    assert "Segment 1 was cut off after step 13 (its owner had died; its trainer was gone too" in text
    assert "The kill and the recovery" not in text
    assert "exit None" not in text


def test_late_records_are_shown_and_count_for_nothing(tmp_path: Path) -> None:
    run = tell(tmp_path / "run", dataclasses.replace(SHORT, finish=False, end_step=10))
    link = read_events(run)[-1]
    before = gather(run)
    late = {"kind": "finish", "stamp": FakeClock(boot_ns=link["stamp"]["boot_ns"] + 5 * 10**9).stamp().to_json()}
    late |= {"state": "failed", "reason": "thought it was still the owner", "closes": "reconfigure"}
    with open(run.events / "epoch-000001.jsonl", "ab") as file:
        file.write(encode_record(late))
    successor = {"kind": "open", "stamp": link["stamp"], "epoch": 2, "closes": "unknown"}
    successor["previous"] = {"digest": digest_json(link), "gap_ns": 0, "clock": "boot"}
    (run.events / "epoch-000002.jsonl").write_bytes(encode_record(successor))
    facts = gather(run)
    assert [record["kind"] for record in facts.late] == ["finish"]
    assert facts.state == "unfinished"
    assert facts.categories == before.categories
    text = words(write_report(run).html)
    assert "thought it was still the owner" in text
    assert "after it had lost its lease" in text


def test_a_checkpoint_that_retention_refused_is_shown(tmp_path: Path) -> None:
    """Found damaged when it was read back, before anybody wanted to restore it."""
    run = tell(tmp_path / "run", SHORT)
    refused = {"checkpoint": "g0001-s00000008", "reason": "a block of rank-0 differs"}
    (run.checkpoints / REJECTED).write_bytes(encode_record(refused))
    text = words(write_report(run).html)
    assert "g0001-s00000008 a block of rank-0 differs" in text
    assert "checkpoint g0001-s00000008 was refused" in text, "the alarms know it too"


def test_no_late_records_no_table(written: ReportPaths) -> None:
    assert "lost its lease" not in words(written.html)


def test_same_run_gives_same_bytes(killed_run: RunDirectory, written: ReportPaths, tmp_path: Path) -> None:
    again = write_report(killed_run, tmp_path / "here")
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in written]
    program = "import sys; from pathlib import Path; from headway.report.report import write_report; "
    program += (
        "from headway.rundir.layout import RunDirectory; write_report(RunDirectory.open(Path(sys.argv[1])), Path(sys.argv[2]))"
    )
    environment = os.environ | {"PYTHONHASHSEED": "77", "TZ": "Asia/Tokyo", "LC_ALL": "C"}
    subprocess.run([sys.executable, "-c", program, str(killed_run.root), str(tmp_path / "there")], check=True, env=environment)
    for path in written:
        relative = path.relative_to(written.html.parent)
        assert (tmp_path / "there" / relative).read_bytes() == path.read_bytes(), relative


def test_text_from_files_is_escaped(tmp_path: Path) -> None:
    run = tell(tmp_path / "run", dataclasses.replace(SHORT, hostile=HOSTILE))
    paths = write_report(run)
    checker = parse(paths.html)
    assert not {"script", "img"} & set(checker.tags)
    assert not [name for name, _ in checker.attributes if name.startswith("on")]
    text = "".join(checker.text)
    assert text.count(HOSTILE) > 5
    source = paths.markdown.read_text()
    outside = re.sub(r"^(`{3,})text\n.*?\n\1$", "", source, flags=re.DOTALL | re.MULTILINE)
    outside = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "", outside)
    assert not re.search(r"(?<!\\)<(script|img)", outside)


def test_markdown_tables_keep_their_columns(tmp_path: Path) -> None:
    run = tell(tmp_path / "run", dataclasses.replace(SHORT, hostile=HOSTILE))
    width = None
    for line in write_report(run).markdown.read_text().splitlines():
        if not line.startswith("| "):
            width = None
            continue
        cells = len(re.findall(r"(?<!\\)\|", line)) - 1
        assert width in (None, cells), line
        width = cells


def test_code_block_cannot_be_closed_by_its_text() -> None:
    text = "a\n```\n# not a heading\n````"
    block = markdown.render_block(Code(text), {})
    fence = block.split("text")[0]
    assert len(fence) > 4
    assert block.endswith("\n" + fence)
    shown = markdown.render_block(Comparison("`", ("x", "y"), (text, None)), {})
    assert "`` ` ``" in shown


def test_escape_leaves_numbers_alone_and_stops_lists() -> None:
    assert markdown.escape("2.189 nats") == "2.189 nats"
    assert markdown.escape("1. not a list") == "1\\. not a list"
    assert markdown.escape("- not a list") == "\\- not a list"
    assert markdown.escape("a_b *c* <d> | e") == "a_b \\*c\\* \\<d\\> \\| e"
    assert markdown.escape("line\nbreak") == "line break"


def test_strong_text_keeps_its_spaces_outside_the_marks() -> None:
    assert markdown.inline((strong("The books close: "), "they sum")) == "**The books close:** they sum"
    assert markdown.inline(strong(" ")) == " "


def test_places_of_repeated_steps_in_words() -> None:
    assert _places([7]) == "step 7"
    assert _places([41, 42, 43]) == "steps 41 to 43"
    assert _places([1, 1, 2, 13]) == "steps 1 to 2 and 13"
    assert _places(list(range(1, 40, 3))) == "13 steps between 1 and 37"


def test_html_renderer_escapes_every_kind_of_block() -> None:
    blocks = (
        Prose(("x", code(HOSTILE))),
        Table((HOSTILE, ">n"), ((HOSTILE, "1"),), HOSTILE),
        Code(HOSTILE),
        Comparison(HOSTILE, (HOSTILE, "b"), (HOSTILE, None)),
    )
    page = Page(HOSTILE, HOSTILE, HOSTILE, Tone.PLAIN, (), (Section("a", HOSTILE, blocks),), HOSTILE)
    checker = Checker()
    checker.feed(html.render(page, {}))
    checker.close()
    assert checker.open == []
    assert not {"script", "img"} & set(checker.tags)


def _fresh(path: Path) -> RunDirectory:
    """A run that was created and never started."""
    run = tell(path, SHORT)
    for directory in (run.events, run.segments, run.checkpoints):
        shutil.rmtree(directory)
        directory.mkdir()
    return run


def test_run_that_never_started(tmp_path: Path) -> None:
    text = words(write_report(_fresh(tmp_path / "run")).html)
    assert "Unfinished" in text
    assert "no step is recorded" in text
    assert "No segment is recorded" in text
    assert "No checkpoint was committed." in text


def test_run_whose_trainer_only_started(tmp_path: Path) -> None:
    run = tell(tmp_path / "run", Story(kill_step=None, end_step=0, finish=False, sample=False, steps=24))
    paths = write_report(run)
    assert "No step is recorded yet" in words(paths.html)
    assert [path.stem for path in paths.plots] == ["time", "goodput", "segments"]


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_run_of_a_few_steps(tmp_path: Path, steps: int) -> None:
    text = words(write_report(tell(tmp_path / "run", Story(kill_step=None, end_step=steps, finish=False, steps=24))).html)
    assert f"in {steps} of 24 steps" in text


def test_killed_and_nobody_came_back(tmp_path: Path) -> None:
    run = tell(tmp_path / "run", dataclasses.replace(SHORT, end_step=13))
    shutil.rmtree(run.segment(2))
    text = words(write_report(run).html)
    assert "5 " in text
    assert "done, not yet in a checkpoint" in text


def test_no_samples_no_evaluations_no_plan(tmp_path: Path) -> None:
    run = tell(tmp_path / "run", dataclasses.replace(SHORT, sample=False, evaluate=False, plan=False))
    text = words(write_report(run).html)
    assert "No held-out evaluation is recorded." in text
    assert "No sample is recorded" in text
    assert "No plan was stored" in text


@pytest.mark.parametrize("name", ["spec.json", "plan.json", "events/epoch-000001.jsonl", "segments/0001/segment.json"])
@pytest.mark.parametrize("damage", ["remove", "garbage"])
def test_any_damaged_file_is_said_and_survived(tmp_path: Path, name: str, damage: str) -> None:
    run = tell(tmp_path / "run", SHORT)
    path = run.root / name
    path.unlink() if damage == "remove" else path.write_bytes(b'{"kind": [')
    text = words(write_report(run).html)
    assert "Missing from this page" in text or "No plan was stored" in text or "No time is recorded" in text


def test_failed_run_shows_its_error(tmp_path: Path) -> None:
    run = tell(tmp_path / "run", dataclasses.replace(SHORT, finish=False, end_step=10))
    problem = {"seen": "the gradient was not finite", "rule": "", "way_out": "", "where": ""}
    write_json(run.segment(2) / "error.json", {"label": "run failed", "problems": [problem], "exit_code": 4})
    log = EventLog(run, 2, FakeClock(boot_ns=10**12))
    log.append("exit", segment=2, code=4, signal=None, reason="run failed")
    log.append("finish", state="failed", reason="the same failure three times")
    page = build_page(Material.of(gather(run)))
    assert page.tone is Tone.BAD
    text = words(write_report(run).html)
    assert "Failed." in text
    assert "the gradient was not finite" in text


def test_an_error_that_only_noticed_the_end_is_not_shown_as_its_cause(tmp_path: Path) -> None:
    ended = {"rank": 1, "lost_node": "n1", "reason": "node n1 was lost with rank 1: its agent was ended by SIGKILL"}
    run = tell_attempts(tmp_path / "run", [13, 24], exits=ended)
    problem = {"seen": "RuntimeError: Connection reset by peer", "rule": "", "way_out": "", "where": ""}
    error = {"label": "run failed", "problems": [problem], "exit_code": 4, "rank": 0}
    write_json(run.segment(1) / "error.json", error)
    told = "Segment 1 failed: node n1 was lost with rank 1: its agent was ended by SIGKILL. Rank 0 noticed it as: RuntimeError"
    page = words(write_report(run).html)
    assert told in page
    assert "Segment 1 was cut off after step 13 (node n1 was lost with rank 1: its agent" in page
    write_json(run.segment(1) / "error.json", error | {"rank": 1})
    assert "Segment 1 failed: RuntimeError: Connection reset by peer" in words(write_report(run).html)


def test_changed_environment_is_said(tmp_path: Path) -> None:
    text = words(write_report(tell(tmp_path / "run", dataclasses.replace(SHORT, changed_environment={"threads": 4}))).html)
    assert "threads: 2 -> 4" in text
    assert "not to the bit" in text
    assert "2 → 4" in text


def test_G2_unknown_peak_is_no_mfu(written: ReportPaths) -> None:
    text = words(written.html)
    assert "MFU is not shown" in text
    assert "never borrowed" in text


def test_G3_mfu_names_its_convention(tmp_path: Path) -> None:
    run = tell(tmp_path / "run", dataclasses.replace(SHORT, peak_flops="1T"))
    material = Material.of(gather(run))
    spec, rate = material.facts.spec, step_rate(material)
    assert spec is not None
    assert rate is not None
    text = words(write_report(run).html)
    for convention in Convention:
        flops = flops_per_token(spec.model, 256, convention)
        assert f"{flops:.4g} {100 * flops * rate / 1e12:.2f} %" in text
    assert "not possible" not in text


def test_G2_mfu_above_100_percent_raises_an_alarm(tmp_path: Path) -> None:
    text = words(write_report(tell(tmp_path / "run", dataclasses.replace(SHORT, peak_flops="1G"))).html)
    assert "An MFU above 100 % is not possible" in text


def test_G1_books_that_do_not_close_are_said(material: Material) -> None:
    ledger = material.facts.ledger
    assert ledger is not None
    short = dataclasses.replace(ledger, intervals=ledger.intervals[:-1])
    facts = dataclasses.replace(material.facts, ledger=short, categories=short.categories)
    section = time(dataclasses.replace(material, facts=facts))
    text = " ".join(markdown.render_block(block, {"time": "", "goodput": ""}) for block in section.blocks)
    assert "The books do not close" in text
    assert f"a difference of {ledger.intervals[-1].ns:,} ns" in text


def test_stale_plots_go(tmp_path: Path) -> None:
    run = tell(tmp_path / "run", SHORT)
    stale = tmp_path / "out" / "plots" / "closeup-9.svg"
    stale.parent.mkdir(parents=True)
    stale.write_text("old")
    write_report(run, tmp_path / "out")
    assert not stale.exists()


def test_many_interruptions(tmp_path: Path) -> None:
    """Every one is in the tables; only some are drawn close up."""
    run = tell(tmp_path / "run", SHORT)
    rows = run.steps_file(2).read_bytes()
    base = json.loads((run.segment(2) / "segment.json").read_text())
    for number in range(3, 20):
        directory = run.segment(number)
        directory.mkdir()
        (directory / "segment.json").write_text(json.dumps(base | {"id": number}))
        (directory / "steps.jsonl").write_bytes(rows)
    paths = write_report(run)
    assert sum(path.stem.startswith("closeup") for path in paths.plots) == 3
    assert "18 restarts" in words(paths.html)
