"""``headway doctor``: whether this node is fit to train."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from headway.base.errors import EXIT_FINDINGS, EXIT_OK, HeadwayError
from headway.cli.options import Json

DEVICE_SECONDS = 2.0


def doctor(
    *,
    directory: Annotated[
        Path, Parameter(metavar="DIR", help="Where this node is to write: its disk is measured there, and left as it was.")
    ] = Path("."),
    quick: Annotated[
        bool, Parameter(negative="", help="Two seconds, without the devices: what a node goes through before it joins.")
    ] = False,
    json: Json = False,
) -> int:
    """Check this node: arithmetic, memory, disk, network, clock, limits.

    Each check measures, and judges by a rule that it states. Known answers are compared to the bit, on every core and, where
    PyTorch is installed, on every device and in every number format. About ten seconds on a node that does nothing else. The
    exit code is 1 when a check failed; a warning alone leaves it 0.
    """
    from headway.cli.output import print_json, say
    from headway.supervise.doctor import check_node

    report = check_node(directory, quick=quick, devices=None if quick else check_devices)
    if json:
        print_json({"kind": "node", "schema_version": 1, **report.to_json()})
    else:
        for line in lines(report):
            say(line)
    return EXIT_OK if report.may_join else EXIT_FINDINGS


def check_devices() -> Any:
    """By the engine; a failure to start is a finding about this node."""
    from importlib.util import find_spec

    from headway.cli.engine import ask_engine
    from headway.supervise.doctor import devices_check, devices_left_out

    if find_spec("torch") is None:
        return devices_left_out("PyTorch is not installed here: devices were not tried (pip install '.[engine]')")
    try:
        return devices_check(ask_engine("doctor", ["--seconds", str(DEVICE_SECONDS)]))
    except HeadwayError as error:
        return devices_check([{"device": "all", "dtype": "", "products": 0, "wrong": 0, "error": str(error)}])


def lines(report: Any) -> list[str]:
    """For people: what was measured, and for all but a pass the rule and the way out."""
    found = []
    for check in report.checks:
        found.append(f"{check.verdict:<9} {check.name:<11} {check.measured}")
        if check.verdict in ("warn", "fail"):
            found += [f"{'':<21} rule: {check.rule}", *([f"{'':<21} do: {check.way_out}"] if check.way_out else [])]
    found.append(f"{report.host}: {report.verdict}, in {report.seconds:.1f} s")
    return found
