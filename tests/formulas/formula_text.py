"""Computes the formula that stands beside a number from the inputs that stand beside it: the text is tested, not believed."""

from __future__ import annotations

import re

from headway.formulas.quantity import Quantity

_PART = re.compile(r"\s*([A-Za-z_]+|[0-9.]+|[-+/()])")


def computed(quantity: Quantity) -> float:
    """``L (2 D H E + 2 D K E)`` with letters side by side multiplied; ``0: why`` is zero."""
    if quantity.formula.startswith("0:"):
        return 0
    parts, text, before = _PART.findall(quantity.formula), "", ""
    assert "".join(parts) == quantity.formula.replace(" ", ""), f"not a formula: {quantity.formula}"
    for part in parts:
        if before and before not in "-+/(" and part not in "-+/)":
            text += "*"
        text += f"({value_of(quantity, part)!r})" if part[0].isalpha() else part
        before = part
    return eval(text)


def value_of(quantity: Quantity, letter: str) -> float | int:
    found = quantity.inputs[letter]
    value = found.value if isinstance(found, Quantity) else found
    assert isinstance(value, int | float)
    return value
