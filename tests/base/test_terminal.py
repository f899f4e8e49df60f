"""Text of unknown origin on a terminal: nothing that moves, hides or turns round is left."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.base.terminal import one_line, printable_json, printable_text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text,\n\tindented\n", "plain text,\n\tindented\n"),
        ("\x1b[2J\x07", "\\x1b[2J\\x07"),
        ("a\r\nb\x9bc\x7f", "a\\r\nb\\x9bc\\x7f"),
        ("user\u202enimda", "user\\u202enimda"),
        ("a\u2028b\u200bc\ufeff", "a\\u2028b\\u200bc\\ufeff"),
        ("\U000e0041\ue000\ud800\U0010ffff", "\\U000e0041\\ue000\\ud800\\U0010ffff"),
        (
            "\u5b57 \u05e9\u05dc\u05d5\u05dd e\u0301 \U0001f600 \ufffd",
            "\u5b57 \u05e9\u05dc\u05d5\u05dd e\u0301 \U0001f600 \ufffd",
        ),
        ("\x00", "\\x00"),
    ],
)
def test_what_is_shown_of_a_text(text, shown):
    assert printable_text(text) == shown


@given(st.text(st.characters()))
def test_nothing_that_a_terminal_obeys_is_left(text):
    shown = printable_text(text)
    assert all(character in "\n\t" or character.isprintable() or character.isspace() for character in shown)
    assert not any(character in shown for character in "\x1b\x9b\r\x08\u202e\u2066\u200f")
    shown.encode()  # UTF-8 holds it


def test_one_line_is_one_and_not_too_long():
    assert one_line("a\nb\tc") == "a\\nb\\tc"
    assert one_line("x" * 61) == "x" * 57 + "..."
    assert one_line("x" * 60) == "x" * 60
    assert len(one_line("\n" * 10_000)) == 60


@given(st.text(st.characters()))
def test_json_says_the_same_and_moves_nothing(text):
    shown = printable_json(json.dumps(text, ensure_ascii=False))
    assert json.loads(shown) == text
    assert printable_text(shown) == shown
