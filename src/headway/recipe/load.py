"""From a file or a preset's name to a Recipe or a Deployment: read, override, validate, and name every problem at once.

    recipes/demo.toml --tomllib--> plain data --(--set ...)--> plain data --schema, checks--> LoadedRecipe
                                                                              |
                                            all problems: file:line, what was seen, the rule, the way out

pydantic takes a moment to import, so the schemas are imported by the functions that need them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from headway.base.errors import ConfigError, Problem, from_os_error
from headway.recipe.checks import Finding, check_recipe, nearest_hint, run_checks
from headway.recipe.lines import KeyPath, key_lines, line_of
from headway.recipe.overrides import apply_overrides, shown
from headway.recipe.plain_values import DEEPEST, unfit_values

if TYPE_CHECKING:
    from pydantic import BaseModel

    from headway.recipe.deployment import Deployment
    from headway.recipe.schema import Recipe

M = TypeVar("M", bound="BaseModel")

DEPLOYMENT_PREFIX = "deployment."
"""What overrides of a deployment begin with on the command line."""

LARGEST_TEXT_BYTES = 2**20
"""Of a recipe or deployment; a device or a data file named by mistake ends here."""


@dataclass(frozen=True)
class Document:
    """One TOML text with its overrides, and where everything in it stands."""

    text: str
    path: str
    data: dict = field(repr=False)
    lines: dict[KeyPath, int] = field(repr=False)
    applied: dict[KeyPath, str] = field(repr=False)

    def locate(self, path: KeyPath) -> str:
        """``file:line`` of a key path, or the override that set it; of the nearest table when the key itself is absent."""
        for key, override in self.applied.items():
            if _starts(path, key):
                return shown(override)
        if path not in self.lines:
            for key, override in self.applied.items():
                if _starts(key, path):
                    return shown(override)
        line = line_of(self.lines, path)
        return f"{self.path}:{line}" if line else self.path


@dataclass(frozen=True)
class LoadedRecipe:
    """A recipe that can be read, with the text it came from. ``digest`` is of its meaning, not of its text."""

    recipe: Recipe
    text: str
    path: str
    overrides: tuple[str, ...]
    digest: str
    document: Document = field(repr=False)

    def locate(self, path: KeyPath) -> str:
        return self.document.locate(path)


def load_recipe(path_or_preset: str | Path, overrides: Iterable[str] = ()) -> LoadedRecipe:
    """Read a recipe from a file or by a preset's name; ConfigError lists every problem."""
    from headway.recipe.digests import recipe_digest
    from headway.recipe.problems import parse_all
    from headway.recipe.schema import Recipe

    path = find_recipe(path_or_preset)
    document, problems = read_document(path, list(overrides), kind="recipe")
    _refuse_another_kind(document, ("recipe",))
    recipe, found = parse_all(Recipe, document)
    problems += found + place(recipe_findings(recipe, document), document)
    if problems:
        raise ConfigError(sorted_problems(problems))
    assert recipe is not None
    return LoadedRecipe(recipe, document.text, str(path), tuple(overrides), recipe_digest(recipe), document)


def load_deployment(path: str | Path | None = None, overrides: Iterable[str] = (), *, runnable: bool = True) -> Deployment:
    """Read a deployment; None: one process on this machine. ``runnable=False`` admits what can be planned but not yet run."""
    from headway.recipe.deployment import Deployment
    from headway.recipe.placement import check_deployment

    found_path = find_deployment(path) if path is not None else None
    document, problems = read_document(found_path, list(overrides), kind="deployment")
    return validated(Deployment, document, problems, lambda deployment: check_deployment(deployment, runnable=runnable))


def recipe_findings(recipe: Recipe | None, document: Document) -> list[Finding]:
    """Checks across fields, on the whole recipe or on those sections and stages that can be read by themselves."""
    from headway.recipe.problems import read_part
    from headway.recipe.schema import Recipe, Stage

    if recipe is not None:
        return check_recipe(recipe)
    stages = {i: read_part(Stage, value) for i, value in enumerate(_tables(document.data.get("stages")))}
    data = document.data.get("data")
    sources = _tables(data.get("sources")) if isinstance(data, dict) else []
    names = [str(source["name"]) for source in sources if "name" in source]

    def part(name: str) -> Any:
        return read_part(Recipe.model_fields[name].annotation, document.data.get(name))

    return run_checks(part, {i: stage for i, stage in stages.items() if stage is not None}, names)


