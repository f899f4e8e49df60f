"""The one place that shows errors: label, then for each problem what was seen, the rule, the way out. On stderr.

    headway: configuration error
      recipe.toml:14: unknown key "layer"
        rule:    the section [model] has the keys layers, width, ...
        way out: did you mean "layers"?

What a terminal would obey in names and values stands as an escape.
With ``--json`` the same stands on stdout as one object. ``HEADWAY_DEBUG=1`` shows the traceback instead.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

from headway.base.errors import EXIT_CONFIG, EXIT_ENVIRONMENT, EXIT_RUN, HeadwayError, Problem, from_os_error
from headway.base.terminal import printable_text
from headway.cli.output import print_json_line

INTERRUPTED = 130


def describe(error: BaseException) -> tuple[str, int, list[Problem]]:
    """Label, exit code and problems of any error that reaches the top."""
    if isinstance(error, HeadwayError):
        return error.label, error.exit_code, error.problems
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", INTERRUPTED, []
    if type(error).__module__.startswith("cyclopts"):
        return "usage error", EXIT_CONFIG, [usage_problem(error)]
    if isinstance(error, MemoryError):
        return (
            "environment error",
            EXIT_ENVIRONMENT,
            [Problem("out of memory", "", "close other programs, or choose a smaller recipe")],
        )
    if isinstance(error, OSError):
        return (
            "environment error",
            EXIT_ENVIRONMENT,
            from_os_error(error, error.filename or "(none)", "file operation failed").problems,
        )
    return "internal error", EXIT_RUN, [internal_problem(error)]


def usage_problem(error: BaseException) -> Problem:
    """The parser's message on one line, with the help text that answers it."""
    error.verbose = False  # type: ignore[attr-defined]
    chain = " ".join(getattr(error, "command_chain", None) or ())
    try:
        seen = " ".join(str(error).split())
        if type(error).__name__ == "UnusedCliTokensError":
            unused = getattr(error, "unused_tokens", None) or ()
            seen = f"Unexpected argument{'s' if len(unused) > 1 else ''}: {', '.join(map(str, unused))}."
    except Exception:  # the parser imports verbs to word its suggestion; a broken one must not hide the message
        seen = f"cannot read the command line ({type(error).__name__})"
    verb = f"headway {chain} " if chain else "headway "
    way_out = f"{verb}--help shows what is possible"
    if type(error).__name__ == "MissingArgumentError":
        way_out = f"{_missing(error, verb)}; {way_out}"
    return Problem(seen, "", way_out)


EXAMPLES = {"headway plan ": "demo", "headway plan worksheet ": "example", "headway run ": "demo", "headway data build ": "demo"}
"""What a verb can be tried with."""


def _missing(error: Any, verb: str) -> str:
    """How to write the argument that is not there, or that looks like an option."""
    option = getattr(error, "keyword", None)
    if option:
        return f"write {option}=VALUE where the value begins with a hyphen"
    return f"name one, such as {verb}{EXAMPLES[verb]}" if verb in EXAMPLES else "name one"


def internal_problem(error: BaseException) -> Problem:
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    rule = "this is a fault in Headway, not in your input"
    return Problem(f"{type(error).__name__}: {error}", rule, "run it again with HEADWAY_DEBUG=1 and report the traceback", where)


def text(label: str, problems: list[Problem]) -> str:
    """The message for people."""
    lines = [f"headway: {label}"]
    for problem in problems:
        where = problem.where.replace("\n", "\\n")
        head = f"{where}: {problem.seen}" if where else problem.seen
        lines.append("  " + head.replace("\n", "\n  "))
        lines += [f"    rule:    {problem.rule}"] if problem.rule else []
        lines += [f"    way out: {problem.way_out}"] if problem.way_out else []
    return printable_text("\n".join(lines))


def to_json(label: str, exit_code: int, problems: list[Problem]) -> dict[str, Any]:
    """The message for programs."""
    listed = [{"seen": p.seen, "rule": p.rule, "way_out": p.way_out, "where": p.where} for p in problems]
    return {"kind": "error", "schema_version": 1, "label": label, "exit_code": exit_code, "problems": listed}


def render(error: BaseException, as_json: bool = False) -> int:
    """Show ``error`` and return the exit code of the process."""
    label, exit_code, problems = describe(error)
    if as_json:
        print_json_line(to_json(label, exit_code, problems))
    sys.stdout.flush()
    print(text(label, problems), file=sys.stderr, flush=True)
    return exit_code
