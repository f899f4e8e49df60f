"""What is named to the verbs that look at data: built data, a run, whose data is meant, or a recipe, whose build is meant.

    s3://b/mine, data/mine     built data       manifest.json, or what is left of a build
    runs/mine                  a run            run.json; the data that it was frozen with, other data in that place is refused
    mine.toml, demo            a recipe         where headway data build RECIPE writes, with the same --set

A directory is taken for what lies in it, also where a preset has its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from headway.base.errors import ConfigError, HeadwayError

DataArgument = Annotated[
    str,
    Parameter(
        help="A data directory, as headway data build writes it, or a URL where one lies; or a run directory, for the data that "
        "it was frozen with; or a recipe file or preset, for the data that was built from it."
    ),
]
WAYS = "data is named by its directory or URL, by a run that reads it, or by the recipe that it was built from"


class Kind(Enum):
    DATA = "data"
    RUN = "a run"
    RECIPE = "a recipe"


@dataclass(frozen=True)
class Named:
    """``run``: of a run its RunDirectory; ``description``: of a recipe what ``describe`` found."""

    given: str
    kind: Kind
    run: Any = None
    description: Any = None


@dataclass(frozen=True)
class Built:
    """``where`` data lies: a Path, or a URL as text. ``cache``: place.CacheOptions, for a URL."""

    where: Path | str
    cache: Any


def named(given: str, overrides: list[str] | None = None) -> Named:
    """Which of the three ``given`` is. ConfigError: none, or ``overrides`` for what is no recipe."""
    from headway.cli.describe import describe
    from headway.rundir.layout import RunDirectory

    kind = kind_of(given)
    if overrides and kind is not Kind.RECIPE:
        raise ConfigError(
            f"--set with {kind.value}", f"{given} is {kind.value}; overrides are of a recipe", "leave it out, or name the recipe"
        )
    if kind is Kind.RUN:
        return Named(given, kind, run=RunDirectory.open(Path(given)))
    if kind is Kind.RECIPE:
        return Named(given, kind, description=describe(given, overrides, None, runnable=False))
    return Named(given, kind)


def kind_of(given: str) -> Kind:
    from headway.base.urls import is_url
    from headway.data.inspect.verify import is_of_a_build
    from headway.recipe.load import is_shipped

    path = Path(given)
    if is_url(given):
        return Kind.DATA
    if (path / "run.json").is_file():
        return Kind.RUN
    if path.is_dir() and is_of_a_build(path):
        return Kind.DATA
    if path.is_file() or is_shipped(given):
        return Kind.RECIPE
    if path.is_dir():
        raise ConfigError(f"{given} is no data directory and no run: it has neither manifest.json nor run.json", WAYS, "check it")
    raise ConfigError(f"{given} does not exist, and no preset has that name", WAYS, "check the path, or build the data first")


def built(what: Named, cache: Path | None = None) -> Built:
    """The data that is meant. ConfigError: a recipe's was never built; EnvironmentFault: a run's is not what it was frozen with,
    or not there. Data that is damaged is whoever's business that reads it."""
    from headway.cli.describe import built_at, cache_of, local_or_url
    from headway.data.place import CacheOptions
    from headway.data.reader import refuse_moved
    from headway.rundir.segments import deployment_of

    if what.kind is Kind.RECIPE:
        return Built(built_at(what.description), cache_of(what.description, cache))
    if what.kind is Kind.DATA:
        return Built(local_or_url(what.given), CacheOptions(cache))
    where = local_or_url(what.run.info()["data"])
    refuse_moved(where)
    found = Built(where, CacheOptions(cache) if cache else CacheOptions.of(deployment_of(what.run)))
    _refuse_other(found, what.run.spec())
    return found


def _refuse_other(found: Built, spec: Any) -> None:
    from headway.data.place import manifest_at
    from headway.data.reader import as_frozen

    try:
        manifest = manifest_at(found.where, found.cache)
    except HeadwayError:  # damaged, or out of reach: told where it is read
        return
    as_frozen(manifest, spec, found.where)
