"""A ``config.json`` that others wrote: family and model, or what of it our decoder has not.

A key that is left out has the default that ``transformers`` gives it (``defaults.py``). Whatever was read is written again and
compared, so a key that says something else is found, whichever it is, a default too. A key that no file of ours has must be known
to change nothing, or be empty.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from headway.checkpoint.convert.architectures.defaults import DEFAULTS
from headway.checkpoint.convert.architectures.families import BY_TYPE, Family
from headway.checkpoint.convert.architectures.settings import HARMLESS, Config, Foreign
from headway.recipe.spec import ModelSpec

_LOOSE = frozenset({"architectures", "initializer_range"})
_REQUIRED = ("vocabulary", "width", "layers", "heads")


def recognise(config: Any) -> tuple[Family | None, ModelSpec | None, list[str]]:
    """Family, model, and what is wrong; with anything wrong, the others may be None."""
    if not isinstance(config, dict):
        return None, None, ["it is no JSON object"]
    family = BY_TYPE.get(str(config.get("model_type")))
    if family is None:
        return None, None, [f"model_type = {config.get('model_type')!r}"]
    missing = [family.keys[name] for name in _REQUIRED if config.get(family.keys[name]) is None]
    if missing:
        return family, None, [f"{key} is missing" for key in missing]
    complete = DEFAULTS[family.model_type] | config
    try:
        model = _model(family, complete)
    except (Foreign, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        said = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        return family, None, [said]
    return family, model, [*_differences(family, model, complete, config.keys()), *family.unmet(model).values()]


def _model(family: Family, config: Config) -> ModelSpec:
    """Of a configuration in which nothing is left out."""
    width, heads = config[family.keys["width"]], config[family.keys["heads"]]
    sizes = _sizes(family, config) | {"head_width": config.get("head_dim") or width // heads}
    given: dict[str, Any] = {
        "rope_base": 10_000.0,
        "qk_norm": False,
        "init_std": 0.02,
        "kv_heads": heads,
        "ffn_width": 4 * width,
    }
    given |= sizes | family.fields
    complete = config | {"head_dim": sizes["head_width"]}
    for aspect in family.aspects:
        given |= aspect.read(complete)
    return ModelSpec(**given)


def _sizes(family: Family, config: Config) -> dict[str, Any]:
    return {name: config[key] for name, key in family.keys.items() if config.get(key) is not None}


def _differences(family: Family, model: ModelSpec, config: Config, stated: Collection[str]) -> list[str]:
    """``stated``: keys that stand in the file; the others have their default."""
    owned = frozenset[str]().union(*(aspect.keys for aspect in family.aspects))
    ours = family.write(model)
    asked = {key: value for key, value in config.items() if key not in owned | _LOOSE and (key in ours or key not in HARMLESS)}
    known = [key for key, value in asked.items() if key in ours and value is not None and value != ours[key]]
    unknown = [key for key, value in asked.items() if key not in ours and value not in (None, False)]
    return [f"{key} = {config[key]!r}" + ("" if key in stated else " (left out: the default)") for key in known + unknown]
