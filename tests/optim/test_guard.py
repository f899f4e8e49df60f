"""What a bad gradient may change: nothing. Which one is bad, what is remembered of it, and that nothing waits for a device."""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from optim_cases import ADAMW, MUON, ROUTED, bits, give_gradients, same_bits, stand_in

from headway.checkpoint.digest import state_digest
from headway.optim.build import build_optimizer
from headway.optim.clip import clip_by_norm
from headway.optim.guard import KEPT, LEAST_STEPS, Guard

KINDS = pytest.mark.parametrize("spec", [ADAMW, MUON], ids=["adamw", "muon"])
BAD, GOOD = torch.tensor(True), torch.tensor(False)


def ready(spec):
    model = stand_in(ROUTED)
    return model, build_optimizer(model, spec)


def spoil(model, value):
    """One element of every gradient."""
    for p in model.parameters():
        if p.grad is not None:
            p.grad.view(-1)[0] = value


@KINDS
@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
@pytest.mark.parametrize("done", [0, 3])
def test_L9_a_bad_step_keeps_every_bit_of_weights_moments_and_counts(spec, bad, done):
    model, optimizer = ready(spec)
    for step in range(done):
        give_gradients(model, step)
        optimizer.step(GOOD)
    for tensor in optimizer.state_tensors().values():
        tensor.view(-1)[-1] = -0.0  # adding a zero to it would show
    before = bits(optimizer)
    for _ in range(2):
        give_gradients(model, 7)
        spoil(model, bad)
        optimizer.step(BAD)
    assert same_bits(bits(optimizer), before)
    assert optimizer.step_counts() == [done]


@KINDS
def test_a_good_verdict_changes_nothing_about_an_update(spec):
    (model, optimizer), (other, unguarded) = ready(spec), ready(spec)
    for step in range(3):
        for side in (model, other):
            give_gradients(side, step)
        optimizer.step(GOOD)
        unguarded.step()
    assert same_bits(bits(optimizer), bits(unguarded))
    assert optimizer.step_counts() == unguarded.step_counts() == [3]


def train(spec, steps, scales, skip_above):
    """Updates with gradients of ``scales``; returns what was skipped and the bits at the end."""
    (model, optimizer), guard, skipped = ready(spec), Guard(skip_above), []
    for step in steps:
        give_gradients(model, step, scales.get(step, 1.0))
        clip = clip_by_norm(model.parameters(), 1.0)
        bad = guard.judge(clip.norm)
        optimizer.set_rate(1e-2)
        optimizer.step(bad)
        if not clip.read(bad).applied:
            skipped.append(step)
    assert optimizer.step_counts() == [len(steps) - len(skipped)]
    return skipped, bits(optimizer)


@KINDS
def test_exactly_the_flagged_steps_are_skipped(spec):
    """They leave no trace: the run is bit for bit one that never saw their gradients."""
    wrong = {3: math.nan, 25: 50.0, 26: math.inf, 30: 1e30, 31: 5.0}
    skipped, state = train(spec, range(34), wrong | {10: 50.0, 32: 3.0}, skip_above=4.0)  # 10: too early to judge
    assert skipped == list(wrong)
    rest = [step for step in range(34) if step not in wrong]
    never, expected = train(spec, rest, {10: 50.0, 32: 3.0}, skip_above=None)
    assert never == []
    assert same_bits(state, expected)


def judge(guard, norms):
    return [bool(guard.judge(torch.tensor(norm, dtype=torch.float64))) for norm in norms]


def definition(norms, skip_above):
    """Flags by a plain mean with weights KEPT^age over the accepted norms."""
    accepted, flags = [], []
    for norm in norms:
        bad = not math.isfinite(norm)
        if not bad and len(accepted) >= LEAST_STEPS and norm > 0:
            weights = [KEPT**age for age in range(len(accepted))][::-1]
            mean = sum(w * math.log(a) for w, a in zip(weights, accepted, strict=True)) / sum(weights)
            distance = math.log(norm) - mean - math.log(skip_above)
            assume(abs(distance) > 1e-9)  # on the line, rounding decides
            bad = distance > 0
        flags.append(bad)
        if not bad and norm > 0:
            accepted.append(norm)
    return flags


