"""One strict reader for everything that was saved: what is let through, and what is an error that says where."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import pytest

from headway.base.errors import RunError
from headway.base.plain import from_plain


@dataclass(frozen=True)
class Leaf:
    name: str
    share: float
    cap: float | None = None


@dataclass(frozen=True)
class Tree:
    steps: int
    qk_norm: bool
    leaves: tuple[Leaf, ...]
    dropped: dict[str, int]
    layout: dict
    state: dict[str, Any]
    parent: dict | None = None
    extra: tuple[str, ...] = field(default=())


TREE = Tree(40, True, (Leaf("a", 0.5, 2.0), Leaf("b", 1.0)), {"short": 3}, {"x": [1, "2"]}, {"u": 1.5, "v": None})


def plain(**changes: Any) -> dict:
    return {**dataclasses.asdict(TREE), **changes}


def test_inverse_of_asdict():
    assert from_plain(Tree, plain()) == TREE


def test_whole_number_is_a_float_where_one_belongs():
    leaf = from_plain(Leaf, {"name": "a", "share": 1})
    assert (leaf.share, type(leaf.share)) == (1.0, float)


def test_absent_field_takes_its_default():
    assert from_plain(Tree, {k: v for k, v in plain().items() if k not in ("parent", "extra")}) == TREE


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": "40"}, r"Tree.steps: '40' is of another type than int"),
        ({"steps": 40.0}, r"Tree.steps: 40.0 is of another type than int"),
        ({"steps": True}, r"Tree.steps: True is of another type than int"),
        ({"steps": None}, r"Tree.steps: None is of another type"),
        ({"qk_norm": 1}, r"Tree.qk_norm: 1 is of another type than bool"),
        ({"leaves": {}}, r"Tree.leaves: {} is of another type"),
        ({"leaves": [{"name": "a", "share": "1"}]}, r"Tree.leaves\[0\].share: '1' is of another type than float"),
        ({"leaves": [{"name": "a", "share": True}]}, r"leaves\[0\].share: True is of another type"),
        ({"leaves": [{"name": "a", "share": 10**400}]}, r"leaves\[0\].share: 10+ is of another type"),
        ({"leaves": [["a", 1.0]]}, r"Tree.leaves\[0\]: .* is of another type than Leaf"),
        ({"leaves": [{"name": "a"}]}, r"leaves\[0\]: unknown or missing keys: \['share'\] are missing"),
        ({"leaves": [{"name": "a", "share": 1.0, "cap": "2"}]}, r"cap: '2' is of another type than float"),
        ({"dropped": {"short": 1.0}}, r"Tree.dropped\[short\]: 1.0 is of another type than int"),
        ({"dropped": []}, r"Tree.dropped: \[\] is of another type"),
        ({"layout": []}, r"Tree.layout: \[\] is of another type than dict"),
        ({"parent": "run"}, r"Tree.parent: 'run' is of another type"),
        ({"surplus": 1}, r"Tree: unknown or missing keys: \['surplus'\] are unknown"),
    ],
)
def test_anything_else_is_an_error_that_says_where(changes, message):
    with pytest.raises(RunError, match=message):
        from_plain(Tree, plain(**changes))


def test_no_object_at_all():
    with pytest.raises(RunError, match="run description: 7 is of another type than Tree"):
        from_plain(Tree, 7, "run description")
