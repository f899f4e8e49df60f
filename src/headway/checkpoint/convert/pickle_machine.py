"""Reads what a pickle says without doing what it says.

    GLOBAL torch.Size, REDUCE ((2, 3),)    pickle: import torch, call Size((2, 3))
                                           here:   Inert("torch.Size", arguments=((2, 3),))

A pickle is a program for a machine whose one dangerous instruction calls whatever a name leads to. This machine has no such
instruction: a name stays text, a call becomes an ``Inert`` that records what would have been called with what, and nothing is
ever imported, looked up or run. So what a file asks for is data, and the caller decides what it means. Names outside the
caller's list are refused all the same, at once and by name: a file that asks for more than tensors is not one to trust.

``pickletools.genops`` splits the bytes into instructions; it executes none. The instructions known here are those that protocols
2 to 5 write for plain data and objects; the rest (INST, OBJ, extension codes, out-of-band buffers) is refused.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from headway.base.errors import HeadwayError, RunError
from headway.checkpoint.convert.reading import brief

RULE = "nothing that is read is unpickled or executed; only names that stand for tensors and their places are accepted"
WAY_OUT = "save it again as plain tensors with torch.distributed.checkpoint, or convert it to safetensors where you trust it"


@dataclass(eq=False)
class Inert:
    """Something that a pickle would have built: its name, the arguments of the call, and what was set on it afterwards."""

    name: str
    arguments: tuple = ()
    state: Any = None
    entries: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Global:
    """A name that a pickle would have imported."""

    name: str


class _Mark:
    """Where the arguments of an instruction begin on the stack."""


MARK = _Mark()


def read_pickle(data: bytes, allowed: Collection[str], what: str) -> Any:
    """The value that ``data`` describes, made of plain values, ``Inert`` and ``Global``; ``what`` is the file, for errors."""
    machine = _Machine(allowed, what)
    try:
        for opcode, argument, _ in pickletools.genops(data):
            machine.step(opcode.name, argument)
        (value,) = machine.stack
    except HeadwayError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise RunError(f"{what} is no whole pickle ({type(error).__name__}: {brief(error)})", "", "take another copy") from error
    return value


class _Machine:
    """A stack, a memo, and one small method per instruction."""

    def __init__(self, allowed: Collection[str], what: str):
        self.allowed, self.what = allowed, what
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        if name in LITERALS:
            self.stack.append(argument)
        elif name in CONSTANTS:
            self.stack.append(CONSTANTS[name]())
        elif name in INSTRUCTIONS:
            INSTRUCTIONS[name](self, argument)
        elif name not in SILENT:
            raise RunError(f"{self.what} holds the pickle instruction {name}, which is refused", RULE, WAY_OUT)

    def since_mark(self) -> list[Any]:
        at = next((i for i in reversed(range(len(self.stack))) if self.stack[i] is MARK), None)
        if at is None:
            raise ValueError("an instruction lacks its mark")
        taken = self.stack[at + 1 :]
        del self.stack[at:]
        return taken

    def take(self, count: int) -> tuple:
        taken = tuple(self.stack[len(self.stack) - count :])
        if len(taken) < count or any(item is MARK for item in taken):
            raise ValueError("an instruction lacks its arguments")
        del self.stack[len(self.stack) - count :]
        return taken

    def name(self, name: str) -> None:
        if name not in self.allowed:
            raise RunError(f"{self.what} asks for {brief(name)!r}, which is refused", RULE, WAY_OUT)
        self.stack.append(Global(name))

    def call(self, argument: Any = None) -> None:
        """REDUCE and NEWOBJ alike: nothing is called."""
        called, arguments = self.take(2)
        if not isinstance(called, Global) or not isinstance(arguments, tuple):
            raise RunError(f"{self.what} calls something that is no name, which is refused", RULE, WAY_OUT)
        self.stack.append(Inert(called.name, arguments))

    def build(self, argument: Any) -> None:
        target, state = self.take(2)
        if not isinstance(target, Inert):
            raise RunError(f"{self.what} sets the state of something that is no object, which is refused", RULE, WAY_OUT)
        target.state = state
        self.stack.append(target)

    def set_items(self, flat: list[Any]) -> None:
        target = self.stack[-1].entries if isinstance(self.stack[-1], Inert) else self.stack[-1]
        for key, value in zip(flat[::2], flat[1::2], strict=True):
            if not isinstance(target, dict) or not isinstance(
                key, str | int | Inert
            ):  # no tuples: hashing nested ones has no end
                raise ValueError("a mapping has keys of text or numbers")
            target[key] = value

    def append(self, values: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise ValueError("values are appended to something that is no list")
        self.stack[-1].extend(values)

    def persistent(self, argument: Any) -> None:
        (described,) = self.take(1)
        self.stack.append(Inert(PERSISTENT, (described,)))


PERSISTENT = "(persistent)"
"""Name of what BINPERSID stands for: in torch's files, a storage."""

Instruction = Callable[[_Machine, Any], None]
LITERALS = {"BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8"}
LITERALS |= {"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "MARK": lambda: MARK,
}
SILENT = {"PROTO", "FRAME", "STOP"}
INSTRUCTIONS: dict[str, Instruction] = {
    "TUPLE": lambda m, _: m.stack.append(tuple(m.since_mark())),
    "TUPLE1": lambda m, _: m.stack.append(m.take(1)),
    "TUPLE2": lambda m, _: m.stack.append(m.take(2)),
    "TUPLE3": lambda m, _: m.stack.append(m.take(3)),
    "APPEND": lambda m, _: m.append(list(m.take(1))),
    "APPENDS": lambda m, _: m.append(m.since_mark()),
    "SETITEM": lambda m, _: m.set_items(list(m.take(2))),
    "SETITEMS": lambda m, _: m.set_items(m.since_mark()),
    "MEMOIZE": lambda m, _: m.memo.__setitem__(len(m.memo), m.stack[-1]),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), lambda m, at: m.memo.__setitem__(at, m.stack[-1])),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda m, at: m.stack.append(m.memo[at])),
    "GLOBAL": lambda m, name: m.name(name.replace(" ", ".")),
    "STACK_GLOBAL": lambda m, _: m.name(".".join(m.take(2))),
    **dict.fromkeys(("REDUCE", "NEWOBJ"), _Machine.call),
    "BUILD": _Machine.build,
    "BINPERSID": _Machine.persistent,
}
