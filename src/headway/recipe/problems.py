"""What the schema finds, as problems: the key path, what was seen, the field's own description as the rule, a way out."""

from __future__ import annotations

import types
import typing
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from headway.base.errors import Problem
from headway.recipe.checks import nearest_hint
from headway.recipe.lines import KeyPath

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
    section, name = dotted(path[:-1]), str(path[-1]) if path else ""
    where = document.locate(path)
    owner, description = _owner(root, path)
    known = _keys(owner) if owner else []
    if kind == "extra_forbidden":
        hint = nearest_hint(name, known)
        return Problem(f"unknown key {dotted(path)}", f"keys here are {', '.join(known)}", hint or _elsewhere(root, name), where)
    if kind == "missing":
        place = section or "the top of the file"
        return Problem(f"{dotted(path)} is missing", description, f"add {name} = ... to {place}", where)
    if kind == "quantity":
        context = details["ctx"]
        return Problem(f"{dotted(path)}: {context['seen']}", description, context["rule"], where)
    if kind == "literal_error":
        allowed = details["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        hint = nearest_hint(str(seen_value), allowed)
        return Problem(f"{dotted(path)} = {seen_value!r} is not known", f"it is one of {', '.join(allowed)}", hint, where)
    message = _bound(kind, details) or _MESSAGES.get(kind, details["msg"][0].lower() + details["msg"][1:])
    return Problem(f"{dotted(path) or 'the file'} = {_show(seen_value)}: {message}", description, "", where)


_MESSAGES = {
    "int_type": "a whole number without quotes was expected",
    "int_from_float": "a whole number was expected",
    "float_type": "a number without quotes was expected",
    "string_type": "a text in quotes was expected",
    "bool_type": "true or false was expected",
    "tuple_type": "a list was expected",
    "dict_type": "a table was expected",
    "model_type": "a table was expected",
    "finite_number": "a finite number was expected",
    "string_pattern_mismatch": "a name has no slash, no control character and no space at its ends, and is not . or ..",
}


_BOUNDS = {
    "greater_than": ("gt", "greater than"),
    "greater_than_equal": ("ge", "greater than or equal to"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "less than or equal to"),
}


def _bound(kind: str, details: Any) -> str:
    """The limit that was crossed, as people write it; empty when the problem is another one."""
    if kind not in _BOUNDS:
        return ""
    key, words = _BOUNDS[kind]
    limit = details["ctx"][key]
    return f"input should be {words} {f'{limit:,}' if isinstance(limit, int) else f'{limit:g}'}"


def dotted(path: KeyPath) -> str:
    return ".".join(map(str, path))


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _owner(root: type[BaseModel], path: KeyPath) -> tuple[type[BaseModel] | None, str]:
    """The table that should hold the last key of ``path``, and the description of that key if it is known."""
    model: type[BaseModel] | None = root
    description = ""
    for position, part in enumerate(path):
        if model is None or isinstance(part, int):
            continue
        field = next((f for n, f in model.model_fields.items() if (f.alias or n) == part), None)
        description = field.description or "" if field else ""
        if position + 1 < len(path):
            model = _inner_model(field.annotation) if field else None
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
