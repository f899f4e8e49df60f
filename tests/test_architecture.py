"""The two lanes, and what no file may do. Import rules are contracts in pyproject.toml; here they are run and completed."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "headway"
FILES = sorted(SOURCE.rglob("*.py"))
ROOMS = sorted(path.name for path in SOURCE.iterdir() if (path / "__init__.py").is_file())
DESK = ["base", "recipe", "formulas", "rundir", "store", "data", "monitor", "plan", "supervise", "report", "experiment", "cli"]
MAX_LINES = 500
WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; sys.modules['headway.engine'] = None\n"


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def contracts() -> list[dict]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


def python(code: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter, as a user's shell would start one."""
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=cwd, timeout=120)


# --- the two lanes


def test_import_contracts_hold():
    script = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([script, "--no-cache"], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_room_stands_in_the_layers():
    layered = [c for c in contracts() if c["type"] == "layers"]
    named = {room.strip().removeprefix("headway.") for c in layered for line in c["layers"] for room in line.split("|")}
    assert set(ROOMS) == named, "a room without a layer, or a layer without a room"


def test_every_desk_room_is_forbidden_torch_and_the_engine():
    forbidden = next(c for c in contracts() if "never imports torch" in c["name"])
    assert {m.removeprefix("headway.") for m in forbidden["source_modules"]} == set(DESK)
    assert {m.removeprefix("headway.") for m in forbidden["forbidden_modules"]} == {"torch", *(set(ROOMS) - set(DESK))}


def desk_modules() -> list[str]:
    files = [path for path in FILES if path.relative_to(SOURCE).parts[0] in DESK]
    dotted = [".".join(("headway", *path.relative_to(SOURCE).with_suffix("").parts)) for path in files]
    return [name.removesuffix(".__init__") for name in dotted]


def test_desk_imports_without_torch(tmp_path):
    """Every module of the desk, in one fresh interpreter in which neither torch nor the engine can be imported."""
    code = WITHOUT_TORCH + "import importlib\nfor name in sys.argv[1:]: importlib.import_module(name)\nprint('whole')"
    done = python(code, *desk_modules(), cwd=tmp_path)
    assert done.stdout.strip() == "whole", done.stderr


RUN_CLI = WITHOUT_TORCH + "from headway.cli.main import run_guarded; raise SystemExit(run_guarded(sys.argv[1:]))"
HELP = [
    ["--help"],
    ["--version"],
    *([verb, "--help"] for verb in ("plan", "run", "status", "resume", "sample", "report", "prove", "dryrun", "demo")),
]


@pytest.mark.parametrize(
    "arguments",
    [
        *HELP,
        ["data", "build", "--help"],
        ["data", "verify", "--help"],
        ["data", "show", "--help"],
        ["plan", "demo"],
        ["plan", "demo", "--json"],
    ],
    ids=" ".join,
)
def test_desk_verbs_run_without_torch(arguments, tmp_path):
    done = python(RUN_CLI, *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("arguments", [["run", "demo"], ["demo"], ["plan", "demo", "--calibrate"], ["prove"]], ids=" ".join)
def test_engine_verbs_name_what_is_missing(arguments, tmp_path):
    done = python(RUN_CLI, *arguments, cwd=tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "PyTorch is not installed" in done.stderr
    assert "Traceback" not in done.stderr


# --- what no file may do


def calls_and_imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Names called (dotted as written) and modules imported, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func) + "()", node.lineno
        elif isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


UNSAFE_CALLS = {
    "eval()",
    "exec()",
    "compile()",
    "__import__()",
    "torch.load()",
    "torch.save()",
    "np.load()",
    "numpy.load()",
    "os.system()",
}
UNSAFE_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "yaml", "joblib"}


def unsafe(source: str) -> list[str]:
    """What in ``source`` could execute or unpickle something that was read (law 11, C13)."""
    found = []
    for name, line in calls_and_imports(ast.parse(source)):
        shell = name.startswith("subprocess.") and "shell=True" in source.splitlines()[line - 1]
        if name in UNSAFE_CALLS or name.split(".")[0].rstrip("()") in UNSAFE_MODULES or shell:
            found.append(f"line {line}: {name}")
    return found


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_C13_nothing_is_unpickled_or_executed(path):
    assert unsafe(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "torch.load('x')",
        "eval('1')",
        "import yaml",
        "subprocess.run('x', shell=True)",
    ],
)
def test_C13_the_check_can_fail(source):
    assert unsafe(source)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_are_short_and_say_what_they_are(path):
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_LINES
    docstring = ast.get_docstring(ast.parse(text))
    assert docstring, f"{name_of(path)} has no module docstring"
    assert len(docstring) > 15
