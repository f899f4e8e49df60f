"""``headway checkpoint ...`` from the outside, on small real checkpoints."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "store"))
from store_cases import add_segment, chain_of, flip_bit, make_run, record_evaluation, record_save, save, values

from headway.base.clocks import SystemClock
from headway.cli.main import CHECKPOINT_VERBS, build_app, import_verbs, run_guarded
from headway.rundir.lease import Lease
from headway.store.admissible import choose, list_checkpoints
from headway.store.names import TOMBSTONE

DATA = "rank00000.safetensors"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Five saves, the fourth with the lowest loss; the policy keeps the last, the best and every third."""
    monkeypatch.chdir(tmp_path)
    run = make_run(Path("run"))
    for ordinal, step in enumerate((10, 20, 30, 40, 50), start=1):
        record_evaluation(run, 1, step, text=3.0 if step != 40 else 2.0)
        record_save(run, 1, step, save(run, 1, step, says={"ordinal": ordinal, "cursor": {"u": step, "stage": "main"}}))
    description = json.loads(run.run_file.read_text())
    policy = {"keep_last": 1, "permanent_every": 3, "keep_best": 1}
    run.run_file.write_text(json.dumps(description | {"deployment": {"checkpoints": policy}}))
    return run


def name_of(step: int, segment: int = 1) -> str:
    return f"g{segment:04d}-s{step:08d}"


def damage(run, step):
    path = run.checkpoints / name_of(step) / DATA
    flip_bit(path, path.stat().st_size - 1)


def told(capsys, *arguments: str) -> tuple[int, str]:
    """Exit code and standard output, blanks squeezed."""
    code = run_guarded(["checkpoint", *arguments])
    return code, "\n".join(" ".join(line.split()) for line in capsys.readouterr().out.splitlines())


