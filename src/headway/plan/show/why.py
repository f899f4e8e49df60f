"""Why a number is what it is: finds it by what people call it, and tells where it comes from.

step_seconds = 5.93 s (4.94 s to 7.41 s)
    meaning: what one optimizer step takes, on average over the run
    formula: mean batch tokens / tokens per second
             = 1.29e7 / 2.18e6
    range: ...
    source: ...
    tokens_per_second = ...            what it was computed from, in the same way
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from headway.base.errors import ConfigError
from headway.formulas.quantity import Quantity, show_number
from headway.plan.plan import Plan, unknown_name
from headway.plan.rates import PREDICTED
from headway.plan.show.meanings import meaning_of
from headway.plan.show.summary import LINES
from headway.plan.show.with_numbers import with_numbers

WIDTH = 100
DEEPEST = 5
"""Levels of the tree that are printed; each quantity further down explains itself."""
MANY_NAMES = 12

SAME = {
    "time": "seconds",
    "duration": "seconds",
    "size": "bytes",
    "flop": "flops",
    "lr": "rate",
    "param": "parameters",
    "params": "parameters",
    "ckpt": "checkpoint",
    "checkpointing": "checkpoint",
    "evaluation": "evaluations",
    "throughput": "tokens_per_second",
    "steptime": "step_seconds",
    "price": "cost",
}
"""What people say for a word of a name. Only tried where the name as given is none."""
EVERYDAY = {label: tuple(name for name, _ in parts) for label, parts in LINES} | {
    "mfu": ("mfu_causal",),
    "utilization": ("mfu_causal",),
    "wall time": ("wall_seconds", "predicted_seconds"),
    "days": ("wall_seconds", "predicted_seconds"),
    "cost": ("electricity_cost", "gpu_hours"),  # where there is no price, and so no quantity of that name
    "price": ("cost", "electricity_cost", "gpu_hours"),
    "checkpoint": ("checkpoint_bytes",),
    "layout": ("layout_*", "processes"),
    "batch": ("main_batch",),
    "batch size": ("main_batch",),
    "failures": ("expected_failures", "mean_time_between_interruptions"),
    "interruptions": ("expected_failures", "mean_time_between_interruptions"),
    "mtbf": ("mean_time_between_interruptions",),
    "goodput": ("simulated_goodput", "effective_training_share"),
    "learning rate": ("peak_rate",),
    "lr": ("peak_rate",),
    "flops": ("flops_6n",),
    "gpus": ("processes",),
}
"""What people ask for in a word or two -> the first of these that the plan has. Labels of the summary lead to its quantities."""
PARTS_OF_LAYOUTS = ("layout_step_seconds_", "layout_mfu_")


def find_quantity(plan: Plan, asked: str) -> Quantity:
    """By full name, with spaces or underscores, or by words that only one name has; else ConfigError with the nearest."""
    known = plan.known()
    matches = candidates(asked, list(known), shown=[quantity.name for quantity in plan.quantities()])
    if len(matches) == 1:
        return known[matches[0]]
    if matches:
        listed = [f"{name} = {known[name].shown()}" for name in matches[:MANY_NAMES]]
        more = f" and {len(matches) - MANY_NAMES} more" if len(matches) > MANY_NAMES else ""
        seen = f"{asked!r} could be any of {len(matches)} quantities"
        raise ConfigError(seen, "\n             ".join(listed) + more, "give the whole name, or one more word of it")
    raise unknown_name(normal(asked), list(known))


def normal(text: str) -> str:
    """``Step time`` -> ``step_time``."""
    return "_".join(text.casefold().replace("-", " ").replace("_", " ").split())


_EVERYDAY = {normal(words): names for words, names in EVERYDAY.items()}


def candidates(asked: str, names: Iterable[str], shown: Iterable[str] = ()) -> list[str]:
    """Names that ``asked`` can mean: exactly one where it is clear, none where nothing fits.

    In this order: the name; the name with a word replaced by what the plan calls it; an everyday word; the one name that is
    ``asked`` and a unit; names that hold all the words, those that are shown before those that others stand on.
    """
    names, shown = list(names), set(shown)
    by_normal = {normal(name): name for name in names}
    for form in dict.fromkeys((normal(asked), _as_the_plan_says(asked))):
        if form in by_normal:
            return [by_normal[form]]
    everyday = _everyday(normal(asked), names)
    if everyday is not None:
        return [everyday]
    for form in dict.fromkeys((normal(asked), _as_the_plan_says(asked))):
        for unit in ("seconds", "bytes"):
            if f"{form}_{unit}" in by_normal:
                return [by_normal[f"{form}_{unit}"]]
        words = form.split("_")
        found = [name for plain, name in by_normal.items() if words and _holds(plain.split("_"), words)]
        if found:
            return _clearest(found, shown, len(words))
    return []


def _everyday(asked: str, names: Sequence[str]) -> str | None:
    """What a word of everyday use, in the singular or plural, leads to; None where it is none or leads nowhere here."""
    for word in (asked, f"{asked}s", asked.removesuffix("s")):
        for pattern in _EVERYDAY.get(word, ()):
            fits = (name for name in names if fnmatchcase(name, pattern) and not name.startswith(PARTS_OF_LAYOUTS))
            if (found := next(fits, None)) is not None:
                return found
    return None


def _as_the_plan_says(asked: str) -> str:
    return "_".join(SAME.get(word, word) for word in normal(asked).split("_"))


def _holds(name: list[str], words: list[str]) -> bool:
    """Every word begins a different word of the name."""
    rest = list(name)
    for word in words:
        match = next((part for part in rest if part.startswith(word)), None)
        if match is None:
            return False
        rest.remove(match)
    return True


def _clearest(found: list[str], shown: set[str], words: int) -> list[str]:
    """The only one that is shown, or the only one with at most one word more; else those that are shown, else all."""
    on_lines = [name for name in found if name in shown]
    for few in (on_lines, [name for name in found if len(name.split("_")) <= words + 1]):
        if len(few) == 1:
            return few
    found = on_lines or found
    return sorted(found, key=lambda name: (name not in shown, len(name), name))


# --- explaining


def why(plan: Plan, asked: str) -> str:
    """The tree under one number: value, meaning, formula, range, source, and the same for all that it was computed from."""
    return "\n".join(explain(find_quantity(plan, asked)))


def explain(quantity: Quantity) -> Iterator[str]:
    yield from _tree(quantity, indent="", seen=set(), depth=0)


def _tree(quantity: Quantity, indent: str, seen: set[str], depth: int) -> Iterator[str]:
    yield from _wrapped(f"{quantity.name} = ", quantity.shown(), indent)
    inner = indent + "    "
    if quantity.name in seen:
        yield f"{inner}(as above)"
        return
    seen.add(quantity.name)
    yield from _said(quantity, inner)
    if depth == DEEPEST and any(isinstance(value, Quantity) for value in quantity.inputs.values()):
        yield f"{inner}(see --why {quantity.name})"
        return
    for name, value in quantity.inputs.items():
        if isinstance(value, Quantity):
            symbol = f"{name}: " if name != value.name else ""
            first, *rest = _tree(value, inner, seen, depth + 1)
            yield first.replace(inner, inner + symbol, 1)
            yield from rest
        else:
            yield from _wrapped(f"{name} = ", _plain(value), inner)


def _said(quantity: Quantity, indent: str) -> Iterator[str]:
    """Everything but the tree."""
    meaning = meaning_of(quantity.name)
    if meaning:
        yield from _wrapped("meaning: ", meaning, indent)
    if quantity.value is None:
        yield from _wrapped("missing: ", f"{quantity.formula} (so nothing is guessed)", indent)
    else:
        yield from _wrapped("formula: ", quantity.formula, indent)
    numbers = with_numbers(quantity)
    if numbers is not None:
        yield from _wrapped("         = ", f"{numbers} = {_value(quantity)}", indent)
    if quantity.is_estimate:
        yield from _wrapped("range: ", range_in_words(quantity), indent)
    if quantity.source:
        yield from _wrapped("source: ", quantity.source, indent)


def _wrapped(head: str, text: str, indent: str) -> list[str]:
    """Lines of ``text`` behind ``head``; never narrower than is readable, however deep the tree."""
    width = max(48, WIDTH - len(indent))
    return textwrap.wrap(
        text, width, initial_indent=indent + head, subsequent_indent=indent + " " * len(head), break_long_words=False
    ) or [indent + head]


def range_in_words(quantity: Quantity) -> str:
    """How wide the range is, and where that comes from: from its widest input where there is one."""
    low, high, value = quantity.low, quantity.high, quantity.value
    if low is None or high is None or not isinstance(value, int | float):
        return "one side only is known"
    ends = f"{show_number(low, quantity.unit)} to {show_number(high, quantity.unit)}"
    inputs = [given for given in quantity.inputs.values() if isinstance(given, Quantity) and relative_width(given)]
    if inputs:
        widest = max(inputs, key=relative_width)
        return f"{ends} ({_percent(quantity)}), because {widest.name} is known only to within {_percent(widest)}"
    return f"{ends} ({_percent(quantity)}): {reason_for_range(quantity)}"


def reason_for_range(quantity: Quantity) -> str:
    """For a range that starts here: what kind of statement the number is."""
    source = quantity.source.casefold()
    if "range assumed" in source:
        return "how far such figures differ is assumed"
    if "calibration" in source or "measured" in quantity.formula:
        return "what repeated measurements and the drift of a machine leave open"
    if quantity.source == PREDICTED:
        return "the error of the model of a step on chips and model families that its fit never saw"
    if "assumed" in source or "assumed" in quantity.formula:
        return "nobody measured it here, and it differs that much from place to place"
    return "the error that this estimate has shown where it could be checked, or the span between published values"


def relative_width(quantity: Quantity) -> float:
    """Of the range, as a share of the value; 0 for an exact one."""
    if quantity.low is None or quantity.high is None or not isinstance(quantity.value, int | float) or not quantity.value:
        return 0.0
    return (quantity.high - quantity.low) / abs(quantity.value)


def _percent(quantity: Quantity) -> str:
    assert quantity.low is not None
    assert quantity.high is not None
    assert isinstance(quantity.value, int | float)
    if not quantity.value:
        return "of zero"
    below, above = 100 * (quantity.low / quantity.value - 1), 100 * (quantity.high / quantity.value - 1)
    return f"{below:+.0f} to {above:+.0f} %"


def _value(quantity: Quantity) -> str:
    assert isinstance(quantity.value, int | float)
    return show_number(quantity.value, quantity.unit)


def _plain(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
