"""Errors as a map, exit codes, closed pipes, interrupts."""

from __future__ import annotations

import ast
import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headway.base.errors import ConfigError, EnvironmentFault, Problem, RunError
from headway.base.terminal import printable_text
from headway.cli import errors, main, output

TWO = [Problem("unknown key 'layer'", "[model] has layers, width", "did you mean 'layers'?", "r.toml:14"), Problem("seen only")]


@pytest.fixture
def failing(monkeypatch):
    """``failing(error)`` makes the command line raise it."""

    def install(error: BaseException) -> None:
        def invoke(arguments):
            raise error

        monkeypatch.setattr(main, "invoke", invoke)

    return install


@pytest.mark.parametrize(
    ("error", "code", "label"),
    [
        (ConfigError(TWO), 2, "configuration error"),
        (EnvironmentFault("disk"), 3, "environment error"),
        (RunError("crash loop"), 4, "run failed"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError(), 3, "environment error"),
        (OSError(errno.ENOSPC, "No space left on device", "/x"), 3, "environment error"),
        (KeyError("a bug"), 4, "internal error"),
    ],
)
def test_each_kind_of_error_has_its_code_and_no_traceback(failing, capsys, error, code, label):
    failing(error)
    assert main.run_guarded(["status", "x"]) == code
    shown = capsys.readouterr()
    assert shown.err.splitlines()[0] == f"headway: {label}"
    assert "Traceback" not in shown.err
    assert shown.out == ""


def test_every_problem_is_a_map(failing, capsys):
    failing(ConfigError(TWO))
    main.run_guarded([])
    assert capsys.readouterr().err == (
        "headway: configuration error\n"
        "  r.toml:14: unknown key 'layer'\n"
        "    rule:    [model] has layers, width\n"
        "    way out: did you mean 'layers'?\n"
        "  seen only\n"
    )


def test_json_errors_are_one_object_on_stdout(failing, capsys):
    failing(ConfigError(TWO))
    assert main.run_guarded(["plan", "x", "--json"]) == 2
    value = json.loads(capsys.readouterr().out)
    assert (value["kind"], value["label"], value["exit_code"]) == ("error", "configuration error", 2)
    assert value["problems"][0] == {
        "seen": "unknown key 'layer'",
        "rule": "[model] has layers, width",
        "way_out": "did you mean 'layers'?",
        "where": "r.toml:14",
    }


def test_debug_shows_the_traceback(failing, monkeypatch):
    failing(ConfigError("x"))
    monkeypatch.setenv("HEADWAY_DEBUG", "1")
    with pytest.raises(ConfigError):
        main.run_guarded([])


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["plna"], 'Did you mean "plan"?'),
        (["plan"], "RECIPE"),
        (["plan", "demo", "--nope"], "--nope"),
        (["sample", "x", "--tokens", "many"], "many"),
        (["data", "bild"], "bild"),
        (["plan", "demo", "extra", "more"], "Unexpected arguments: extra, more."),
    ],
)
def test_usage_errors_exit_2_and_name_the_help(capsys, arguments, word):
    assert main.run_guarded(arguments) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("headway: usage error\n")
    assert word in shown
    assert "--help" in shown


def test_a_run_directory_that_is_none(capsys, tmp_path):
    assert main.run_guarded(["status", str(tmp_path)]) == 2
    assert "is not a run directory" in capsys.readouterr().err


def test_no_verb_shows_the_help(capsys):
    assert main.run_guarded([]) == 0
    assert "Commands:" in capsys.readouterr().out


def test_internal_errors_say_where():
    try:
        raise KeyError("a bug")
    except KeyError as error:
        problem = errors.describe(error)[2][0]
    assert problem.where.startswith(__file__)


@pytest.mark.parametrize("arguments", [["--help"], ["plan", "demo"], ["plan", "demo", "--json"]], ids=" ".join)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_pipe_is_quiet(arguments, tmp_path, unbuffered):
    """``headway --help | true``: the reader goes before everything is written."""
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    reader, writer = os.pipe()
    os.close(reader)
    code = "import sys; from headway.cli.main import main; sys.argv[0] = 'headway'; main()"
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, cwd=tmp_path, env=environment)
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode == 141


def test_no_text_reaches_a_terminal_that_it_would_obey(capsys):
    """Names, reasons and licences are whatever somebody wrote."""
    hostile = "a\x1b[31m\r\x9b\u202e\udcff\n"
    shown = r"a\x1b[31m\r\x9b\u202e\udcff"
    text = errors.text("error", [Problem(hostile, hostile, hostile, hostile)])
    output.say(hostile)
    output.say_aside(hostile)
    output.rewrite(hostile)
    for line in output.table([hostile, "n"], [[hostile, "1"]]):
        print(line)
    output.console().print(hostile)
    output.print_json({"a": hostile})
    output.print_json_line({"a": hostile})
    printed = capsys.readouterr()
    everything = (text + printed.out + printed.err).replace("\r\x1b[K", "")  # the line that we ourselves clear
    assert all(shown in part for part in (text, printed.out, printed.err))
    assert printable_text(everything) == everything


def test_the_command_line_prints_through_output_alone():
    """Else text that nobody has looked at reaches the terminal."""
    allowed = {"output.py", "errors.py", "help.py", "reference.py"}  # the last two: our own words
    found = []
    for path in sorted(Path(output.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())) if path.name not in allowed else ():
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            is_json = called == "print" and ast.unparse(node).startswith("print(json.dumps(value, indent=1, allow_nan=False))")
            if called in ("print", "sys.stdout.write", "sys.stderr.write") and not is_json:
                found.append(f"{path.name}:{node.lineno}")
    assert not found
