"""Held-out loss does not depend on batching; greedy continuations equal the argmax of the definition."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch

from headway.base.errors import ConfigError, RunError
from headway.evaluate.held_out import HeldOut, Share, held_out_loss
from headway.evaluate.sample import greedy
from headway.model.context import make_context
from headway.model.decoder import Decoder
from headway.model.init import initialise
from headway.model.precision import ComputeModel
from headway.recipe.spec import ModelSpec, PrecisionSpec, RopeSpec

MODEL = ModelSpec(
    layers=2, width=16, heads=2, kv_heads=1, head_width=8, ffn_width=24, vocabulary=29,
    rope_base=1e4, norm_epsilon=1e-5, qk_norm=True, tied_embeddings=True, init_std=0.3,
)  # fmt: skip
ROPE = RopeSpec(1e4)


@dataclass(frozen=True)
class Batch:
    tokens_BT: np.ndarray
    targets_BT: np.ndarray
    document_BT: np.ndarray
    position_BT: np.ndarray


def compute_model(compute="float32") -> ComputeModel:
    model = Decoder(MODEL)
    initialise(model, MODEL, 2)
    return ComputeModel(model, PrecisionSpec(compute))


def batches(sizes, rows=12, time=16) -> list[Batch]:
    ids = np.random.default_rng(0).integers(0, 29, (rows, time + 1))
    cut = np.arange(rows)[:, None] % time
    document = (np.arange(time)[None] >= cut).astype(np.int64)
    position = np.where(document == 1, np.arange(time)[None] - cut, np.arange(time)[None])
    edges = np.cumsum([0, *sizes])
    assert edges[-1] == rows
    return [Batch(*(x[a:b] for x in (ids[:, :-1], ids[:, 1:], document, position))) for a, b in pairwise(edges)]


@pytest.mark.parametrize("sizes", [[1] * 12, [5, 7], [11, 1]])
def test_L2_loss_does_not_depend_on_the_batch_size(sizes):
    model = compute_model()
    whole, cut = held_out_loss(model, batches([12]), ROPE), held_out_loss(model, batches(sizes), ROPE)
    assert whole.targets == cut.targets == 192
    assert cut.loss == pytest.approx(whole.loss, rel=1e-6)


def test_D15_replicas_share_the_batches_and_run_as_many_passes_each():
    """Seven batches among three: the last round has one batch, and two replicas that score nothing."""
    model, passes = compute_model(), [0, 0, 0]
    cut = batches([2, 2, 2, 2, 2, 1, 1])
    whole = held_out_loss(model, cut, ROPE)

    def counted(index):
        def goes_on():
            passes[index] += 1
            return True

        return goes_on

    parts = [held_out_loss(model, cut, ROPE, Share(index=i, count=3, goes_on=counted(i))) for i in range(3)]
    assert passes == [3, 3, 3]
    assert sum(part.targets for part in parts) == whole.targets
    assert sum(part.nll_sum for part in parts) == whole.nll_sum, "whole numbers: to the bit"
    doubled = held_out_loss(model, cut, ROPE, Share(total=lambda own: 2 * own))
    assert (doubled.nll_sum, doubled.targets) == (2 * whole.nll_sum, 2 * whole.targets)


def test_loss_is_the_plain_mean_over_targets():
    model = compute_model()
    (batch,) = batches([12])
    tokens, targets, document, position = (torch.from_numpy(x) for x in vars(batch).values())
    with torch.no_grad():
        hidden = model.forward(tokens, make_context(position, document, MODEL, ROPE, torch.float32))
        logits = (hidden @ model.head_weight.T).flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(logits, targets.flatten())
    assert held_out_loss(model, [batch], ROPE).loss == pytest.approx(float(expected), rel=1e-6)


def test_evaluation_leaves_no_gradient():
    model = compute_model("bfloat16")
    held_out_loss(model, batches([12]), ROPE)
    greedy(model, [[1, 2]], 3, ROPE)
    assert all(p.grad is None for p in model.decoder.parameters())


def test_no_targets_is_an_error_not_a_number():
    with pytest.raises(RunError, match="no targets"):
        _ = HeldOut(nll_sum=0.0, targets=0).loss


def logits_of(model, ids):
    position = torch.arange(len(ids))[None]
    context = make_context(position, torch.zeros_like(position), MODEL, ROPE, torch.float32)
    hidden = model.forward(torch.tensor([ids]), context)
    return (hidden @ model.head_weight.T)[0, -1]


def test_greedy_is_the_repeated_argmax_and_repeats():
    model, prompts = compute_model(), [[3, 4, 5], [7], [28, 0, 1, 2]]
    first = greedy(model, prompts, 6, ROPE)
    assert first == greedy(model, prompts, 6, ROPE)
    for prompt, continuation in zip(prompts, first, strict=True):
        ids = list(prompt)
        for token in continuation:
            assert token == int(logits_of(model, ids).argmax())
            ids.append(token)
        assert len(continuation) == 6


def test_greedy_does_not_depend_on_the_company():
    model = compute_model()
    assert greedy(model, [[3, 4, 5], [7]], 5, ROPE) == [greedy(model, [p], 5, ROPE)[0] for p in ([3, 4, 5], [7])]


def test_greedy_stops_before_the_document_token():
    model = compute_model()
    (free,) = greedy(model, [[3, 4, 5]], 6, ROPE)
    stop = free[-1]
    (stopped,) = greedy(model, [[3, 4, 5]], 6, ROPE, document_token=stop)
    assert stopped == free[: free.index(stop)]


def test_an_empty_prompt_is_refused():
    with pytest.raises(ConfigError, match="without tokens"):
        greedy(compute_model(), [[]], 3, ROPE)