usual = st.floats(0.1, 10.0)
norms = st.one_of(usual, st.sampled_from([0.0, 1e-30, 50.0, 1e30, math.inf, math.nan]))
sequences = st.tuples(st.lists(usual, min_size=15, max_size=20), st.lists(norms, max_size=40)).map(
    lambda parts: parts[0] + parts[1]
)
"""Most reach the point from which norms are judged."""


@given(sequences, st.floats(1.5, 20.0))
def test_flags_equal_the_definition(sequence, skip_above):
    assert judge(Guard(skip_above), sequence) == definition(sequence, skip_above)


@given(sequences, st.integers(0, 60))
def test_history_goes_on_over_a_restart_bit_for_bit(sequence, at):
    straight, first = Guard(4.0), Guard(4.0)
    flags = judge(straight, sequence)
    before = judge(first, sequence[:at])
    saved = {name: tensor.clone() for name, tensor in first.state_tensors().items()}
    resumed = Guard(4.0)
    for name, tensor in resumed.state_tensors().items():
        tensor.copy_(saved[name])
    assert before + judge(resumed, sequence[at:]) == flags
    assert state_digest(resumed.state_tensors()) == state_digest(straight.state_tensors())


def test_L10_a_flagged_norm_is_not_learned_from():
    """However often it comes, it stays as bad as the first time."""
    guard = Guard(4.0)
    assert judge(guard, [1.0] * 30) == [False] * 30
    before = state_digest(guard.state_tensors())
    assert judge(guard, [4.1] * 200) == [True] * 200
    assert state_digest(guard.state_tensors()) == before
    assert judge(guard, [3.9]) == [False]


def test_L9_what_is_not_finite_or_zero_never_enters_the_history():
    guard = Guard(4.0)
    assert judge(guard, [math.nan, math.inf, 0.0]) == [True, True, False]
    assert float(guard.state_tensors()["guard/count"]) == 0
    judge(guard, [1.0] * 20)
    before = state_digest(guard.state_tensors())
    assert judge(guard, [math.nan, math.inf, 0.0]) == [True, True, False]
    assert state_digest(guard.state_tensors()) == before
    assert judge(guard, [1.0, 5.0]) == [False, True]


def test_it_judges_from_the_twenty_first_norm_on():
    assert judge(Guard(2.0), [1.0] * 19 + [1e6]) == [False] * 20
    assert judge(Guard(2.0), [1.0] * 20 + [1e6]) == [False] * 20 + [True]


def test_a_slow_rise_is_followed():
    """Ten times in 400 steps is no spike."""
    assert not any(judge(Guard(2.0), [10 ** (step / 400) for step in range(400)]))


def test_without_a_limit_there_is_no_history():
    guard = Guard(None)
    assert judge(guard, [1.0] * 30 + [1e30, math.nan, math.inf]) == [False] * 31 + [True] * 2
    assert guard.state_tensors() == {}


def test_the_state_is_live_and_of_types_that_can_be_stored():
    guard = Guard(4.0)
    fresh = guard.state_tensors()
    judge(guard, [2.0])
    assert {name: tensor.dtype for name, tensor in fresh.items()} == dict.fromkeys(
        ("guard/log_norm", "guard/count"), torch.float64
    )
    assert float(fresh["guard/log_norm"]) == pytest.approx(math.log(2) / 100)
    assert float(fresh["guard/count"]) == 1


def update(model, optimizer, guard):
    for p in model.parameters():
        p.grad = torch.ones_like(p) if p.requires_grad else None
    clip = clip_by_norm(model.parameters(), 1.0)
    bad = guard.judge(clip.norm)
    optimizer.set_rate(1e-3)
    optimizer.step(bad)
    return clip, bad


@KINDS
def test_nothing_waits_for_the_device_before_the_update_is_under_way(spec):
    """On a device without values: whatever reads one fails."""
    model = stand_in(ROUTED, "meta")
    clip, bad = update(model, build_optimizer(model, spec), Guard(4.0, "meta"))
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        clip.read(bad)
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        bool(clip.norm > 1)
