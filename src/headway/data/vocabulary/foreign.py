"""Libraries that work on what somebody brought: whatever they raise is one clear message."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headway.base.errors import ConfigError, HeadwayError


def is_of_a_library(error: BaseException) -> bool:
    """Not ours, nor one that ends the process, such as KeyboardInterrupt. A panic in Rust is no Exception."""
    if isinstance(error, HeadwayError | MemoryError):
        return False
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


@contextmanager
def foreign(what: str, rule: str, way_out: str) -> Iterator[None]:
    """ConfigError "what: error" for any other error within, a panic in Rust too, which is no Exception."""
    try:
        yield
    except BaseException as error:
        if not is_of_a_library(error):
            raise
        raise ConfigError(f"{what}: {str(error)[:200] or type(error).__name__}", rule, way_out) from error
