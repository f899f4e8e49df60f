"""The line of every key, for all the ways TOML can write one."""

from __future__ import annotations

import tomllib

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.recipe.lines import key_lines, line_of

TEXT = '''\
# head
a = 1  # b = 2
"quoted key" = 'x # no comment'
long = """
c = 3
""""
[t.u]
d.e = [1, 2, # three
  3,
  { f = "]" , g = [ "}" ] },
]
[[s]]
name = "first"
[s.inner]
x = 1
[[s]]
name = "second"
inner = { x = 2, y.z = 3 }
[[s.deep]]
v = \'\'\'it's\'\'\'
[[s.deep]]
v = "a \\" b"
w = 2026-11-01
'''


def test_lines_of_all_forms():
    lines = key_lines(TEXT)
    expected = {
        ("a",): 2,
        ("quoted key",): 3,
        ("long",): 4,
        ("t", "u"): 7,
        ("t", "u", "d", "e"): 8,
        ("t", "u", "d", "e", 2): 9,
        ("t", "u", "d", "e", 3, "g"): 10,
        ("s", 0, "name"): 13,
        ("s", 0, "inner", "x"): 15,
        ("s", 1): 16,
        ("s", 1, "inner", "y", "z"): 18,
        ("s", 1, "deep", 0, "v"): 20,
        ("s", 1, "deep", 1, "v"): 22,
        ("s", 1, "deep", 1, "w"): 23,
    }
    assert {path: lines.get(path) for path in expected} == expected
    assert ("b",) not in lines
    assert ("c",) not in lines


def test_absent_key_has_the_line_of_its_table():
    lines = key_lines(TEXT)
    assert line_of(lines, ("s", 1, "inner", "absent")) == 18
    assert line_of(lines, ("nowhere",)) is None


def walk(value, path=()):
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from walk(inner, (*path, key))


words = st.text("ab_1-", min_size=1, max_size=3)
scalars = st.one_of(st.integers(-9, 9).map(str), st.sampled_from(['"#]"', "'}'", '"""x\ny"""', "true", '"\\""', "1e3"]))
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda v: "[" + ", # c\n".join(v) + "]")
        | st.dictionaries(words, inner, max_size=2).map(lambda d: "{" + ", ".join(f"{k} = {v}" for k, v in d.items()) + "}")
    ),
    max_leaves=5,
)
tables = st.dictionaries(words, values, min_size=1, max_size=4).map(lambda d: "\n".join(f"{k} = {v}" for k, v in d.items()))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["[[list]]", "[list.sub]"]), tables), max_size=4), tables)
def test_every_key_that_tomllib_finds_has_a_line(parts, top):
    text = top + "\n[[list]]\n" + "\n".join(f"{header}\n{body}" for header, body in parts)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    lines = key_lines(text)
    for path in walk(data):
        assert path in lines, (path, text)