def _tables(value: Any) -> list[dict]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def read_document(path: Path | None, overrides: list[str], kind: str) -> tuple[Document, list[Problem]]:
    """The TOML of ``path`` (None: an empty file) with its overrides applied. A syntax error ends the reading."""
    text = _read_text(path, kind) if path is not None else ""
    data, lines = _read_toml(text, path)
    applied, problems = apply_overrides(data, overrides, DEPLOYMENT_PREFIX if kind == "deployment" else "")
    document = Document(text, str(path) if path else f"default {kind}", data, lines, applied)
    _refuse_another_kind(document, (kind, "schedule") if kind == "recipe" else (kind,))
    unfit = place(unfit_values(data), document)
    if unfit:  # nothing may touch these values, so the schema's own findings must wait
        raise ConfigError(sorted_problems(problems + unfit))
    return document, problems


READERS = {
    "recipe": "headway plan FILE plans it, headway run FILE trains it",
    "schedule": "headway plan FILE shows it; published without its model, it cannot be built or trained",
    "deployment": "headway plan RECIPE --deployment FILE plans on it, or --cluster FILE in place of the recipe's own",
    "worksheet": "headway plan worksheet FILE shows it",
    "published": "headway plan shows it beside the plan of the recipe of that name",
}
"""Kinds of files, and which command reads them."""
CALLED = {"schedule": "a published schedule", "published": "a list of published figures"}


def _refuse_another_kind(document: Document, kinds: tuple[str, ...]) -> None:
    """A file that says it is something else ends the reading: its keys would all be unknown or missing."""
    kind = document.data.get("kind")
    if isinstance(kind, str) and kind in READERS and kind not in kinds:
        where = document.locate(("kind",))
        way_out = READERS[kind].replace("FILE", document.path)
        raise ConfigError(f"this file is {CALLED.get(kind, f'a {kind}')}", f"a {kinds[0]} is needed here", way_out, where)


def _read_toml(text: str, path: Path | None) -> tuple[dict, dict[KeyPath, int]]:
    """The data and the line of every key; one clear error for whatever the parsers make of the text."""
    import re

    try:
        return tomllib.loads(text), key_lines(text)
    except tomllib.TOMLDecodeError as error:
        raise _syntax_error(error, text, path) from error
    except RecursionError:
        rule = f"values are nested at most {DEEPEST} deep"
        raise ConfigError("lists or tables are nested too deep", rule, "check the brackets", str(path)) from None
    except ValueError as error:  # the parser's limit of digits
        found = re.search(r"[0-9_]{4000}", text)
        line = text.count("\n", 0, found.start() if found else 0) + 1
        seen, rule = "a value cannot be read", "whole numbers lie between -2^63 and 2^63"
        raise ConfigError(seen, rule, "check the number", f"{path}:{line}" if found else str(path)) from error


def validated(model: type[M], document: Document, problems: list[Problem], findings: Callable[[M], Iterable[Finding]]) -> M:
    """``document`` as ``model``. ConfigError lists ``problems`` of reading it, what the schema finds, and else ``findings``."""
    from headway.recipe.problems import parse_all

    made, found = parse_all(model, document)
    if made is not None:
        found += place(findings(made), document)
    if problems or found or made is None:
        raise ConfigError(sorted_problems(problems + found))
    return made


def place(findings: Iterable[Finding], document: Document) -> list[Problem]:
    """Give each finding its file and line."""
    return [Problem(p.seen, p.rule, p.way_out, document.locate(path)) for path, p in findings]


def sorted_problems(problems: list[Problem]) -> list[Problem]:
    """By file and line, each once."""

    def key(problem: Problem) -> tuple[str, int]:
        head, _, line = problem.where.rpartition(":")
        is_line = line.isascii() and line.isdecimal() and len(line) <= 9  # an override may end in anything
        return (head, int(line)) if is_line else (problem.where, 0)

    return sorted(dict.fromkeys(problems), key=key)


# --- finding files ------------------------------------------------------------------------------------------------------


