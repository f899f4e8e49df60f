"""The worth of repeated tokens and of parameters beyond what they can teach, against the paper's own figures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.base.errors import ConfigError
from headway.formulas.repetition import effective_parameters, effective_tokens, most_effective_tokens


def test_the_table_at_the_head_of_the_module():
    worth = {1: 1.0, 2: 1.97, 4: 3.73, 8: 6.63, 16: 10.6, 40: 15.2}
    for passes, times in worth.items():
        assert effective_tokens(passes, 1) == pytest.approx(times, rel=0.005)


def test_at_r_star_repetitions_a_token_is_worth_what_the_paper_says():
    """'At R* the repeated tokens are worth on average 1 - 1/e of fresh ones' (section 3.1)."""
    scale = 15.387756
    assert effective_tokens(1 + scale, 1) == pytest.approx(1 + scale * 0.6321, rel=1e-3)


def test_parameters_within_the_best_size_are_worth_themselves_and_excess_ones_fade_faster_than_data():
    unique = 1e9
    assert effective_parameters(0.04 * unique, unique) == pytest.approx(0.04 * unique)
    best = 0.051 * unique
    assert effective_parameters(4 * best, unique) / best < effective_tokens(4 * unique, unique) / unique
    assert effective_parameters(1e15, unique) == pytest.approx(best * (1 + 5.309743))


@given(st.floats(1, 1e15), st.floats(1, 1e13))
def test_it_never_exceeds_what_is_read_nor_the_ceiling(tokens, unique):
    worth = effective_tokens(tokens, unique)
    assert worth <= tokens * (1 + 1e-12)
    assert worth <= most_effective_tokens(unique) * (1 + 1e-12)


def test_nothing_to_learn_from_is_an_error():
    with pytest.raises(ConfigError):
        effective_parameters(1e6, 0)