def facts(capsys, *arguments: str) -> tuple[int, dict]:
    code = run_guarded(["checkpoint", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def steps_left(run):
    return [info.step for info in list_checkpoints(run, chain_of(run))]


def test_every_verb_of_the_group_is_there():
    app = build_app()
    import_verbs(app, "checkpoint")
    assert set(CHECKPOINT_VERBS) <= set(app["checkpoint"].resolved_commands())


# --- list


def test_list_says_what_each_is_and_where_a_resume_goes_on(run, capsys):
    (run.checkpoints / name_of(60)).mkdir()
    run_guarded(["checkpoint", "keep", "run", name_of(10), "--as", "first light"])
    capsys.readouterr()
    code, shown = told(capsys, "list", "run")
    assert code == 0
    assert f"{name_of(10)} 10" in shown
    assert "history 3.0000 kept: first light" in shown
    assert "history 3.0000 permanent" in shown
    assert "history 2.0000 best" in shown
    assert "history 3.0000 <- resume" in shown
    assert "unfinished" in shown
    code, listed = facts(capsys, "list", "run")
    assert (code, listed["chosen"], listed["missing"]) == (0, name_of(50), [])
    by_step = {row["step"]: row for row in listed["checkpoints"]}
    assert by_step[10]["marks"] == ["kept: first light"]
    assert by_step[30]["marks"] == ["permanent"]
    assert by_step[40]["marks"] == ["best"]
    assert by_step[50]["nbytes"] == sum(path.stat().st_size for path in (run.checkpoints / name_of(50)).iterdir())
    assert [row["committed"] for row in listed["checkpoints"]] == [True] * 5 + [False]


def test_list_tells_evidence_from_history(run, capsys, tmp_path):
    os.truncate(run.checkpoints / name_of(30) / DATA, 10)  # a glance sees it
    damage(run, 20)  # only reading sees it
    add_segment(run, 2, parent=1, restored=40, checkpoint=name_of(40))  # 50 is rolled back
    save(run, 2, 50, says={"run_id": "another"})
    save(run, 2, 60)
    shutil.rmtree(run.checkpoints / name_of(10))
    shutil.copytree(run.checkpoints / name_of(60, 2), run.checkpoints / name_of(70, 2))
    os.replace(run.checkpoints / name_of(70, 2) / "MANIFEST.json", run.checkpoints / name_of(70, 2) / TOMBSTONE)
    (run.checkpoints / name_of(60, 2)).rename(tmp_path / "elsewhere")
    (run.checkpoints / name_of(60, 2)).symlink_to(tmp_path / "elsewhere")
    _, listed = facts(capsys, "list", "run")
    assert {row["name"]: row["standing"] for row in listed["checkpoints"]} == {
        name_of(20): "history",
        name_of(30): "refused",
        name_of(40): "history",
        name_of(50): "late or rolled back",
        name_of(50, 2): "refused",
        name_of(60, 2): "history",
        name_of(70, 2): "half deleted",
    }
    reasons = {row["name"]: row["reason"] for row in listed["checkpoints"]}
    assert "bytes instead of" in reasons[name_of(30)]
    assert reasons[name_of(50, 2)] == "belongs to run another"
    assert listed["missing"] == [name_of(10)]
    assert listed["chosen"] == name_of(60, 2) == choose(run, chain_of(run)).checkpoint, "a resume follows links"
    assert next(row for row in listed["checkpoints"] if row["name"] == name_of(60, 2))["marks"] == ["link"]
    _, shown = told(capsys, "list", "run")
    assert f"{name_of(50, 2)}: belongs to run another" in shown
    assert f"{name_of(10)}: on record as saved, gone" in shown


def test_what_was_refused_once_is_not_called_the_place_to_resume(run, capsys):
    damage(run, 50)
    assert facts(capsys, "list", "run")[1]["chosen"] == name_of(50), "a glance does not read the data"
    run_guarded(["checkpoint", "prune", "run"])
    capsys.readouterr()
    _, listed = facts(capsys, "list", "run")
    assert listed["chosen"] == name_of(40) == choose(run, chain_of(run)).checkpoint
    assert "digest differs" in listed["checkpoints"][-1]["reason"]


def test_list_of_a_run_without_checkpoints_and_of_no_run(tmp_path, capsys):
    make_run(tmp_path / "new")
    assert told(capsys, "list", str(tmp_path / "new")) == (0, "no checkpoints yet")
    assert run_guarded(["checkpoint", "list", str(tmp_path)]) == 2


def test_nothing_to_go_on_from_is_said(run, capsys):
    for step in (10, 20, 30, 40, 50):
        os.truncate(run.checkpoints / name_of(step) / DATA, 10)
    assert "a resume finds nothing here" in told(capsys, "list", "run")[1]


# --- verify


def test_verify_reads_everything_and_names_file_and_block(run, capsys):
    code, shown = told(capsys, "verify", "run")
    assert code == 0
    assert "all 5 are whole" in shown
    damage(run, 20)
    code, shown = told(capsys, "verify", "run")
    assert code == 1
    assert f"{name_of(20)}: {DATA}: v/w block 0: digest differs" in shown
    assert "1 of 5 damaged" in shown
    assert told(capsys, "verify", "run", name_of(10), name_of(50))[0] == 0
    code, found = facts(capsys, "verify", "run", name_of(20), name_of(30))
    assert (code, found["damaged"], [item["ok"] for item in found["checkpoints"]]) == (1, 1, [False, True])
    assert found["checkpoints"][1]["bytes"] == (run.checkpoints / name_of(30) / DATA).stat().st_size
    assert found["checkpoints"][1]["bytes_per_second"] > 0


def test_verify_takes_copies_outside_a_run(run, capsys, tmp_path):
    shutil.copytree(run.checkpoints / name_of(20), tmp_path / "copy")
    assert told(capsys, "verify", "copy")[0] == 0
    assert told(capsys, "verify", "run", "./copy", name_of(10))[0] == 0
    assert told(capsys, "verify", f"run:{name_of(10)}")[0] == 0
    flip_bit(tmp_path / "copy" / DATA, 700)
    assert told(capsys, "verify", "copy")[0] == 1
    assert told(capsys, "verify", "run", "./copy")[0] == 1
    (tmp_path / "copy" / "MANIFEST.json").unlink()
    code, shown = told(capsys, "verify", "copy")
    assert code == 1
    assert "MANIFEST.json is missing" in shown


def test_a_checkpoint_of_another_run_is_found(run, capsys):
    save(run, 1, 60, says={"run_id": "another"})
    code, shown = told(capsys, "verify", "run", name_of(60))
    assert code == 1
    assert "belongs to run another" in shown
    assert told(capsys, "verify", f"run/checkpoints/{name_of(60)}")[0] == 0, "by its path it belongs to nobody"


def test_what_retention_deletes_meanwhile_is_no_damage(run, capsys, monkeypatch):
    from headway.store import audit

    real = audit.audit

    def deleted_first(directory, progress):
        if directory.name == name_of(10):
            run_guarded(["checkpoint", "prune", "run"])
            capsys.readouterr()
        return real(directory, progress)

    monkeypatch.setattr(audit, "audit", deleted_first)
    code, found = facts(capsys, "verify", "run")
    assert (code, [item["name"] for item in found["checkpoints"]]) == (0, [name_of(step) for step in (30, 40, 50)])


def test_verify_shows_how_far_it_is_on_a_terminal_only(run, capsys, monkeypatch):
    run_guarded(["checkpoint", "verify", "run"])
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    run_guarded(["checkpoint", "verify", "run", name_of(10)])
    shown = capsys.readouterr()
    assert "%" in shown.err
    assert "GB/s" in shown.err
    assert "%" not in shown.out


# --- show, and how checkpoints are named


def test_show_tells_the_manifest_and_the_tensors(run, capsys):
    code, shown = told(capsys, "show", "run", name_of(30))
    assert code == 0
    assert "step 30, of segment 1" in shown
    assert 'cursor.stage "main"' in shown
    assert "param 1 35 140 B" in shown
    assert "param/w" not in shown
    code, told_facts = facts(capsys, "show", f"run:{name_of(30)}", "--tensors")
    assert (told_facts["step"], told_facts["world"], told_facts["state"]["cursor"]["u"]) == (30, 1, 30)
    assert told_facts["tensors"][0] == {"name": "m/w", "dtype": "F32", "shape": [5, 7], "chunks": 1, "bytes": 140}
    assert told_facts["bytes"] == (run.checkpoints / name_of(30) / DATA).stat().st_size
    assert "tensors" not in facts(capsys, "show", f"run/checkpoints/{name_of(30)}")[1]
    assert "param/w F32 5 x 7 1 140 B" in told(capsys, "show", "run", name_of(30), "--tensors")[1]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("show", "run", "g0001-s00000099"), 2, "there are: g0001-s00000010, "),
        (("show", "run", "../run"), 2, "has no checkpoint"),
        (("show", "run"), 2, "run is a run, not a checkpoint"),
        (("show", "nowhere"), 2, "nowhere does not exist"),
        (("show", "nowhere:g0001-s00000010"), 2, "does not exist"),
        (("show", "."), 2, "no checkpoint directory"),
        (("verify", "nowhere"), 2, "not a run directory"),
        (("verify", "run", "g0001-s00000099"), 2, "there are: "),
        (("diff", "run", f"run:{name_of(10)}"), 2, "run:NAME"),
        (("keep", "run", "g0001-s00000099"), 2, "no committed checkpoint"),
        (("keep", "run", name_of(10), "--release"), 2, "not kept by name"),
        (("keep", "run", name_of(10), "--release", "--as", "x"), 2, "--as and --release"),
        (("lst", "run"), 2, "list"),
    ],
)
def test_wrong_names_are_answered_with_the_right_ones(run, capsys, arguments, code, said):
    assert run_guarded(["checkpoint", *arguments]) == code
    shown = capsys.readouterr().err
    assert said in shown
    assert "Traceback" not in shown


