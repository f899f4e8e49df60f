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
OtherDeploymentOption = Annotated[
    Path | None,
    Parameter(
        name="--deployment",
        metavar="FILE",
        help="Go on under another deployment, from now on. Default: the one that the run has.",
    ),
]
DataOption = Annotated[
    str | None,
    Parameter(
        metavar="DIR", help="The data directory, or a URL such as s3://bucket/data. Default: data/NAME, with the recipe's name."
    ),
]
CacheOption = Annotated[
    Path | None,
    Parameter(
        metavar="DIR", help="For data at a URL: where shards are kept on this machine. Default: headway/data under ~/.cache."
    ),
]
ClusterOption = Annotated[
    str | None,
    Parameter(
        metavar="CLUSTER",
        help="Where to plan for: COUNTxCHIP, such as 1024xH100-SXM for 1,024 of them, or a deployment file or preset. Replaces "
        "the devices and layouts of the deployment; failures, storage and checkpoint policy stay.",
    ),
]
LayoutOption = Annotated[
    list[str] | None,
    Parameter(
        metavar="LAYOUT",
        negative="",
        help="Sizes of the mesh axes (pp, dp_replicate, dp_shard, cp, tp, ep), such as tp=8,pp=16, and fields such as "
        "recompute=full; dp_shard fills the rest. Micro-batch, zero, recompute and pieces that are left open are those of the "
        "fastest layout that fits. STAGE:tp=8,cp=16 is for one stage. Repeatable.",
    ),
]
CalibrationOption = Annotated[
    Path | None, Parameter(metavar="FILE", help="Rates as measured: a file that headway plan calibrate RUN wrote.")
]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print facts as JSON.")]
JsonLines = Annotated[bool, Parameter(name="--json", negative="", help="Print every record as one line of JSON.")]
Markdown = Annotated[bool, Parameter(negative="", help="Print Markdown.")]
Html = Annotated[bool, Parameter(negative="", help="Print one HTML page that needs nothing else: no network, no script.")]
Why = Annotated[
    str | None,
    Parameter(
        metavar="QUANTITY",
        help="Explain one number: meaning, formula with the numbers put in, inputs, source, range. By its name, or by words of "
        'it such as "step time".',
    ),
]
