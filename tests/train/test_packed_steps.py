"""A step over packed windows is the step over their documents: padding weighs nothing, wherever it stands."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from test_train_step import VOCABULARY, T, make_spec

from headway.data.reader import WindowBatch
from headway.recipe.schedules import StepPlace
from headway.recipe.spec import ExpertsSpec, Spec
from headway.train.feed import StepBatch
from headway.train.step import train_step
from headway.train.trainee import build_trainee

BINS = [[5, 20], [32], [7, 7, 7], [1, 1, 30], [16], [3]]
"""Tokens of the documents in each window."""


def packed(pad: int, bins: list[list[int]] = BINS) -> WindowBatch:
    """Random documents; ``pad`` stands in padding, as token and as target."""
    random = np.random.default_rng(0)
    B = len(bins)
    tokens, targets = np.full((B, T), pad), np.full((B, T), pad)
    document, position, scored = np.zeros((B, T), np.int32), np.zeros((B, T), np.int64), np.zeros((B, T), bool)
    for row, sizes in enumerate(bins):
        column = 0
        for number, size in enumerate(sizes):
            part = slice(column, column + size)
            text = random.integers(0, VOCABULARY, size + 1)
            tokens[row, part], targets[row, part] = text[:-1], text[1:]
            document[row, part], position[row, part], scored[row, part] = number, np.arange(size), True
            column += size
        document[row, column:], position[row, column:] = len(sizes), np.arange(T - column)
    return WindowBatch(tokens, targets, document, position, np.zeros(B, np.int64), scored)


def step(spec: Spec, batches: list[WindowBatch], targets: int):
    rows, first = [], 0
    for batch in batches:
        rows.append(tuple(range(first, first + len(batch.tokens_BT))))
        first += len(batch.tokens_BT)
    trainee = build_trainee(spec)
    result = train_step(trainee, StepBatch(StepPlace(0, 0, 0, first), tuple(batches), targets, tuple(rows)), 1e-3)
    return result, {name: moment for name, moment in trainee.state().items() if name.startswith("m/")}


def alone(batch: WindowBatch) -> list[WindowBatch]:
    """Each document of ``batch`` as a window of its own length."""
    found = []
    for row, sizes in enumerate(BINS):
        column = 0
        for size in sizes:
            part = (slice(row, row + 1), slice(column, column + size))
            document, position = np.zeros((1, size), np.int32), np.arange(size)[None]
            found.append(WindowBatch(batch.tokens_BT[part], batch.targets_BT[part], document, position, np.zeros(1, np.int64)))
            column += size
    return found


EXPERTS = ExpertsSpec(experts=4, top_k=2, width=16, router_bias=True, balance_loss=0.0)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("kind", ["dense", "experts", "further tokens"])
def test_packed_windows_give_the_gradient_of_their_documents(kind):
    spec = make_spec()
    if kind == "experts":
        spec = dataclasses.replace(spec, model=dataclasses.replace(spec.model, experts=EXPERTS))
    if kind == "further tokens":
        spec = dataclasses.replace(spec, model=dataclasses.replace(spec.model, mtp_layers=1))
    whole, targets = packed(0), sum(map(sum, BINS))
    a, moments = step(spec, [whole], targets)
    b, expected = step(spec, alone(whole), targets)
    assert a.loss == pytest.approx(b.loss, rel=2e-6)
    assert a.z_loss == pytest.approx(b.z_loss, rel=2e-6)
    assert a.grad_norm == pytest.approx(b.grad_norm, rel=2e-5)
    assert a.extra == pytest.approx(b.extra, rel=1e-5)
    for name, moment in moments.items():
        assert torch.allclose(moment, expected[name], rtol=2e-4, atol=1e-8), name


def test_what_stands_in_padding_is_not_seen():
    spec = make_spec()
    a, moments = step(spec, [packed(0)], sum(map(sum, BINS)))
    b, others = step(spec, [packed(VOCABULARY - 1)], sum(map(sum, BINS)))
    assert (a.loss, a.grad_norm) == (b.loss, b.grad_norm)
    assert all(torch.equal(moment, others[name]) for name, moment in moments.items())
