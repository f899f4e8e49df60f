"""``headway plan calibrate RUN``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from headway.base.errors import ConfigError
from headway.cli.options import Json, RunArgument


def calibrate(
    run: RunArgument,
    /,
    *,
    out: Annotated[
        Path | None, Parameter(metavar="FILE", help="Where to write. Default: NAME.calibration.json, with the run's name.")
    ] = None,
    json: Json = False,
) -> None:
    """Write what a run measured of its steps, saves and evaluations as a file for later plans.

    The file has a digest and says what it was measured on. Plans of the same model on the same machine take everything over;
    of others only what holds there, and say what that is. For a short measurement without a run: headway plan RECIPE
    --calibrate.
    """
    from headway.cli.output import print_json
    from headway.plan.calibration import calibration_of_run, write_calibration
    from headway.rundir.layout import RunDirectory

    directory = RunDirectory.open(run)
    measured = calibration_of_run(directory)
    path = out or Path(f"{measured['measured_on']['name']}.calibration.json")
    if path.is_dir():
        raise ConfigError(f"{path} is a directory", "a calibration is one file", "name a file with --out")
    write_calibration(path, measured)
    if json:
        print_json(measured | {"file": str(path)})
    else:
        show(measured, path)


def show(measured: dict[str, Any], path: Path) -> None:
    """What was measured, and how to use it."""
    from headway.base.digests import short
    from headway.base.units import format_seconds
    from headway.cli.output import say, table

    rows = [
        [name, f"{s['steps_timed']:,}", format_seconds(s["step_seconds"]), *(f"{s[k]:,.0f}" for k in RATES)]
        for name, s in measured["stages"].items()
    ]
    for line in table(["stage", "steps", "step, median", "tokens/s", "from", "to"], rows):
        say(line)
    for key, what in (("seconds_per_save", "a save blocks"), ("seconds_per_evaluation", "an evaluation takes")):
        if key in measured:
            say(f"{what} {format_seconds(measured[key])}")
    if "measured_over_predicted" in measured:
        say(f"measured / predicted step time {measured['measured_over_predicted']:.3g}")
    elif "not_predicted" in measured:
        say(f"holds for this machine and layout only: {measured['not_predicted']}")
    say(f"calibration {short(measured['digest'])} written: headway plan RECIPE --calibration {path}")


RATES = ("tokens_per_second", "low", "high")
