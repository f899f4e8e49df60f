"""C13: nothing read from a checkpoint is unpickled or executed. (The engine's half: tests/checkpoint.)"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import headway

FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "importlib", "runpy", "joblib"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_METHODS = {"torch.load", "torch.save", "numpy.load", "np.load", "np.save", "yaml.load"}


def violations(source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in FORBIDDEN_MODULES]
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in FORBIDDEN_MODULES:
            found.append(node.module or "")
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in FORBIDDEN_CALLS | FORBIDDEN_METHODS:
                found.append(called)
    return found


@pytest.mark.parametrize("room", ["store", "checkpoint", "rundir", "base"])
def test_C13_no_code_path_unpickles_or_executes(room):
    files = sorted((Path(headway.__file__).parent / room).rglob("*.py"))
    assert files
    for path in files:
        assert violations(path.read_text()) == [], path


@pytest.mark.parametrize("source", ["import pickle", "from pickle import loads", "x = torch.load(f)", "eval(s)", "np.load(p)"])
def test_the_search_finds_what_it_looks_for(source):
    assert violations(source)
