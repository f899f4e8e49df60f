"""What the schema finds, as problems: the key path, what was seen, the field's own description as the rule, a way out."""

from __future__ import annotations

import types
import typing
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from headway.base.errors import ConfigError, Problem
from headway.base.units import parse_seconds
from headway.recipe.checks import nearest_hint
from headway.recipe.deployment import Deployment
from headway.recipe.lines import KeyPath
from headway.recipe.schema import Recipe

if typing.TYPE_CHECKING:
    from headway.recipe.load import Document

M = TypeVar("M", bound=BaseModel)


def parse_all(model: type[M], document: Document) -> tuple[M | None, list[Problem]]:
    """The validated object, or None and every problem the schema found."""
    try:
        return model.model_validate(document.data), []
    except ValidationError as error:
        return None, [_problem(model, details, document) for details in error.errors(include_url=False)]


def read_part(annotation: Any, value: Any) -> Any:
    """``value`` as ``annotation``, or None when it cannot be read by itself. A whole recipe's default is {}."""
    try:
        return TypeAdapter(annotation).validate_python({} if value is None else value)
    except ValidationError:
        return None


def _problem(root: type[BaseModel], details: Any, document: Document) -> Problem:
    path: KeyPath = details["loc"]
    kind, seen_value = details["type"], details.get("input")
    where = document.locate(path)
    owner, description = _owner(root, path)
    name = next((part for part in reversed(path) if isinstance(part, str)), "the file")
    stated = f"{dotted(path) or 'the file'} = {_show(seen_value)}"
    if kind == "extra_forbidden":
        known = _keys(owner) if owner else []
        hint = _other_file(root, path) or nearest_hint(str(path[-1]), known) or _elsewhere(root, str(path[-1]))
        return Problem(f"unknown key {dotted(path)}", f"keys here are {', '.join(known)}", hint, where)
    if kind == "missing":
        place = dotted(path[:-1]) or "the top of the file"
        return Problem(f"{dotted(path)} is missing", _rule(name, "needed", description), f"add {name} = ... to {place}", where)
    if kind == "quantity":
        context = details["ctx"]
        return Problem(f"{dotted(path)}: {context['seen']}", f"{name}: {description}", context["rule"], where)
    if kind == "literal_error":
        allowed = details["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        choice = f"one of {', '.join(allowed)}" if len(allowed) > 1 else allowed[0]
        return Problem(f"{stated} is not known", _rule(name, choice, description), _choose(name, seen_value, allowed), where)
    if kind in _BOUNDS:
        bound = _bound(kind, details["ctx"], seen_value)
        return Problem(stated, _rule(name, bound, description), f"give a value of {bound}", where)
    words = {"name": name, "heading": _heading(path)} | details.get("ctx", {})
    expected, way_out = (text.format_map(words) for text in _EXPECTED.get(kind, ("another kind of value", "write {name} anew")))
    return Problem(stated, _rule(name, expected, description), way_out, where)


def _rule(name: str, what: str, description: str) -> str:
    return f"{name} is {what}" + (f" ({description})" if description else "")


def _heading(path: KeyPath) -> str:
    """The line of TOML above the keys of a table."""
    keys = ".".join(part for part in path if isinstance(part, str))
    return f"[[{keys}]]" if path and isinstance(path[-1], int) else f"[{keys}]"


_TABLE = ("a table", "write {heading} above its keys")
_EXPECTED = {
    "int_type": ("a whole number without quotes", "write it like {name} = 8"),
    "int_from_float": ("a whole number", "write it like {name} = 8"),
    "float_type": ("a number without quotes", "write it like {name} = 0.5"),
    "string_type": ("a text in quotes", 'write it like {name} = "text"'),
    "bool_type": ("true or false", "write it like {name} = true"),
    "tuple_type": ("a list", "write it like {name} = [...]"),
    "empty_list": ("a list of at least one", "add an entry"),
    "dict_type": _TABLE,
    "model_type": _TABLE,
    "finite_number": ("a finite number", "give a number"),
    "string_too_short": ("a text of at least {min_length} characters", "write more"),
    "string_too_long": ("a text of at most {max_length} characters", "shorten it"),
    "string_pattern_mismatch": (
        "a text with no slash, no control character and no space at its ends, and is not . or ..",
        "use letters, digits, - and _",
    ),
}
"""What a value is, and how to write it."""


_BOUNDS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}


def _bound(kind: str, context: Any, seen: Any) -> str:
    """The limit that was crossed, as people write it."""
    key, words = _BOUNDS[kind]
    limit = context[key]
    return f"{words} {f'{limit:,}' if isinstance(limit, int) else f'{limit:g}'}{'s' if _is_duration(seen) else ''}"


def _is_duration(seen: Any) -> bool:
    try:
        return isinstance(seen, str) and parse_seconds(seen) >= 0
    except ConfigError:
        return False


def _choose(name: str, seen: Any, allowed: list[str]) -> str:
    """The way out of a value that is none of the ``allowed``."""
    if name == "schema_version":
        return "the file was written for another version of Headway: use that one, or write the file anew for this one"
    return nearest_hint(str(seen), allowed) or f"choose {'one of them' if len(allowed) > 1 else allowed[0]}"


def dotted(path: KeyPath) -> str:
    return ".".join(map(str, path))


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _owner(root: type[BaseModel], path: KeyPath) -> tuple[type[BaseModel] | None, str]:
    """The table that should hold the last key of ``path``, and the description of that key if it is known."""
    model: type[BaseModel] | None = root
    description, named = "", False
    for position, part in enumerate(path):
        if model is None or isinstance(part, int) or named:  # the name of a table is no key of it
            named = False
            continue
        field = next((f for n, f in model.model_fields.items() if (f.alias or n) == part), None)
        description = field.description or "" if field else ""
        if position + 1 < len(path):
            model = _inner_model(field.annotation) if field else None
            named = field is not None and typing.get_origin(field.annotation) is dict
    return model, description


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    """The table inside ``Model``, ``Model | None``, ``tuple[Model, ...]`` or ``dict[str, Model]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, tuple, dict, typing.Annotated):
        found = (_inner_model(argument) for argument in typing.get_args(annotation))
        return next((model for model in found if model), None)
    return None


def _keys(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _other_file(root: type[BaseModel], path: KeyPath) -> str:
    """Where a key belongs to the other of the two files that describe a run."""
    key = str(path[0])
    if len(path) > 1:
        return ""
    if root is Recipe and key in Deployment.model_fields:
        return f"{key} belongs to the deployment: into its file, or --set deployment.{key}..."
    if root is Deployment and key in Recipe.model_fields:
        return f"{key} belongs to the recipe: into its file, or --set {key}..."
    return ""


def _elsewhere(root: type[BaseModel], name: str) -> str:
    """Where else in the file a key of this name belongs."""
    places = [dotted((section, name)) for section, keys in _all_keys(root).items() if section and name in keys]
    places += [name] if name in _keys(root) else []
    return f"did you mean {places[0]}?" if places else "remove it"


def _all_keys(root: type[BaseModel], prefix: str = "") -> dict[str, list[str]]:
    found = {prefix: _keys(root)}
    for name, field in root.model_fields.items():
        inner = _inner_model(field.annotation)
        if inner:
            found |= _all_keys(inner, f"{prefix}.{name}" if prefix else name)
    return found
