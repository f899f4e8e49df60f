"""The demo's kill and its proof. The proof must be able to fail."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.base.clocks import FakeClock
from headway.base.errors import ConfigError
from headway.cli.demo import choose_kill, done_again, draw_kill, one_line, slow_words
from headway.cli.describe import describe
from headway.cli.main import run_guarded
from headway.cli.proof import failure, proof_lines, prove
from headway.recipe.load import load_deployment
from headway.recipe.spec import BatchPhase, RateSpec, Spec, StageSpec
from headway.rundir.create import RunInfo, create_run
from headway.rundir.events import EventLog
from headway.rundir.layout import RunDirectory
from headway.rundir.metrics import StepLog
from headway.rundir.segments import Segment, write_segment

KILLED_IN, RESTORED, LAST = 6, 4, 8


def tiny_spec() -> Spec:
    """Eight steps of one sequence."""
    from headway.recipe.load import load_recipe
    from headway.recipe.resolve import resolve

    stage = StageSpec("main", LAST * 32, 32, LAST, (BatchPhase(0, 1),), RateSpec(0, "constant", 1.0, 1.0), (32768, 32768), 1e4)
    return replace(resolve(load_recipe("demo"), None), stages=(stage,), manifest_digest="sha256:00")


def make_run(root: Path, digests: dict[int, list[str | None]], killed: bool = True) -> RunDirectory:
    """Steps 1 to 5, a kill in step 6, a restart from step 4; ``digests``: per segment, of its steps in order."""
    clock = FakeClock()
    info = RunInfo(data="data", deployment={}, recipe_path="x.toml", versions={}, author="test")
    run = create_run(root, spec=tiny_spec(), recipe_text="", info=info, drill_faults=[], clock=clock)
    run.lease.mkdir(exist_ok=True)
    events = EventLog(run, 1, clock)
    first = {1: 0, 2: RESTORED}
    for number, values in digests.items():
        parent, checkpoint = (1, f"g0001-s{RESTORED:08d}") if number == 2 else (None, None)
        write_segment(run, Segment(number, parent, first[number], checkpoint, "start", "automatic", 1, {"world": 1}))
        events.append("launch", segment=number, pid=number)
        log = StepLog(run, number, clock)
        log.write("start", pid=number, environment={}, spec_digest=run.spec().digest())
        clock.advance(1)
        log.write("restored", step=first[number], checkpoint=checkpoint)
        for step, digest in enumerate(values, first[number] + 1):
            clock.advance(1)
            facts = {"loss": 5.0 - step / 10, "z_loss": 0.0, "grad_norm": 1.0, "clipped": False, "rate": 1e-3, "digest": digest}
            log.write("step", step=step, stage="main", u=step, sequences=1, tokens=32 * step, targets=32, **facts)
        signal = 9 if number == 1 and killed else None
        if signal is None:
            log.write("end", step=LAST, state="complete", digest=values[-1])
        log.close()
        events.append("exit", segment=number, code=None if signal else 0, signal=signal, reason="")
    events.close()
    return run


FIRST, SECOND = ["a", "b", "c", "d", "e"], ["e", "f", "g", "h"]


def test_equal_digests_prove_the_resume(tmp_path):
    proof = prove(make_run(tmp_path / "run", {1: FIRST, 2: SECOND}))
    assert proof["holds"] is True
    assert (proof["killed_in_step"], proof["restored_step"], proof["equal"]) == (KILLED_IN, RESTORED, 1)
    assert proof["steps_done_twice"] == [{"step": 5, "before": "e", "after": "e"}]
    text = "\n".join(proof_lines(proof))
    assert "killed in step 6" in text
    assert "1 of 1 are equal, all of them. The final state is h." in text


@pytest.mark.parametrize(
    ("digests", "verdict", "words"),
    [
        ({1: FIRST, 2: ["x", "f", "g", "h"]}, "differs", "is not the run that was killed"),
        ({1: [*FIRST[:4], None], 2: SECOND}, "nothing to prove", "lack a digest"),  # before the kill
        ({1: FIRST, 2: [None, "f", "g", "h"]}, "nothing to prove", "lack a digest"),  # after it
        ({1: [*FIRST[:4], None], 2: [None, "f", "g", "h"]}, "nothing to prove", "lack a digest"),
        ({1: FIRST[:4], 2: SECOND}, "nothing to prove", "no step was done twice"),
        ({1: [*FIRST, "f", "g", "h"]}, "nothing to prove", "the trainer was not killed"),
    ],
)
def test_anything_less_proves_nothing_and_says_which(tmp_path, digests, verdict, words):
    proof = prove(make_run(tmp_path / "run", digests, killed=len(digests) == 2))
    assert proof["holds"] is False
    assert proof["verdict"] == verdict
    error = failure(proof, tmp_path)
    assert words in str(error)
    assert ("is not the run" in str(error)) is (verdict == "differs")
    assert error.exit_code == 4
    text = "\n".join(proof_lines(proof))
    assert ("DIFFERENT" in text) is (verdict == "differs")


def test_the_twin_must_end_in_the_same_state(tmp_path):
    run = make_run(tmp_path / "run", {1: FIRST, 2: SECOND})
    same = make_run(tmp_path / "same", {1: [*FIRST, "f", "g", "h"]}, killed=False)
    other = make_run(tmp_path / "other", {1: [*FIRST, "f", "g", "i"]}, killed=False)
    assert prove(run, same)["holds"] is True
    assert "the same" in proof_lines(prove(run, same))[-1]
    assert prove(run, other)["verdict"] == "differs"
    assert "ANOTHER state" in proof_lines(prove(run, other))[-1]


@given(seed=st.integers(0, 2**32), total=st.integers(20, 5_000), every=st.integers(3, 100))
def test_the_kill_falls_in_the_middle_and_leaves_steps_to_do_again(seed, total, every):
    if total < every + 3:
        with pytest.raises(ConfigError, match="no step to be killed in"):
            draw_kill(random.Random(seed), total, every)
        return
    step = draw_kill(random.Random(seed), total, every)
    assert 1 <= step <= total
    assert step - 1 >= every, "a checkpoint stands"
    assert (step - 1) % every >= 2, "two steps are done again"
    if total >= 6 * every:
        assert 0.35 * total - 1 <= step <= 0.75 * total + 1
        assert (step - 1) % every >= every // 4


@pytest.mark.parametrize("every", [1, 2])
def test_saves_at_every_step_leave_nothing_to_prove(every):
    with pytest.raises(ConfigError, match="no step to be killed in"):
        draw_kill(random.Random(0), 100, every)


def test_kills_differ_between_runs():
    assert len({draw_kill(random.SystemRandom(), 168, 20) for _ in range(40)}) > 5


EVERY = load_deployment("demo").checkpoints.every_steps


@pytest.mark.parametrize("step", [0, -3, 10_000, 1, EVERY, EVERY + 1, 2 * EVERY + 1, 5 * EVERY + 1])
def test_a_kill_that_can_prove_nothing_is_refused_before_anything_starts(tmp_path, capsys, monkeypatch, step):
    monkeypatch.setattr("headway.cli.plan.measure", lambda *_: pytest.fail("the demo had begun"))
    assert run_guarded(["demo", "--out", str(tmp_path / "demo"), "--kill-at", str(step)]) == 2
    shown = capsys.readouterr().err
    assert f"--kill-at {step}" in shown
    assert f"every {EVERY} steps" in shown
    nearest = int(shown.partition("way out: --kill-at ")[2].partition(",")[0])
    assert choose_kill(describe("demo", None, None), nearest) == nearest
    assert not (tmp_path / "demo").exists()


def test_a_kill_that_proves_something_is_taken():
    description = describe("demo", None, None)
    taken = [EVERY + 2, 2 * EVERY, 2 * EVERY + 2, 3 * EVERY - 1]
    assert [choose_kill(description, step) for step in taken] == taken
    assert done_again(choose_kill(description, None), EVERY) >= 2


def test_one_line():
    assert one_line("a\n b") == "a\\n b"
    assert len(one_line("x" * 200)) == 88


def test_a_directory_in_use_is_left_alone(tmp_path, capsys):
    (tmp_path / "mine").write_text("keep")
    assert run_guarded(["demo", "--out", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert (tmp_path / "mine").read_text() == "keep"


def test_a_slow_machine_is_told_how_long_it_will_take():
    assert slow_words(None) == slow_words(150.0) == []
    assert "about 52 min 56 s" in slow_words(3_176.0)[1]
