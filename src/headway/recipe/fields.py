"""Field types of the TOML schemas: quantities with units, lists, shares. Shared by the recipe and the deployment.

A quantity is written as a number or a string with a unit and is read by ``base.units``; what it cannot read becomes one
problem among the others, with the parser's own rule, instead of ending the reading.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationInfo
from pydantic_core import PydanticCustomError, PydanticKnownError

from headway.base import units
from headway.base.errors import ConfigError
from headway.recipe.schedules import Steps

T = TypeVar("T")


def said(description: str, default: Any = ..., **limits: Any) -> Any:
    """A field with its description: unit, meaning of None or zero."""
    return Field(default, description=description, **limits)


class Section(BaseModel):
    """A table of the file. Strict types, no unknown keys, no infinities, never changed after reading."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=False)


AS_RESOLVED = "as resolved"
"""Validation context of plain data that was written from a section: its numbers are in base units already."""


def _quantity(parse: Callable[[Any], Any]) -> BeforeValidator:
    def read(value: Any, info: ValidationInfo) -> Any:
        if info.context == AS_RESOLVED:
            return value
        try:
            return parse(value)
        except ConfigError as error:
            problem = error.problems[0]
            raise PydanticCustomError("quantity", "{seen}", {"seen": problem.seen, "rule": problem.rule}) from None

    return BeforeValidator(read)


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _not_empty(value: Any) -> Any:
    if value in ([], ()):  # asked here, because a length limit would also count out elements that have problems of their own
        raise PydanticCustomError("empty_list", "the list is empty, at least one is needed")
    return _as_tuple(value)


def _no_path(name: str) -> str:
    if name in (".", ".."):  # names become directories
        raise PydanticCustomError("string_pattern_mismatch", "it names a directory")
    return name


def _as_day(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date | datetime) else value


def _day(text: str) -> str:
    """A day of the calendar, or nothing."""
    try:
        read = datetime.fromisoformat(text).date().isoformat() if text else ""
    except ValueError:
        read = None
    if read is None or not text.startswith(read):  # 20270131 and 2027-W04 are ISO too, and nobody reads them
        raise PydanticCustomError("quantity", "{seen}", {"seen": f"{text!r} is no day", "rule": 'write it like "2027-01-31"'})
    return text


def _tokens_or_steps(value: Any) -> int | Steps:
    if isinstance(value, str) and value.strip().endswith(("step", "steps")):
        return Steps(units.parse_count(value, "steps"))
    return value if isinstance(value, Steps) else units.parse_count(value)


def _not_negative(value: int | Steps) -> int | Steps:
    count = value.count if isinstance(value, Steps) else value
    if not 0 <= count < 2**62:
        raise PydanticKnownError("greater_than_equal", {"ge": 0})
    return value


def one_of(*numbers: int) -> BeforeValidator:
    """For whole numbers of a choice: Python takes true and 1.0 for 1."""

    def read(value: Any) -> Any:
        if type(value) is not int and value is not None:
            raise PydanticKnownError("literal_error", {"expected": " or ".join(map(str, numbers))})
        return value

    return BeforeValidator(read)


Tokens = Annotated[int, _quantity(units.parse_count), Field(ge=1, lt=2**62)]
TokensOrZero = Annotated[int, _quantity(units.parse_count), Field(ge=0, lt=2**62)]
TokensOrSteps = Annotated[
    int | Steps,
    _quantity(_tokens_or_steps),
    AfterValidator(_not_negative),
    PlainSerializer(lambda value: str(value) if isinstance(value, Steps) else value),
]
Entries = Annotated[int, _quantity(lambda value: units.parse_count(value, "entries")), Field(ge=257, le=2**31)]
Parameters = Annotated[int, _quantity(lambda value: units.parse_count(value, "parameters")), Field(ge=1, lt=2**62)]
Seconds = Annotated[float, _quantity(units.parse_seconds), Field(ge=0, le=1e11)]
Bytes = Annotated[int, _quantity(units.parse_bytes), Field(ge=1)]
Percent = Annotated[float, _quantity(units.parse_percent), Field(ge=0, le=1)]
FlopRate = Annotated[float, _quantity(units.parse_flop_rate), Field(gt=0)]
FlopsPerSecond = Annotated[int, _quantity(lambda value: units.parse_count(value, "flops")), Field(ge=1)]
BytesPerSecond = Annotated[int, _quantity(units.parse_bytes), Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
RopeBase = Annotated[float, Field(ge=2, le=1e12)]
Share = Annotated[float, Field(ge=0, le=1)]
Whole = Annotated[int, Field(ge=1)]
WholeOrZero = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
_NAME = r"^[^\s/\p{Cc}](?:[^/\p{Cc}\p{Zl}\p{Zp}]*[^\s/\p{Cc}])?$"
Name = Annotated[str, Field(pattern=_NAME, max_length=100), AfterValidator(_no_path)]
HostName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]*$", max_length=253)]
Day = Annotated[str, BeforeValidator(_as_day), AfterValidator(_day)]
Version = Annotated[Literal[1], one_of(1)]
Listed = Annotated[tuple[T, ...], BeforeValidator(_as_tuple)]
Some = Annotated[tuple[T, ...], BeforeValidator(_not_empty)]
