"""Help texts: complete, fast, and the reference pages are current."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from headway.cli import reference
from headway.cli.help import WIDTH, columns
from headway.cli.main import GROUPS, VERBS

ROOT = Path(__file__).resolve().parents[2]
INNER = [(group, verb) for group, verbs in GROUPS.items() for verb in verbs]
ALL = [(), *((verb,) for verb in VERBS), ("checkpoint",), *INNER]
HELP_SECONDS = 0.2
"""What a person does not notice."""
BARE_INTERPRETERS = 14
"""The same limit where the machine is slow or busy: starting Python alone takes 20 ms on a quiet one."""


def seconds(*arguments: str) -> float:
    """Processor time of one process: what its wall time is on a machine that does nothing else, also where others run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


QUICK = [(), ("plan",), ("plan", "compare"), ("plan", "calibrate"), ("run",), ("checkpoint",)]


@pytest.mark.slow  # a busy machine is no defect: what help imports is tested always
@pytest.mark.parametrize("verb", QUICK, ids=" ".join)
def test_help_comes_at_once(verb):
    script = str(Path(sys.executable).with_name("headway"))
    fastest = min(seconds(script, *verb, "--help") for _ in range(5))
    bare = min(seconds("-c", "pass") for _ in range(3))
    limit = max(HELP_SECONDS, BARE_INTERPRETERS * bare)
    assert fastest < limit, f"headway {' '.join(verb)} --help took {fastest:.3f} s, a bare interpreter {bare:.3f} s"


@pytest.mark.parametrize("verb", ALL, ids=" ".join)
def test_help_imports_nothing_heavy(verb):
    code = (
        "import sys\nfrom headway.cli.main import run_guarded\nrun_guarded([*sys.argv[1:], '--help'])\n"
        "heavy = {'numpy', 'pydantic', 'matplotlib', 'tokenizers', 'torch', 'safetensors', 'rich.markdown'} & set(sys.modules)\n"
        "raise SystemExit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, *verb], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("verb", ALL, ids=" ".join)
def test_help_texts_are_whole_and_fit(verb):
    text = reference.help_text(*verb)
    assert text.startswith(f"Usage: {' '.join(('headway', *verb))}")
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "object at 0x" not in text
    for line in text.splitlines():
        assert line.startswith(" " * 4) or not line.startswith("  --") or len(line.split()) > 1, line


@pytest.mark.parametrize("verb", [verb for verb in ALL if verb], ids=" ".join)
def test_every_option_is_explained(verb):
    text = reference.help_text(*verb)
    options = [
        line for line in text.splitlines() if line.startswith("  -") or line.startswith("  RUN") or line.startswith("  RECIPE")
    ]
    lines = text.splitlines()
    for option in options:
        following = lines[lines.index(option) + 1] if lines.index(option) + 1 < len(lines) else ""
        assert len(option) > 30 or following.startswith(" " * 20), option


@pytest.mark.parametrize("verb", ["plan", "status", "resume", "run", "sample", "report"])
def test_verbs_that_print_facts_have_json(verb):
    assert "--json" in reference.help_text(verb)


def test_reference_pages_are_current():
    """Mend with: make docs"""
    for name, text in reference.pages().items():
        assert (ROOT / "docs" / "reference" / name).read_text() == text, f"docs/reference/{name} is stale: run make docs"


def test_every_verb_of_every_group_is_on_the_page_of_the_command_line():
    headings = [line.removeprefix("## headway").split() for line in reference.cli_page().splitlines() if line.startswith("## ")]
    wanted = [[], *([verb] for verb in VERBS), *([group] for group in GROUPS if group not in VERBS)]
    wanted += [[group, verb] for group, verbs in GROUPS.items() for verb in verbs]
    assert sorted(headings) == sorted(wanted)


def test_every_chip_is_on_its_page_with_its_figures():
    from headway.recipe.chips import CHIPS

    page = reference.pages()["chips.md"]
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert [row[0].strip("`") for row in rows] == list(CHIPS)
    by_name = {row[0].strip("`"): row[1:] for row in rows}
    assert by_name["H100-SXM"][:9] == ["989", "989", "1,979", "-", "80", "3,350", "450", "8", "50"]
    assert by_name["V100-SXM2-16GB"][:4] == ["-", "125", "-", "-"]
    assert by_name["Rubin"][8:10] == ["-", "announced, verified"]
    assert {precision for chip in CHIPS.values() for precision in chip.peaks} <= set(reference.PRECISIONS)


def test_long_names_stand_on_a_line_of_their_own():
    assert list(columns("--short X", "does this")) == ["  --short X                 does this"]
    assert list(columns("--a-very-long-option-name VALUE", "does that")) == [
        "  --a-very-long-option-name VALUE",
        " " * 28 + "does that",
    ]