def test_show_of_a_damaged_manifest_says_so(run, capsys):
    flip_bit(run.checkpoints / name_of(30) / "MANIFEST.json", 40)
    assert run_guarded(["checkpoint", "show", "run", name_of(30)]) == 4
    assert "damaged" in capsys.readouterr().err


# --- diff


def test_diff_of_equal_and_of_other_states(run, capsys, tmp_path):
    shutil.copytree(run.checkpoints / name_of(20), tmp_path / "copy")
    code, shown = told(capsys, "diff", "copy", f"run:{name_of(20)}")
    assert code == 0
    assert "the tensors are the same" in shown
    assert "3 are equal by their recorded digests, and were not read" in shown
    code, shown = told(capsys, "diff", f"run:{name_of(20)}", f"run:{name_of(30)}")
    assert code == 1
    assert "3 of 3 tensors differ" in shown
    assert "param/w values F32 5x7 F32 5x7 35 35" in shown


def test_diff_as_json_holds_what_json_cannot(run, capsys):
    state = {name: array.copy() for name, array in values(50).items()}
    state["param/w"][0, 0] = np.inf
    del state["m/w"]
    save(run, 1, 60, state)
    code, found = facts(capsys, "diff", f"run:{name_of(50)}", f"run:{name_of(60)}")
    assert (code, found["equal"], found["tensors"], found["equal_by_digest"]) == (1, False, 3, 1)
    gone, far = found["differences"]
    assert (gone["name"], gone["what"], gone["b"], gone["distance"]) == ("m/w", "only in A", None, None)
    assert (far["name"], far["distance"]["differing"], far["distance"]["max_abs"]) == ("param/w", 1, "inf")