def preset_directory() -> Path:
    """Where the shipped recipes lie: inside the installed package, or at the root of a checkout."""
    import headway

    package = Path(headway.__file__).parent
    installed = package / "recipes"
    return installed if installed.is_dir() else package.parents[1] / "recipes"


def preset_names(kind: str = "recipe") -> list[str]:
    """Names of the shipped recipes; ``kind="schedule"``: of what is published without a model."""
    files = [p for p in preset_directory().glob("*.toml") if not p.name.endswith((".deployment.toml", ".published.toml"))]
    return sorted(p.stem for p in files if f'kind = "{kind}"' in p.read_text("utf-8").splitlines())


def is_shipped(name: str) -> bool:
    """Whether a preset or worksheet has that name."""
    bare = name not in ("", ".", "..") and Path(name).name == name
    return bare and any((preset_directory() / f"{name}{suffix}").is_file() for suffix in (".toml", ".worksheet.toml"))


def name_in_commands(path: str) -> str:
    """What a command calls the recipe at ``path``: a preset that was found by its name by that name, a file by its path."""
    preset = Path(path).stem
    return preset if preset in preset_names() and path == str(preset_directory() / f"{preset}.toml") else path


def find_recipe(path_or_preset: str | Path) -> Path:
    """A path as given, or the file of a preset when the name has neither separator nor suffix."""
    return _find(path_or_preset, ".toml", "recipe")


def find_deployment(path_or_preset: str | Path) -> Path:
    return _find(path_or_preset, ".deployment.toml", "deployment")


def _find(given: str | Path, suffix: str, kind: str) -> Path:
    path = Path(given)
    if len(path.parts) > 1 or path.is_absolute() or str(given) in ("", ".", ".."):
        return path
    shipped = preset_directory() / f"{given}{suffix}"
    if shipped.is_file():  # asked before the suffix: a preset's name may hold a dot
        return shipped
    if path.suffix:
        return path
    if kind == "recipe":
        names = preset_names() + preset_names("schedule")
    else:
        names = [p.name.removesuffix(suffix) for p in preset_directory().glob(f"*{suffix}")]
    if kind == "recipe" and (str(given) == "example" or (preset_directory() / f"{given}.worksheet.toml").is_file()):
        raise ConfigError(f"{given} is a worksheet", "a recipe is needed here", f"headway plan worksheet {given} shows it")
    raise ConfigError(
        f"there is no preset named {str(given)!r}",
        f"presets are {', '.join(sorted(names)) or '(none found)'}; a file is named with its suffix or its directory",
        nearest_hint(str(given), names) or f"for a file write {given}.toml or ./{given}",
    )


def _read_text(path: Path, kind: str) -> str:
    try:
        with path.open("rb") as file:  # once: it may be a pipe
            data = file.read(LARGEST_TEXT_BYTES + 1)
        if len(data) > LARGEST_TEXT_BYTES:
            raise ConfigError(f"{path} is longer than 1 MiB", f"a {kind} is a TOML file of a few KiB", "check the path")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError("the text is not UTF-8", "TOML is UTF-8", "save the file as UTF-8", f"{path}:{line}") from error
    except FileNotFoundError as error:
        rule = "it is a TOML file or the name of a preset"
        raise ConfigError(f"there is no {kind} at {path}", rule, "check the path") from error
    except IsADirectoryError as error:
        raise ConfigError(f"{path} is a directory", f"a {kind} is a TOML file", "name the file in it") from error
    except OSError as error:
        raise from_os_error(error, path, f"cannot read {kind}") from error


def _syntax_error(error: tomllib.TOMLDecodeError, text: str, path: Path | None) -> ConfigError:
    import re

    message = str(error)
    found = re.search(r"\(at line (\d+), column (\d+)\)", message)
    line = int(found[1]) if found else text.count("\n") + 1
    shown = text.splitlines()[line - 1].strip() if line <= len(text.splitlines()) else "(end of file)"
    seen = re.sub(r"\s*\(at .*\)$", "", message)
    way_out = 'texts and quantities with units stand in quotes: "4M"'
    return ConfigError(f"not TOML: {seen}", f"the line reads: {shown}", way_out, f"{path}:{line}")


def _starts(path: KeyPath, head: KeyPath) -> bool:
    return tuple(map(str, path[: len(head)])) == tuple(map(str, head))
