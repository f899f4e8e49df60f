"""Greedy continuations of fixed prompts: the same weights give the same text.

Every new token recomputes the whole prefix: exact, stateless, and cheap for the few short prompts of an evaluation.
"""

from __future__ import annotations

import torch

from headway.base.errors import ConfigError, RunError
from headway.evaluate.held_out import filled
from headway.model.context import make_context
from headway.model.precision import Computes
from headway.recipe.spec import RopeSpec


@torch.no_grad()
def greedy(
    model: Computes,
    prompts_ids: list[list[int]],
    new_tokens: int,
    rope: RopeSpec,
    document_token: int | None = None,
) -> list[list[int]]:
    """At most ``new_tokens`` ids after each prompt; a continuation ends before ``document_token`` (None: never early).

    Ranks that share the model all call this with the same prompts, and have the same answer.
    """
    return [_continue(model, prompt, new_tokens, rope, document_token) for prompt in prompts_ids]


def _continue(model: Computes, prompt: list[int], new_tokens: int, rope: RopeSpec, document_token: int | None) -> list[int]:
    if not prompt:
        raise ConfigError("a prompt without tokens", "a continuation needs at least one token to stand on")
    ids, positions = list(prompt), model.spec.positions
    if positions and len(ids) + new_tokens - 1 > positions:
        raise ConfigError(
            f"a prompt of {len(ids)} tokens and {new_tokens} more, and {positions} learned positions",
            "every token that is read has a row in the table of positions",
            "ask for fewer tokens, or shorten the prompt",
        )
    for _ in range(new_tokens):
        token = _next_token(model, ids, rope)
        if token == document_token:
            break
        ids.append(token)
    return ids[len(prompt) :]


def _next_token(model: Computes, ids: list[int], rope: RopeSpec) -> int:
    """The likeliest next token; on a tie the smallest id."""
    ranks, missing = model.ranks, -len(ids) % model.ranks.length_step
    position_1T, tokens_1T = (filled(x_T[None], missing) for x_T in (torch.arange(len(ids)), torch.tensor(ids)))
    context = make_context(position_1T, torch.zeros_like(position_1T), model.spec, rope, model.dtype, ranks)
    hidden_1TD = ranks.chunks.whole(ranks.all(model.forward(tokens_1T, context)))
    logits_V = model.logits(hidden_1TD[:, len(ids) - 1])[0].float()
    if not bool(torch.isfinite(logits_V.max())):
        raise RunError("the model's logits are not finite", "there is no likeliest token", "sample an older checkpoint")
    return int((logits_V == logits_V.max()).nonzero()[0])