# --- prune, keep


def test_prune_obeys_the_runs_own_policy(run, capsys):
    before = sorted(run.root.rglob("*"))
    code, planned = facts(capsys, "prune", "run", "--dry-run")
    assert sorted(run.root.rglob("*")) == before
    assert (code, planned["deleted"], planned["verified"]) == (0, [], name_of(50))
    assert [item["name"] for item in planned["going"]] == [name_of(10), name_of(20)]
    assert {item["name"]: item["reasons"][0] for item in planned["kept"]} == {
        name_of(30): "permanent: save 3, one in 3 is kept for good",
        name_of(40): "held-out loss 2.0000, among the best 1",
        name_of(50): "the newest verified one",
    }
    _, shown = told(capsys, "prune", "run", "--dry-run")
    assert "would go superseded" in shown
    code, shown = told(capsys, "prune", "run")
    assert code == 0
    assert f"{name_of(50)} was read back from the storage and is whole" in shown
    assert "deleted superseded" in shown
    assert steps_left(run) == [30, 40, 50]
    code, again = facts(capsys, "prune", "run")
    assert (code, again["deleted"], again["going"]) == (0, [], [])
    assert facts(capsys, "list", "run")[1]["missing"] == [], "what retention deleted is not missing"


def test_prune_says_when_the_budget_cannot_be_kept(run, capsys):
    description = json.loads(run.run_file.read_text())
    run.run_file.write_text(json.dumps(description | {"deployment": {"checkpoints": {"keep_last": 3, "budget": 1}}}))
    code, shown = told(capsys, "prune", "run")
    assert code == 1
    assert "of a budget of 1 B" in shown
    assert steps_left(run) == [50]


def test_prune_leaves_a_run_alone_that_somebody_owns(run, capsys):
    lease = Lease.acquire(run, {"host": "here", "pid": 4711}, 1.0, SystemClock())
    with lease.renewed_in_background():
        assert run_guarded(["checkpoint", "prune", "run"]) == 3
        shown = capsys.readouterr().err
        assert "owned by process 4711 on here" in shown
        assert "--dry-run" in shown
        assert steps_left(run) == [10, 20, 30, 40, 50]
        assert run_guarded(["checkpoint", "prune", "run", "--dry-run"]) == 0
    lease.release()
    assert run_guarded(["checkpoint", "prune", "run"]) == 0
    assert steps_left(run) == [30, 40, 50]


def test_what_is_kept_survives_pruning_until_it_is_released(run, capsys):
    code, shown = told(capsys, "keep", "run", name_of(10), "--as", "first light")
    assert code == 0
    assert f"headway checkpoint keep run {name_of(10)} --release" in shown
    told(capsys, "prune", "run")
    assert steps_left(run) == [10, 30, 40, 50]
    assert told(capsys, "keep", "run", name_of(10), "--release")[0] == 0
    told(capsys, "prune", "run")
    assert steps_left(run) == [30, 40, 50]
