"""Deployments on chips of the table, what is planned and not run, and clusters named for a plan."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.base.errors import ConfigError
from headway.recipe.chips import CHIPS
from headway.recipe.cluster import parse_cluster, with_cluster
from headway.recipe.load import load_deployment
from headway.recipe.placement import check_domain, check_stages, settle

EIGHT = ["processes_per_node=8", "layouts.default.dp_shard=8"]


def planned(*sets: str, path=None):
    return load_deployment(path, [*EIGHT, *sets] if path is None else list(sets), runnable=False)


def problems(*sets: str, runnable: bool = False) -> str:
    with pytest.raises(ConfigError) as error:
        load_deployment(None, list(sets), runnable=runnable)
    return str(error.value)


# --- chips


def test_a_chip_brings_its_peak_by_precision_and_its_memory():
    for precision, peak in (("bfloat16", 989e12), ("float8", 1979e12)):
        settled = settle(planned("accelerator.kind=H100"), precision).accelerator
        assert (settled.peak_flops, settled.memory, settled.kind) == (peak, 80 * 2**30, "H100")
    assert settle(planned("accelerator.kind=H100"), "float32").accelerator.peak_flops is None  # not in the table: unknown
    stated = settle(planned("accelerator.kind=H100", "accelerator.peak_flops=800T", "accelerator.memory=70GB"), "bfloat16")
    assert (stated.accelerator.peak_flops, stated.accelerator.memory) == (800e12, 70e9)


def test_G2_a_sparse_peak_is_refused_when_the_precision_is_known():
    deployment = planned("accelerator.kind=H100-SXM", "accelerator.peak_flops=1979T")
    with pytest.raises(ConfigError, match=r"accelerator.peak_flops: 1,979 TFLOP/s is the sparse headline(?s:.*)989T"):
        settle(deployment, "bfloat16")
    assert settle(deployment, "float8").accelerator.peak_flops == 1979e12


def test_G2_nothing_is_borrowed_for_devices_that_the_table_does_not_hold():
    for kind in ("cpu", "H9000"):
        deployment = load_deployment(None, [f"accelerator.kind={kind}"])
        assert settle(deployment, "bfloat16").accelerator.peak_flops is None
        assert deployment.chip is None
    assert planned("accelerator.kind=H9000", "accelerator.peak_flops=5P").accelerator.peak_flops == 5e15
    text = problems(*EIGHT, "accelerator.kind=H9000")
    assert "--set accelerator.kind=H9000: 'H9000' is no accelerator of the table" in text
    assert "H100-SXM, " in text


def test_an_ambiguous_or_impossible_device_is_refused():
    assert "use A100-SXM-40GB, A100-SXM-80GB" in problems("accelerator.kind=A100", runnable=True)
    text = problems("accelerator.kind=A100-40GB", "accelerator.memory=80GB")
    assert "--set accelerator.memory=80GB: A100-SXM-40GB is given 74.5 GiB" in text
    assert "it has 40 GiB" in text


@pytest.mark.parametrize(
    ("sets", "domain"),
    [
        (["accelerator.kind=H100"], 8),
        (["accelerator.kind=H100", "accelerator.domain=4"], 4),
        (["accelerator.kind=L40S"], 8),  # no links of its own: the machine
        (["accelerator.kind=TPU-v5p"], 8960),
        (["accelerator.kind=cpu"], 8),
    ],
)
def test_domains(sets, domain):
    assert planned(*sets).domain == domain


def test_machines_smaller_than_a_chips_domain_are_its_domain():
    sets = ["nodes=2", "processes_per_node=4", "layouts.default.dp_shard=8", "accelerator.kind=H100"]
    assert load_deployment(None, sets, runnable=False).domain == 4


def test_domains_that_devices_do_not_fill_are_refused():
    sets = ["nodes=25", "processes_per_node=4", "layouts.default.dp_shard=100", "accelerator.kind=GB200"]
    text = problems(*sets)
    assert "100 devices do not fill domains of 72" in text
    assert "accelerator.domain = 50" in text
    assert load_deployment(None, [*sets, "accelerator.domain=50"], runnable=False).domain == 50


# --- fields of plans


def test_failures_per_device_follow_the_number_of_devices():
    deployment = planned("failures.per_device=50700h")
    assert deployment.between_failures == pytest.approx(50_700 * 3600 / 8)
    assert planned("failures.every=3h").between_failures == 10_800
    assert planned().between_failures is None
    assert "both for the whole job and per device" in problems("failures.every=3h", "failures.per_device=50700h")


def test_one_cadence_of_checkpoints_counts():
    assert planned("checkpoints.every=30min").checkpoints.every == 1800
    text = problems("checkpoints.every=30min", "checkpoints.every_steps=50")
    assert "both every 50 steps and by the clock" in text


@pytest.mark.parametrize(
    "override",
    [
        "layouts.default.micro_batch=2",
        "layouts.default.sequence_parallel=false",
        "state.gradient_bytes=2",
        "implementation.dropout=true",
        "checkpoints.every=30min",
        "checkpoints.bytes_per_parameter=16",
    ],
)
def test_what_is_planned_and_not_run_is_refused_by_name(override):
    text = problems(override, runnable=True)
    assert "planned, not run" in text
    assert override.partition("=")[0] in text
    load_deployment(None, [override], runnable=False)


def test_defaults_of_plan_fields_can_be_written_and_run():
    sets = ["layouts.default.recompute=none", "layouts.default.zero=3", "state.weight_bytes=2", "implementation.flash=true"]
    assert load_deployment(None, sets).layout("main").zero == 3


def test_bounds_of_durations_have_their_unit():
    text = problems("failures.per_device=0.5s")
    assert "per_device is at least 1s (" in text
    assert "give a value of at least 1s" in text


def test_bounds_inside_named_tables_say_what_the_key_means():
    assert "tp is at least 1 (parts of a matrix)" in problems("layouts.main.tp=0")


@pytest.mark.parametrize("value", ["true", "1.0", "4"])
def test_a_choice_of_whole_numbers_is_no_truth_value(value):
    assert "flash_generation is one of 1, 2, 3" in problems(f"implementation.flash_generation={value}")
    planned("implementation.flash_generation=3")


def test_fast_links_join_no_more_than_the_chip_can():
    """On the machine that something is started on; those of a plan are checked once its cluster is known."""
    assert "fast links join at most 1:" in problems("accelerator.domain=2", "nodes=1", runnable=True)
    slices = planned("accelerator.kind=TPU-v5p", "accelerator.domain=8000")
    check_domain(slices)
    with pytest.raises(ConfigError, match="at most 8,960: a domain of TPU-v5p has no more"):
        check_domain(planned("accelerator.kind=TPU-v5p", "accelerator.domain=8961"))


def test_units_and_bounds_of_the_new_fields():
    sets = ["power.pue=0.9", "power.watts=-5", "failures.correlated=2", "layouts.default.zero=4", "failures.per_device=50700"]
    text = problems(*sets, "layouts.default.recompute=half", "accelerator.utilisation_convention=8N")
    for override in sets:
        assert f"--set {override}: " in text
    assert "recompute is one of none, selective, light, ops, full" in text
    assert "utilisation_convention is one of 6N, causal, full" in text


# --- clusters


def test_a_shorthand_names_whole_machines_or_a_part_of_one():
    devices = parse_cluster("16384xH100-SXM")
    assert (devices.nodes, devices.processes_per_node, devices.chip.name) == (2048, 8, "H100-SXM")
    assert (parse_cluster("4 x a100_80gb").nodes, parse_cluster("4 x a100_80gb").processes_per_node) == (1, 4)
    assert parse_cluster("1,440xGB200").nodes == 20
    assert parse_cluster("16xL40S").nodes == 2
    assert parse_cluster("my.toml") is None
    assert parse_cluster("demo") is None


@given(st.sampled_from(sorted(CHIPS)), st.integers(1, 50))
def test_machines_times_processes_are_the_devices(name, machines):
    chip = CHIPS[name]
    count = machines * (chip.domain if chip.domain > 1 else 8)
    devices = parse_cluster(f"{count}x{name}")
    assert devices.nodes * devices.processes_per_node == count


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0xH100", "a cluster of 0 devices"),
        ("-8xH100", "a cluster of -8 devices"),
        ("2.5xH100", "a cluster of 2.5 devices"),
        ("1024xH1000", "is no accelerator of the table(?s:.*)did you mean H100"),
        ("1024xA100", "is no single accelerator"),
        ("100xH100", "100 devices do not fill domains of 8(?s:.*)use 96 or 104"),
        ("no-such-file.toml", "there is no deployment at no-such-file.toml"),
        ("no-such-preset", "is no cluster(?s:.*)COUNTxCHIP(?s:.*)presets are beacon"),
        ("beacn", "did you mean beacon"),
        ("2147483648xH100", "at most 2,147,483,647"),
        ("1e4xH100", "COUNTxCHIP(?s:.*)write it like 1024xH100-SXM"),
        ("h200x8", "COUNTxCHIP(?s:.*)write it like 8xH200-SXM"),
        ("V100x8", "COUNTxCHIP(?s:.*)8xH100-SXM; use V100-SXM2-16GB, V100-SXM2-32GB"),
        ("x8", "COUNTxCHIP(?s:.*)write it like 8xH100-SXM"),
        ("8x", "no chip is named(?s:.*)COUNTxCHIP(?s:.*)write it like 8xH100-SXM"),
        ("8xcpu", "'cpu' is no accelerator of the table(?s:.*)write it like 8xH100-SXM"),
        ("8xH100.toml", "there is no deployment at 8xH100.toml"),
        ("", "an empty cluster(?s:.*)COUNTxCHIP"),
    ],
)
def test_clusters_that_cannot_be(text, message):
    with pytest.raises(ConfigError, match=message):
        with_cluster(load_deployment(), text)


def test_a_cluster_replaces_where_it_runs_and_keeps_the_rest():
    own = planned(
        "accelerator.kind=H100",
        "accelerator.utilisation=0.4",
        "accelerator.network=25GB",
        "price_per_hour=2.0",
        "power.watts=1300.0",
        "power.pue=1.1",
        "failures.every=3h",
        "checkpoints.every_steps=300",
        "storage.write_speed=2TB",
    )
    other = with_cluster(own, "1024xH200")
    assert (other.world, other.accelerator.kind, other.layouts) == (1024, "H200-SXM", {})
    assert (other.accelerator.utilisation, other.accelerator.network) == (0.4, None)
    assert (other.price_per_hour, other.power.watts, other.power.pue) == (None, None, 1.1)  # the device's go, the building's stay
    assert other.checkpoints == own.checkpoints
    same = with_cluster(own, "1024xH100_80gb")
    assert (same.price_per_hour, same.power.watts) == (2.0, 1300.0)
    check_stages(other, ["main", "anneal"])  # no layouts at all: to be looked for


def test_a_file_brings_devices_prices_and_layouts(tmp_path):
    path = tmp_path / "there.toml"
    path.write_text(
        "nodes = 2\nprocesses_per_node = 8\nprice_per_hour = 3.0\n"
        '[accelerator]\nkind = "A100-80GB"\n[layouts.default]\ntp = 8\ndp_shard = 2\n[failures]\nevery = "1h"\n'
    )
    other = with_cluster(planned("accelerator.utilisation=0.4", "failures.every=3h"), str(path))
    assert (other.world, other.chip.name, other.price_per_hour) == (16, "A100-SXM-80GB", 3.0)
    assert (other.layout("main").tp, other.accelerator.utilisation, other.between_failures) == (8, 0.4, 5_400.0)
