"""A formula with its numbers put in: ``6 N D`` with N = 4e11 and D = 1.5e13 -> ``6 x 4e11 x 1.5e13``.

Formulas are written for people. Symbols stand side by side for a product, names of inputs may hold spaces, and a remark may
follow after a comma or semicolon:

    "M e^(R/M) (e^((tau+c)/M) - 1) T0 / tau; range: to the self-consistent formula"
     tokens: value  value ^ ( value / value ) ( ...

What is read is only shown where it comes out at the quantity's own value. So a formula that is no arithmetic stays words, and
one that contradicts its value can be found (``contradicts``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headway.formulas.quantity import Quantity

TOLERANCE = 0.005
"""Relative: inputs may have been rounded on the way to a whole number of steps or sequences."""
LONGEST = 160  # characters that a person still reads as arithmetic
FUNCTIONS: dict[str, Callable[[float], float]] = {"sqrt": math.sqrt, "exp": math.exp, "ln": math.log, "log": math.log}
FUNCTIONS |= {"ceil": math.ceil, "floor": math.floor, "round": round}
REMARKS = (";", ": ", ", ")
LISTS = {"min": min, "max": max}
_TOKEN = re.compile(r"\s*(\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?|\.\d+|[^\W\d]\w*'?|\S)")


@dataclass(frozen=True)
class Arithmetic:
    """A formula that was read: as text with numbers, and what it comes to."""

    text: str
    value: float


def with_numbers(quantity: Quantity) -> str | None:
    """The right-hand side with numbers in place of symbols; None where the formula is words or does not come out."""
    read = read_formula(quantity)
    if read is None or not _agrees(read.value, quantity.value):
        return None
    return read.text if len(read.text) <= LONGEST and re.search(r"[-+x/^(]", read.text) else None


def contradicts(quantity: Quantity) -> str | None:
    """What the formula comes to, where that is arithmetic and not the quantity's value."""
    read = read_formula(quantity, REMARKS)
    if read is None or not isinstance(quantity.value, int | float) or _agrees(read.value, quantity.value):
        return None
    return f"{read.text} = {read.value:.6g}, not {quantity.value:.6g}"


def read_formula(quantity: Quantity, marks: tuple[str, ...] = (*REMARKS, " (")) -> Arithmetic | None:
    """The formula, or its part before a remark (which begins at one of ``marks``), as arithmetic over the inputs."""
    numbers = {name: value for name, given in quantity.inputs.items() if (value := _number(given)) is not None}
    names = dict(numbers)
    for given in quantity.inputs.values():
        if isinstance(given, Quantity) and (value := _number(given)) is not None:
            names.setdefault(given.name, value)
    for text in (quantity.formula, *(quantity.formula.partition(mark)[0] for mark in marks)):
        try:
            return _Reader(_tokens(text, names), names).whole()
        except (_Unread, ArithmeticError, ValueError):
            continue
    return None


def show(value: float) -> str:
    """Short, and without a plus or zeros in the exponent: 4e11, 1.5e13, 16,384."""
    if float(value).is_integer() and abs(value) < 1e6:
        return f"{int(value):,}"
    mantissa, _, exponent = f"{value:.6g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa


def _number(given: object) -> float | None:
    value = given.value if isinstance(given, Quantity) else given
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _agrees(computed: float, value: object) -> bool:
    if not isinstance(value, int | float):
        return False
    return abs(computed - value) <= TOLERANCE * max(abs(value), 1e-30) or (value == 0 and abs(computed) < 1e-12)


class _Unread(Exception):
    """Not arithmetic."""


def _tokens(text: str, names: Mapping[str, float]) -> list[str]:
    """Words, numbers and operators; an input's name with spaces in it becomes one word."""
    for name in sorted(names, key=len, reverse=True):
        spaced = name.replace("_", " ")
        if " " in spaced:
            text = re.sub(rf"(?<!\w){re.escape(spaced)}(?!\w)", name, text)
    return _TOKEN.findall(text.replace("×", "x").replace("·", " "))


class _Reader:
    """Recursive descent: sum > product > power > atom. Each part gives its text and its value."""

    def __init__(self, tokens: list[str], names: Mapping[str, float]):
        self._tokens, self._names, self._at = tokens, names, 0

    def whole(self) -> Arithmetic:
        text, value = self._sum()
        if self._at < len(self._tokens) or isinstance(value, complex) or not math.isfinite(value):
            raise _Unread
        return Arithmetic(text, value)

    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._next()
        self._at += 1
        return token

    def _sum(self) -> tuple[str, float]:
        text, value = self._product()
        while self._next() in ("+", "-"):
            sign = self._take()
            more, other = self._product()
            text, value = f"{text} {sign} {more}", value + other if sign == "+" else value - other
        return text, value

    def _product(self) -> tuple[str, float]:
        text, value = self._power()
        while (token := self._next()) and token not in ("+", "-", ")", ","):
            divide = token == "/"
            if token in ("/", "*", "x"):
                self._take()
            more, other = self._power()
            text, value = f"{text} {'/' if divide else 'x'} {more}", value / other if divide else value * other
        return text, value

    def _power(self) -> tuple[str, float]:
        text, value = self._atom()
        if self._next() == "^":
            self._take()
            more, exponent = self._atom()
            return f"{text}^{more}", value**exponent
        return text, value

    def _atom(self) -> tuple[str, float]:
        token = self._take()
        if token == "(":
            text, value = self._sum()
            self._close()
            return f"({text})", value
        if token == "-":
            text, value = self._power()
            return f"-{text}", -value
        if token in self._names:
            return show(self._names[token]), self._names[token]
        if token in FUNCTIONS or token in LISTS:
            return self._call(token)
        if token == "e":
            return "e", math.e
        if token and (token[0].isdigit() or token[0] == "."):
            return token, float(token.replace(",", ""))
        raise _Unread

    def _call(self, name: str) -> tuple[str, float]:
        if self._take() != "(":
            raise _Unread
        parts = [self._sum()]
        while self._next() == ",":
            self._take()
            parts.append(self._sum())
        self._close()
        text = f"{name}({', '.join(part for part, _ in parts)})"
        values = [value for _, value in parts]
        if name in LISTS:
            return text, LISTS[name](values)
        if len(values) != 1:
            raise _Unread
        return text, float(FUNCTIONS[name](values[0]))

    def _close(self) -> None:
        if self._take() != ")":
            raise _Unread
