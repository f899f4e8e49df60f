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
from synthetic_run import Story, tell

from headway.base.files import write_json
from headway.formulas.flops import Convention, flops_per_token
from headway.report import html, markdown
from headway.report.facts import gather
from headway.report.material import Material
from headway.report.page import Code, Comparison, Page, Prose, Section, Table, Tone, code
from headway.report.planned_values import step_rate
from headway.report.report import ReportPaths, build_page, write_report
from headway.report.sections.time import time
from headway.rundir.layout import RunDirectory

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
    assert len(written.plots) == 5


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
    text = markdown.render(page, dict.fromkeys(("loss", "health", "time", "segments", "closeup-2"), ""))
    assert "3 steps came out different, first step 11" in text
    assert "The recorded environments are the same" in text


def test_replay_that_differs_names_what_changed(tmp_path: Path) -> None:
    story = dataclasses.replace(SHORT, differ_at=11, changed_environment={"threads": 4})
    assert "What changed between the segments: threads (2, then 4)." in words(write_report(tell(tmp_path / "run", story)).html)


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
    assert [path.stem for path in paths.plots] == ["time", "segments"]


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
    from headway.base.clocks import FakeClock
    from headway.rundir.events import EventLog

    log = EventLog(run, 2, FakeClock(boot_ns=10**12))
    log.append("exit", segment=2, code=4, signal=None, reason="run failed")
    log.append("finish", state="failed", reason="the same failure three times")
    page = build_page(Material.of(gather(run)))
    assert page.tone is Tone.BAD
    text = words(write_report(run).html)
    assert "Failed." in text
    assert "the gradient was not finite" in text


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
    text = " ".join(markdown.render_block(block, {"time": ""}) for block in section.blocks)
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
        (directory / "segment.json").write_text(json.dumps(base | {"id": number, "parent": number - 1}))
        (directory / "steps.jsonl").write_bytes(rows)
    paths = write_report(run)
    assert sum(path.stem.startswith("closeup") for path in paths.plots) == 3
    assert "18 restarts" in words(paths.html)
