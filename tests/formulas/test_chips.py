"""The table of chips: dense peaks, names, and figures that are refused."""

from __future__ import annotations

import csv

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.base.errors import ConfigError
from headway.formulas.chips import CHIPS, check_peak, dense_peak, find_chip, known_chip

T, G, GIB = 1e12, 1e9, 2**30

# name in the reference file -> name here, where that is not found by itself
RENAMED = {
    "V100-SXM2-16/32GB": "V100-SXM2-32GB",
    "H100-SXM-HBM2e (Meta 500W)": "H100-SXM-HBM2e",
    "GH200": "GH200-96GB",
    "B200-SXM (HGX)": "B200-SXM",
    "B300-SXM (HGX)": "B300-SXM",
    "GB200 (per GPU)": "GB200",
    "GB300 (per GPU)": "GB300",
    "Rubin (per GPU, announced)": "Rubin",
    "MI250X (2 GCD)": "MI250X",
    "MI455X (announced)": "MI455X",
}


def rows(reference):
    with (reference / "plan" / "gpu_specs.csv").open() as file:
        return list(csv.DictReader(file))


def number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def test_every_chip_of_the_reference_has_its_figures(reference):
    for row in rows(reference):
        chip = find_chip(RENAMED.get(row["name"], row["name"]))
        devices = 2 if chip.name == "MI250X" else 1  # the module is two devices for frameworks
        seen = {
            "bf16_dense_tflops": chip.peaks.get("bfloat16"),
            "fp8_dense_tflops": chip.peaks.get("float8"),
            "fp4_dense_tflops": chip.peaks.get("float4"),
            "mamf_bf16_tflops": chip.achievable.get("bfloat16"),
            "mamf_fp8_tflops": chip.achievable.get("float8"),
        }
        for column, value in seen.items():
            if number(row[column]) is not None:
                assert value == pytest.approx(number(row[column]) * T / devices), (row["name"], column)
        for column, value in (("marketing_sparse_bf16", "bfloat16"), ("marketing_sparse_fp8", "float8")):
            if number(row[column]) is not None:
                assert chip.sparse_peaks[value] == pytest.approx(number(row[column]) * T), (row["name"], column)
        if number(row["mem_gb"]) is not None:
            assert chip.memory_bytes == number(row["mem_gb"]) * GIB / devices
        if number(row["mem_bw_GBps"]) is not None:
            assert chip.memory_bandwidth == pytest.approx(number(row["mem_bw_GBps"]) * G / devices)
        if number(row["intra_unidir_GBps"]) is not None:
            assert chip.link_bandwidth == pytest.approx(number(row["intra_unidir_GBps"]) * G / devices)
        if number(row["typical_internode_GBps_per_chip"]) is not None:
            assert chip.network_bandwidth == number(row["typical_internode_GBps_per_chip"]) * G
        if number(row["tdp_w"]) is not None:
            assert chip.watts == number(row["tdp_w"])
        assert chip.verified == row["verified"].startswith("Y"), row["name"]
        assert chip.announced == ("announced" in row["name"])


def test_every_chip_has_a_source_and_sane_figures():
    for name, chip in CHIPS.items():
        assert chip.name == name
        assert chip.source
        assert chip.peaks
        for precision, best in chip.achievable.items():
            assert 0.4 < best / chip.peaks[precision] < 1
        for precision, headline in chip.sparse_peaks.items():
            if precision in chip.peaks:
                assert headline == pytest.approx(2 * chip.peaks[precision], rel=0.02)  # L40S: 362 against half of 733


@pytest.mark.parametrize(
    ("name", "chip"),
    [
        ("H100", "H100-SXM"),
        ("h100_80gb", "H100-SXM"),
        ("H100-80GB", "H100-SXM"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("A100-80GB", "A100-SXM-80GB"),
        ("a100_80gb", "A100-SXM-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-SXM-40GB"),
        ("MI250X GCD", "MI250X"),
        ("TPU v5p", "TPU-v5p"),
        ("H800", "H800-SXM"),
    ],
)
def test_usual_names_are_found(name, chip):
    assert find_chip(name).name == chip


@pytest.mark.parametrize("name", ["A100", "V100", "gh200"])
def test_G2_a_name_of_several_chips_is_asked_back(name):
    with pytest.raises(ConfigError, match=r"is no single accelerator(?s:.*)use (A100|V100|GH200)"):
        find_chip(name)
    with pytest.raises(ConfigError, match="is no single accelerator"):
        known_chip(name)


def test_G2_an_unknown_chip_is_refused_with_the_list_and_the_nearest():
    with pytest.raises(ConfigError) as error:
        find_chip("H1000")
    text = str(error.value)
    assert "'H1000' is no accelerator of the table" in text
    assert all(name in text for name in CHIPS)
    assert "did you mean H100" in text
    assert known_chip("H1000") is None
    assert known_chip("cpu") is None


def test_G2_sparse_headlines_are_refused_and_the_dense_rate_named():
    with pytest.raises(
        ConfigError, match=r"1,979 TFLOP/s is the sparse headline of H100-SXM in bfloat16(?s:.*)dense rate is 989T"
    ):
        check_peak(find_chip("H100"), 1979 * T)
    with pytest.raises(ConfigError, match="sparse headline"):
        check_peak(find_chip("L40S"), 733 * T)
    with pytest.raises(ConfigError, match="sparse headline"):
        check_peak(find_chip("H100"), 1970 * T)  # as people round
    check_peak(find_chip("H100"), 1979 * T, "float8")  # there it is the dense one
    with pytest.raises(ConfigError, match="3,958 TFLOP/s is the sparse headline of H100-SXM in float8"):
        check_peak(find_chip("H100"), 3958 * T, "float8")
    with pytest.raises(ConfigError, match="624 TFLOP/s"):  # A100 has no float8
        check_peak(find_chip("A100-80GB"), 624 * T, "float8")


@given(st.sampled_from(sorted(CHIPS)), st.floats(0.01, 4))
def test_a_stated_peak_passes_up_to_rounding(name, factor):
    chip = CHIPS[name]
    precision = next(iter(chip.peaks))
    stated = chip.peaks[precision] * factor
    if factor <= 1:
        check_peak(chip, stated, precision)
    elif factor > 1.11:
        with pytest.raises(ConfigError):
            check_peak(chip, stated, precision)


def test_a_precision_that_a_chip_does_not_have_is_refused():
    assert dense_peak(find_chip("V100-32GB"), "float16") == 125 * T
    with pytest.raises(ConfigError, match=r"no bfloat16 peak of V100-SXM2-32GB(?s:.*)float16 125T"):
        dense_peak(find_chip("V100-32GB"), "bfloat16")
