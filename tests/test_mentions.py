"""What texts mention exists: files, modules and names, in docstrings, strings and documents."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src/headway").rglob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = {
    path.relative_to(ROOT / "src").with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__") for path in SOURCES
}
FILES = {path.relative_to(ROOT).as_posix() for room in ("src", "bench", "tests") for path in (ROOT / room).rglob("*.py")}
ROOMS = ("plan", "recipe", "formulas", "monitor", "store", "rundir", "supervise", "base", "cli", "engine", "optim", "checkpoint")
"""Those whose names are no tables of a recipe."""
NO_MODULES = r"toml|json|html|md|jsonl"


def texts() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        yield page.relative_to(ROOT).as_posix(), page.read_text()
    for path in [*SOURCES, *(ROOT / "bench").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node.value


def missing_files(text: str) -> list[str]:
    """Of ``x/y.py`` and ``y.py``: those that end no path of the repository."""
    named = re.findall(r"(?<![\w{}-])[a-z0-9_/]+\.py\b", text)
    return [name for name in named if not any(f"/{path}".endswith(f"/{name.lstrip('/')}") for path in FILES)]


def missing_modules(text: str) -> list[str]:
    """Of ``room.module`` and ``room.module.name``: those that are none."""
    named = re.findall(rf"(?<![\w./-])(?:headway\.)?((?:{'|'.join(ROOMS)})\.(?!(?:{NO_MODULES})\b)[a-z_]\w*(?:\.\w+)*)", text)
    return [name for name in named if not is_module(f"headway.{name}") and not is_module(f"headway.{name.rpartition('.')[0]}")]


def is_module(name: str) -> bool:
    return name in MODULES and name.count(".") > 1


def identifiers() -> set[str]:
    """Every name and every word of a string that is no docstring, in all that is written here."""
    found = {Path(name).stem for name in FILES}
    for name in FILES:
        tree = ast.parse((ROOT / name).read_text())
        spoken = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            found |= {value for key in ("id", "attr", "name", "arg") if isinstance(value := getattr(node, key, None), str)}
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in spoken:
                found |= set(re.findall(r"\w+", node.value))
    return found


def test_files_and_modules_that_are_mentioned_exist():
    wrong = {place: found for place, text in texts() if (found := missing_files(text) + missing_modules(text))}
    assert wrong == {}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see ``plan/step/step_time.py`` and ``rates.py``", []),
        ("see plan/step_time.py", ["plan/step_time.py"]),
        ("by plan.step_time", ["plan.step_time"]),
        ("by headway.recipe.chips and recipe.chips.CHIPS", []),
        ("in recipe.toml, plan.json", []),
        ("--calibrated.py--> and simulated_nodes.py", ["simulated_nodes.py"]),
    ],
)
def test_the_search_finds_what_is_missing(text, found):
    assert missing_files(text) + missing_modules(text) == found


def test_names_in_double_backticks_exist():
    known = identifiers() | {"toml", "json", "py", "md", "assert", "nvidia_h100_80gb", "verify_over_read"}
    wrong = {
        place: name
        for place, text in texts()
        for name in re.findall(r"``([a-zA-Z_][\w.]*)(?:\(\))?``", text)
        if not set(name.split(".")) <= known
    }
    assert wrong == {}


# --- what cannot be looked up elsewhere


CITING = sorted([*(ROOT / "recipes").glob("*.toml"), *SOURCES])
CITED = re.compile(
    r"docs/sources\.md: (the [\w -]+?)(?:, (parts?|claims?) ([\d, and]*\d)|, (script|elasticity))?(?=[\"';:.]| against|$)"
)
"""Chapter, and the rows of its tables."""


def chapters() -> dict[str, str]:
    page = (ROOT / "docs/sources.md").read_text()
    return {text.partition("\n")[0].casefold(): text for text in page.split("\n## ")[1:]}


def rows_of(chapter: str) -> set[str]:
    """First words of a chapter's tables: parts by number, claims by number, names."""
    firsts = re.findall(r"^\| ([^|]+?) \|", chapters()[chapter], flags=re.MULTILINE)
    return {first.partition(",")[0] for first in firsts}


def test_citations_of_the_sources_page_are_on_it():
    found = [(path, match) for path in CITING for match in CITED.finditer(path.read_text())]
    assert len(found) > 30
    for path, match in found:
        chapter, numbers, word = match[1].casefold(), re.findall(r"\d", match[3] or ""), match[4]
        assert chapter in chapters(), path
        assert {*numbers, *([word] if word else [])} <= rows_of(chapter), (path, match[0])


def test_nothing_cites_a_text_that_nobody_has():
    for path in [*CITING, *PAGES]:
        assert "mission text" not in path.read_text(), path
