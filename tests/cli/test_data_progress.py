"""What a data build tells becomes lines: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import pytest

from headway.base.clocks import FakeClock
from headway.cli.data_progress import BuildProgress, on_screen, progress_of

MIB = 2**20


def documents(source: str, size: int) -> dict:
    return {"source": source, "documents": 10, "bytes": size, "dropped": {}, "kept": False}


def tokens(source: str, done: int, *, kept: int = 0, total: int = 8 * MIB) -> dict:
    facts = {"source": source, "done": 1, "documents": 2, "tokens": done // 4, "bytes": done, "total_bytes": total}
    return facts | {"kept_tokens": kept // 4, "kept_bytes": kept}


@pytest.fixture
def shown() -> list[tuple[str, bool]]:
    return []


@pytest.fixture
def build(shown):
    clock = FakeClock()
    progress = BuildProgress(lambda line, stays: shown.append((line, stays)), clock, every_seconds=10)

    def tell(seconds: float, what: str, facts: dict) -> None:
        clock.advance(seconds)
        progress.tell(what, facts)

    return tell


def test_throughput_is_of_what_this_build_made(build, shown):
    build(1, "reading", {"source": "a", "documents": 4, "bytes": MIB})
    build(19, "reading", {"source": "a", "documents": 8_000, "bytes": 5 * MIB})
    build(1, "documents", documents("a", 8 * MIB))
    build(1, "documents", documents("b", 8 * MIB))
    build(60, "tokenizer", {"vocabulary": 300, "digest": "sha256:0"})
    build(0, "tokens", tokens("a", 4 * MIB, kept=4 * MIB))
    build(4, "tokens", tokens("a", 6 * MIB, kept=4 * MIB))
    build(4, "tokens", tokens("a", 8 * MIB, kept=4 * MIB))
    build(2, "tokens", tokens("b", 2 * MIB))
    build(9, "tokens", tokens("b", 4 * MIB))
    build(1, "tokens", tokens("b", 8 * MIB))
    build(0, "written", {"directory": "d", "digest": "sha256:1"})
    assert shown == [
        ("- a: 8,000 documents so far, 5 MiB, 256 KiB/s", False),
        ("- tokens: [###############.........] 62% of 16 MiB, 614 KiB/s, 157k tokens/s, 10 s left", False),
        ("- tokens: 4,194,304 of 16 MiB, 614 KiB/s, 157k tokens/s", False),
        ("- tokens: 4,194,304 of 16 MiB, 614 KiB/s, 157k tokens/s", True),
        ("- taken over from a build that did not end: tokens of 4 MiB", True),
    ]


def test_data_that_is_used_again_has_no_throughput(build, shown):
    build(100, "documents", documents("a", MIB))
    build(100, "reused", {"directory": "d", "digest": "sha256:1"})
    assert shown == []


def test_a_terminal_has_one_line_that_is_written_anew(capsys):
    show = on_screen(live=True)
    for line, stays in (("10%", False), ("20%", False), ("done", True)):
        show(line, stays)
    assert capsys.readouterr().out == "\r\x1b[K10%\r\x1b[K20%\r\x1b[Kdone\n"
    show = on_screen(live=False)
    show("10%", False)
    show("done", True)
    assert capsys.readouterr().out == "10%\ndone\n"


def test_stages_are_told_beside_it(capsys):
    tell = progress_of(live=False)
    tell("documents", documents("a", MIB))
    tell("tokens", tokens("a", MIB))
    tell("written", {"directory": "d", "digest": "sha256:1"})
    first, last = capsys.readouterr().out.splitlines()
    assert first == "- a: 10 documents"
    assert last.startswith("- tokens: 262,144 of 1 MiB, ")


def test_what_a_step_left_out_is_told_once(capsys):
    facts = documents("a", MIB) | {"dropped": {"empty": 2, "generated": 3, "short": 4}}
    tell = progress_of(live=False)
    tell("documents", facts)
    tell("documents", facts | {"by_steps": {"generated": 1, "short": 4}})
    assert capsys.readouterr().out.splitlines() == [
        "- a: 10 documents; left out: 2 empty, 3 generated, 4 short",
        "- a: 10 documents; left out: 2 empty, 2 generated",
    ]


def test_training_the_tokenizer_is_told_before_it_begins(capsys):
    tell = progress_of(live=False)
    tell("training", {"bytes": 5 * MIB})
    tell("tokenizer", {"vocabulary": 300, "digest": "sha256:0", "kept": False})
    tell("tokenizer", {"vocabulary": 300, "digest": "sha256:0", "kept": True})
    assert capsys.readouterr().out.splitlines() == [
        "- tokenizer: training on 5 MiB of text",
        "- tokenizer: 300 entries, digest 0",
        "- tokenizer: 300 entries, digest 0, taken over from a build that did not end",
    ]


def test_a_source_that_is_prepared_is_told_as_it_is_prepared(build, shown):
    build(1, "preparing", {"source": "a", "documents": 400, "bytes": MIB, "kept": 300})
    build(19, "preparing", {"source": "a", "documents": 8_000, "bytes": 5 * MIB, "kept": 7_000})
    build(11, "reading", {"source": "a", "documents": 7_000, "bytes": 4 * MIB})
    build(1, "prepared", {"source": "a"})
    build(10, "preparing", {"source": "b", "documents": 10, "bytes": 10 * MIB, "kept": 10})
    assert shown == [
        ("- a: 8,000 documents so far, 5 MiB, 256 KiB/s; 7,000 kept", False),
        ("- b: 10 documents so far, 10 MiB, 1 MiB/s; 10 kept", False),
    ]
