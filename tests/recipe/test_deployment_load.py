"""Deployments: defaults, layouts against the world, what can be planned but not run."""

from __future__ import annotations

import os

import pytest

from headway.base.errors import ConfigError
from headway.recipe.deployment import Deployment
from headway.recipe.load import load_deployment
from headway.recipe.offload import Offload
from headway.recipe.placement import EVERY_ADDRESS, check_stages


def test_default_is_one_local_process():
    deployment = load_deployment()
    assert (deployment.world, deployment.layout("any").world, deployment.state_digest_every) == (1, 1, 0)
    assert load_deployment("demo").state_digest_every == 1


def test_P6_layout_that_is_not_the_world_is_refused_with_both_numbers(tmp_path):
    path = tmp_path / "d.toml"
    path.write_text("nodes = 2\nprocesses_per_node = 8\n[layouts.default]\ntp = 2\ndp_shard = 4\n[layouts.long]\ncp = 16\n")
    with pytest.raises(ConfigError) as error:
        load_deployment(path, runnable=False)
    (problem,) = error.value.problems
    assert "needs 8 processes" in problem.seen
    assert "has 16" in problem.seen
    assert problem.where == f"{path}:3"


def test_P6_many_processes_without_a_layout_are_refused():
    with pytest.raises(ConfigError, match=r"needs 1 processes .* has 4"):
        load_deployment(None, ["processes_per_node=4"], runnable=False)


def test_the_processes_of_one_machine_run_larger_deployments_are_planned():
    sets = ["processes_per_node=8", "layouts.default.dp_shard=4", "layouts.default.tp=2"]
    assert load_deployment(None, sets).world == 8
    assert load_deployment(None, [*sets, "nodes=2", "layouts.default.dp_replicate=2"], runnable=False).world == 16
    with pytest.raises(ConfigError, match=r"the deployment has 2 nodes, and fleet\.hosts names 0"):
        load_deployment(None, [*sets, "nodes=2", "layouts.default.dp_replicate=2"])


def test_several_machines_have_names_and_something_that_runs_a_command_on_them():
    two = ["nodes=2", "layouts.default.dp_shard=2"]
    named = [*two, 'fleet.hosts=["a", "b", "spare"]']
    found = load_deployment(None, [*named, 'fleet.start=["ssh", "{host}"]'])
    assert (found.fleet.hosts, found.fleet.start) == (("a", "b", "spare"), ("ssh", "{host}"))
    assert load_deployment(None, [*named, "fleet.start=[]"]).resolved()["fleet"]["start"] == []
    for given, seen in (
        ([*named], "nothing says how a command is run on them"),
        ([*two, 'fleet.hosts=["a"]', "fleet.start=[]"], "2 nodes, and fleet.hosts names 1"),
        ([*two, 'fleet.hosts=["a", "a"]', "fleet.start=[]"], "a twice in fleet.hosts"),
        ([*named, "fleet.start=[]", "fleet.least=3"], "at least 3 of 2 nodes"),
        ([*named, 'fleet.start=["ssh"]'], "fleet.start is ssh, the same for all 3 machines"),
        ([*named, 'fleet.start=["ssh", "{hots}"]'], "the same for all 3 machines"),
        *(([*named, "fleet.start=[]", f'fleet.address="{one}"'], "is every address of a machine") for one in EVERY_ADDRESS),
        ([*two, 'fleet.hosts=["a", "-oProxyCommand=x"]', "fleet.start=[]"], "fleet.hosts"),
    ):
        with pytest.raises(ConfigError, match=seen):
            load_deployment(None, given)


def test_replica_groups_need_whole_replicas_on_one_machine():
    groups = ["processes_per_node=2", "layouts.default.dp_replicate=2", "supervise.per_step=torchft"]
    unrepeated = "supervise.corruption.repeat_every=0"
    assert load_deployment(None, [*groups, unrepeated]).supervise.per_step == "torchft"
    fleet = ['fleet.hosts=["a", "b"]', "fleet.start=[]", "nodes=2", "processes_per_node=1"]
    stage = ["layouts.main.dp_shard=2"]
    for given, seen in (
        (groups, "repeat_every = 600"),
        ([*groups, unrepeated, *fleet], "torchft over 2 machines"),
        ([*groups, unrepeated, *stage], "layout 'main' has dp_replicate 1"),
        (["supervise.per_step=torchft", unrepeated], "layout 'default' has dp_replicate 1"),
        (["supervise.per_step=on"], "supervise.per_step"),
    ):
        with pytest.raises(ConfigError, match=seen):
            load_deployment(None, given)


