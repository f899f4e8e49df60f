"""Reads what a run is described by: the recipe, the deployment, and the data where it has been built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.base.errors import ConfigError
from headway.recipe.load import DEPLOYMENT_PREFIX


@dataclass(frozen=True)
class Description:
    """A recipe as loaded (with text, path, overrides, digest) and the deployment beside it."""

    loaded: Any  # recipe.load.LoadedRecipe
    deployment: Any  # recipe.deployment.Deployment
    deployment_path: str = ""  # as named on the command line; empty: the preset's own, or the defaults
    deployment_overrides: tuple[str, ...] = ()  # with their prefix, as given

    @property
    def recipe(self) -> Any:
        return self.loaded.recipe


def split_overrides(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Those of the recipe, and those of the deployment without their prefix."""
    deployment = [text.removeprefix(DEPLOYMENT_PREFIX) for text in overrides if text.startswith(DEPLOYMENT_PREFIX)]
    return [text for text in overrides if not text.startswith(DEPLOYMENT_PREFIX)], deployment


def describe(recipe: str, overrides: Sequence[str] | None, deployment: Path | None, *, runnable: bool = True) -> Description:
    """Load both; every problem of a file is reported at once. A preset goes with its own deployment, unless another is named.

    ``runnable=False`` admits models and deployments that this version can plan but not carry out.
    """
    from headway.recipe.load import load_deployment, load_recipe
    from headway.recipe.placement import check_stages, settle
    from headway.recipe.resolve import resolve_model, resolve_precision
    from headway.recipe.trainable import refuse_untrainable

    for_recipe, for_deployment = split_overrides(overrides or ())
    loaded = load_recipe(recipe, for_recipe)
    if runnable:
        model = resolve_model(loaded.recipe.model, loaded.recipe.tokenizer.vocabulary)
        refuse_untrainable(resolve_precision(loaded.recipe.precision), loaded.locate, model)
    as_given = tuple(DEPLOYMENT_PREFIX + override for override in for_deployment)
    placed = load_deployment(deployment or own_deployment(recipe), as_given, runnable=runnable)
    found = Description(
        loaded,
        settle(placed, loaded.recipe.precision.compute),
        str(deployment or ""),
        as_given,
    )
    check_stages(found.deployment, [stage.name for stage in loaded.recipe.stages])
    if runnable and found.deployment.layouts:
        from headway.recipe.engine_layouts import check_layouts
        from headway.recipe.resolve import resolve

        check_layouts(found.deployment, resolve(loaded, None))
    return found


def own_deployment(recipe: str) -> Path | None:
    """The deployment that is shipped under the preset's name; None for a recipe file, or where there is none."""
    from headway.recipe.load import preset_directory, preset_names

    shipped = recipe in preset_names() and (preset_directory() / f"{recipe}.deployment.toml").is_file()
    return Path(recipe) if shipped else None


def default_data(description: Description) -> Path | str:
    """Where data lies when nobody says: beside the run directories, by the recipe's name. A URL is text."""
    root = getattr(description.deployment, "data_directory", None)
    return local_or_url(root) if root else Path("data") / description.recipe.name


def local_or_url(where: str | Path) -> Path | str:
    return str(where) if "://" in str(where) else Path(where)


def is_there(where: Path | str) -> bool:
    """Whether data may lie at that place; of a URL only opening it tells."""
    return isinstance(where, str) or where.exists()


def manifest_of(description: Description, data: str | Path | None, cache: Path | None = None) -> tuple[Path | str, Any]:
    """The data directory (a Path) or URL, and its manifest; a clear error where it has not been built."""
    from headway.data.manifest import MANIFEST_FILE, DataManifest
    from headway.data.place import manifest_at

    directory = built_at(description, data)
    if isinstance(directory, str):
        return directory, manifest_at(directory, cache_of(description, cache))
    if data is not None and not (directory / MANIFEST_FILE).exists():
        rule = f"built data has a {MANIFEST_FILE} in it"
        raise ConfigError(f"{directory} is no data directory", rule, "name the directory that headway data build wrote", "--data")
    return directory, DataManifest.load(directory)


def built_at(description: Description, data: str | Path | None = None) -> Path | str:
    """Where the data of a recipe lies, or is said to; ConfigError for a directory that is not there."""
    from headway.recipe.load import name_in_commands

    directory = local_or_url(data) if data is not None else default_data(description)
    if not is_there(directory):
        recipe = name_in_commands(description.loaded.path) or description.recipe.name
        raise ConfigError(
            f"the data of this recipe has not been built: {directory} does not exist",
            "a run trains on built data only, so that its bytes are known before it starts",
            f"headway data build {recipe}, or name a data directory with --data",
        )
    return directory


def cache_of(description: Description, cache: Path | None) -> Any:
    """Where shards of data at a URL are kept: in ``cache``, else as the deployment says."""
    from headway.data.place import CacheOptions

    return CacheOptions(cache) if cache else CacheOptions.of(description.deployment.model_dump(mode="json"))


def refuse_other_place(where: str | Path) -> None:
    """ConfigError for a directory that holds no built data; what lies at a URL is seen when it is opened."""
    from headway.base.urls import is_url
    from headway.data.manifest import MANIFEST_FILE

    if not is_url(where) and not (Path(where) / MANIFEST_FILE).is_file():
        raise ConfigError(
            f"{where} is no data directory", f"built data has a {MANIFEST_FILE} in it", "name what headway data build wrote"
        )


def spec_of(description: Description, data: str | Path | None, cache: Path | None = None) -> Any:
    """The frozen Spec where the data is there, else a draft that can be planned."""
    from headway.recipe.mixture_rules import refuse_unsized
    from headway.recipe.resolve import resolve

    if data is None and not is_there(default_data(description)):
        draft = resolve(description.loaded, None)
        refuse_unsized(draft, description.loaded.locate)
        return draft
    from headway.data.freeze import freeze

    return freeze(description.loaded, manifest_of(description, data, cache)[1])
