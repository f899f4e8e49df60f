"""The developer's verbs: the environment is made once, taken up again after an interruption, and refused with a clear word.

The interpreter is a fake that plays venv and pip, so nothing is installed here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")

FAKE = """#!/bin/sh
# Plays python: every call is logged; pip fails where a file named pip-fails lies here.
echo "$@" >> calls
case "$1 $2" in
  "-V ") echo "Python VERSION"; exit 0;;
  "-m venv") for last; do :; done
    mkdir -p "$last/bin"; cp "$0" "$last/bin/python"
    printf '#!/bin/sh\\necho headway "$@"\\n' > "$last/bin/headway"; chmod +x "$last/bin/headway"; exit 0;;
  "-m pip") test ! -e pip-fails; exit $?;;
esac
case "$2" in
  *version_info*) exit TOO_OLD;;
  *ensurepip*) exit NO_VENV;;
esac
"""


@pytest.fixture
def checkout(tmp_path) -> Path:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    fake_python(tmp_path)
    return tmp_path


def fake_python(root: Path, *, too_old: int = 0, no_venv: int = 0) -> None:
    text = FAKE.replace("VERSION", "3.12.1").replace("TOO_OLD", str(too_old)).replace("NO_VENV", str(no_venv))
    (root / "fake-python").write_text(text)
    (root / "fake-python").chmod(0o755)


def make(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A make of its own, also where these tests were started by one."""
    environment = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    return subprocess.run(["make", *arguments], cwd=root, capture_output=True, text=True, timeout=60, env=environment)


def make_demo(root: Path, python: str = "./fake-python") -> subprocess.CompletedProcess[str]:
    return make(root, "demo", f"PYTHON={python}")


def calls(root: Path, word: str) -> int:
    log = root / "calls"
    return sum(word in line for line in log.read_text().splitlines()) if log.exists() else 0


def test_demo_makes_the_environment_once(checkout):
    first = make_demo(checkout)
    assert first.returncode == 0, first.stderr
    assert "Installing" in first.stdout
    assert first.stdout.splitlines()[-1] == "headway demo"
    second = make_demo(checkout)
    assert second.stdout.splitlines() == ["headway demo"]
    assert (calls(checkout, "-m venv"), calls(checkout, "-m pip install")) == (1, 1)


def test_an_interrupted_installation_is_taken_up_again(checkout):
    (checkout / "pip-fails").touch()
    assert make_demo(checkout).returncode != 0
    assert not (checkout / ".venv" / ".ready").exists()
    (checkout / "pip-fails").unlink()
    assert make_demo(checkout).returncode == 0
    assert (calls(checkout, "-m venv"), calls(checkout, "-m pip install")) == (1, 2)


def test_a_half_made_environment_is_made_anew(checkout):
    (checkout / ".venv" / "bin").mkdir(parents=True)  # interrupted before pip was in it
    assert make_demo(checkout).returncode == 0
    assert calls(checkout, "-m venv --clear") == 1


def test_new_constraints_bring_the_environment_up_to_date(checkout):
    make_demo(checkout)
    ready = checkout / ".venv" / ".ready"
    os.utime(checkout / "constraints.txt", (ready.stat().st_mtime + 5,) * 2)
    assert "Installing" in make_demo(checkout).stdout
    assert (calls(checkout, "-m venv"), calls(checkout, "-m pip install")) == (1, 2)


def test_a_python_that_is_too_old_is_named(checkout):
    fake_python(checkout, too_old=1)
    done = make_demo(checkout)
    assert done.returncode != 0
    assert "Headway needs Python 3.11 or newer" in done.stderr
    assert "Python 3.12.1" in done.stderr, "the version that was found"
    assert not (checkout / ".venv").exists()


def test_a_missing_venv_module_is_named(checkout):
    fake_python(checkout, no_venv=1)
    done = make_demo(checkout)
    assert done.returncode != 0
    assert "python3-venv" in done.stderr


def test_a_missing_python_is_named(checkout):
    done = make_demo(checkout, python="no-such-python")
    assert done.returncode != 0
    assert "no-such-python was not found" in done.stderr


def test_help_lists_the_verbs(checkout):
    shown = make(checkout).stdout
    for verb in ("demo", "test", "test-all", "check", "bench", "docs"):
        assert f"make {verb} " in shown


def test_constraints_pin_each_package_once_and_sorted():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    names = [line.partition("==")[0] for line in lines]
    assert names == sorted(names, key=str.lower)
    assert len(set(map(str.lower, names))) == len(names)
    assert all("==" in line and "+" not in line and "@" not in line for line in lines)
    assert not [name for name in names if name.startswith("nvidia") or name == "triton"], "the CPU build is what is pinned"


def test_constraints_match_what_is_installed():
    """The suite runs on the versions that the constraints promise."""
    from importlib.metadata import PackageNotFoundError, version

    wrong = []
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        name, _, pinned = line.partition("==")
        if not pinned or name.startswith("#"):
            continue
        try:
            found = version(name).partition("+")[0]
        except PackageNotFoundError:
            continue  # of an extra that is not installed here
        if found != pinned:
            wrong.append(f"{name}: {found} is installed, {pinned} is pinned")
    assert not wrong or sys.version_info[:2] != (3, 11), wrong
