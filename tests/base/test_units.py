import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.base.errors import ConfigError
from headway.base.units import format_bytes, format_count, format_seconds, parse_bytes, parse_count, parse_seconds


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("15T", 15 * 10**12),
        ("4M tokens", 4_000_000),
        ("250 k", 250_000),
        (4096, 4096),
        ("1_000", 1000),
        ("1.5B", 1_500_000_000),
        ("8k token", 8000),
    ],
)
def test_counts(text, value):
    assert parse_count(text) == value


@pytest.mark.parametrize("text", ["15 GB", "4 minutes", "-3", "many", "1.5", "", True, None, "4M steps", 1e30, "1e30"])
def test_counts_refused(text):
    with pytest.raises(ConfigError):
        parse_count(text)


@pytest.mark.parametrize(("text", "value"), [("30min", 1800.0), ("1.5h", 5400.0), ("250 ms", 0.25), ("3days", 259200.0)])
def test_seconds(text, value):
    assert parse_seconds(text) == pytest.approx(value)


@pytest.mark.parametrize("text", [30, "30", "30 MB", "5m", "soon", True])
def test_seconds_need_a_unit(text):
    with pytest.raises(ConfigError):
        parse_seconds(text)


@pytest.mark.parametrize(("text", "value"), [("64MiB", 2**26), ("80GB", 80 * 10**9), (12, 12)])
def test_bytes(text, value):
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["64 tokens", "64M", "1.5 B", "x"])
def test_bytes_refused(text):
    with pytest.raises(ConfigError):
        parse_bytes(text)


@given(st.integers(min_value=0, max_value=9999))
def test_small_counts_print_exactly(number):
    assert format_count(number) == f"{number:,}"


def test_formats_for_people():
    assert (format_count(1_234_567), format_count(15e12, "tokens")) == ("1.23M", "15T tokens")
    assert (format_bytes(512), format_bytes(3 * 2**30)) == ("512 B", "3 GiB")
    assert (format_seconds(0.0042), format_seconds(75), format_seconds(1e6)) == ("4.2 ms", "1 min 15 s", "11.6 days")