def test_how_a_layout_is_carried_out_is_run_and_what_is_only_planned_is_refused():
    sets = ["processes_per_node=4", "layouts.default.pp=2", "layouts.default.dp_shard=2", "layouts.default.ep=2"]
    run = ["pipeline=interleaved", "virtual=2", "zero=2", "recompute=full", "offload=all"]
    assert load_deployment(None, [*sets, *(f"layouts.default.{field}" for field in run)]).world == 4
    for planned in ("micro_batch=2", "sequence_parallel=false"):
        with pytest.raises(ConfigError, match="planned, not run"):
            load_deployment(None, [*sets, f"layouts.default.{planned}"])


def test_offload_of_the_first_records_is_read_and_in_files_it_is_a_word():
    """It was a truth value then, and no engine acted upon it."""
    one = load_deployment(None, ["layouts.default.dp_shard=1"]).resolved()
    for recorded, meant in ((False, "none"), (True, "optimizer")):
        one["layouts"]["default"]["offload"] = recorded
        assert Deployment.of_resolved(one).layout("main").offload == meant
        assert Offload.of_record(recorded) == meant
    with pytest.raises(ConfigError, match="offload is one of none, optimizer, activations, all"):
        load_deployment(None, ["layouts.default.offload=true"])


def test_threads_are_shared_by_the_processes_of_a_machine():
    cores = len(os.sched_getaffinity(0))
    two = load_deployment(None, ["processes_per_node=2", "layouts.default.dp_shard=2"])
    assert two.resolved()["threads"] == max(1, cores // 2)


def test_units_and_unknown_keys_are_problems_too():
    with pytest.raises(ConfigError) as error:
        load_deployment(None, ["supervise.grace=30", "checkpoint.every_steps=3", "accelerator.peak_flops=989T flops", "nodes=0"])
    found = {p.where: f"{p.seen} {p.way_out}" for p in error.value.problems}
    assert "has no unit of time" in found["--set supervise.grace=30"]
    assert "did you mean checkpoints?" in found["--set checkpoint.every_steps=3"]
    assert "at least 1" in found["--set nodes=0"]
    assert len(found) == 3


def test_unit_strings():
    sets = ["accelerator.peak_flops=989T", "accelerator.memory=80GiB", "failures.every=3h", "storage.write_speed=2TB"]
    deployment = load_deployment(None, sets)
    assert deployment.accelerator.peak_flops == 989 * 10**12
    assert (deployment.accelerator.memory, deployment.failures.every) == (80 * 2**30, 10_800.0)
    assert deployment.storage.write_speed == 2 * 10**12


def test_P6_a_stage_that_falls_back_on_one_process_is_refused():
    sets = ["nodes=2", "layouts.main.dp_shard=2"]
    deployment = load_deployment(None, sets, runnable=False)
    check_stages(deployment, ["main"])
    with pytest.raises(ConfigError, match=r"stage 'anneal' has no layout .* needs 1 processes .* has 2"):
        check_stages(deployment, ["main", "anneal"])
    check_stages(load_deployment(None, [*sets, "layouts.default.tp=2"], runnable=False), ["main", "anneal"])


def test_layouts_for_stages_that_do_not_exist_name_the_nearest():
    deployment = load_deployment(None, ["layouts.aneal={}", "layouts.default={}"])
    with pytest.raises(ConfigError, match=r"layouts.aneal is for no stage(?s:.*)did you mean anneal"):
        check_stages(deployment, ["main", "anneal"])


def test_resolved_leaves_nothing_open_that_the_trainer_acts_on():
    plain = load_deployment()
    resolved = plain.resolved()
    assert resolved.keys() == plain.model_dump(mode="json").keys()
    assert (resolved["micro_batch"], resolved["threads"]) == (8192, len(os.sched_getaffinity(0)))
    stated = load_deployment(None, ["micro_batch=512", "threads=3"]).resolved()
    assert (stated["micro_batch"], stated["threads"]) == (512, 3)


def test_threads_are_bounded():
    assert load_deployment(None, ["threads=1024"]).threads == 1024
    with pytest.raises(ConfigError, match="threads per process, at most 1,024"):
        load_deployment(None, ["threads=100000"])


def test_a_lease_that_nobody_could_renew_in_time_is_refused():
    with pytest.raises(ConfigError, match=r"a lease of 1 ms(?s:.*)at least 1s"):
        load_deployment(None, ["supervise.lease_ttl=1ms"])
    assert load_deployment(None, ["supervise.lease_ttl=1s"]).supervise.lease_ttl == 1.0
