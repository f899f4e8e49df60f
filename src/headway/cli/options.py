"""Options that several verbs share, each with its one help text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

RecipeArgument = Annotated[str, Parameter(help="A recipe file, or the name of a preset such as demo.")]
RunArgument = Annotated[Path, Parameter(help="A run directory.")]
Overrides = Annotated[
    list[str] | None,
    Parameter(
        name="--set",
        metavar="KEY=VALUE",
        negative="",
        help="Override one value before the recipe is read, such as model.layers=8; "
        "a name that begins with deployment. goes to the deployment. Repeatable.",
    ),
]
DeploymentOption = Annotated[
    Path | None,
    Parameter(
        metavar="FILE",
        help="A deployment file or preset: where and how the run is carried out. Default: that of the preset, if it has "
        "one, else one process on this machine.",
    ),
]
DataOption = Annotated[
    Path | None, Parameter(metavar="DIR", help="The data directory. Default: data/NAME, with the recipe's name.")
]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print facts as JSON.")]
JsonLines = Annotated[bool, Parameter(name="--json", negative="", help="Print every record as one line of JSON.")]
