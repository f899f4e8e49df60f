"""What the measurements of ``headway data bench`` are taken to mean."""

from __future__ import annotations

import pytest

from headway.cli.data_bench import lines, verdict


def measured(*, resident: float, real: float, loader: float, cpu: float, remote: bool = False, wait: float = 0.1) -> dict:
    def rate(value: float) -> dict:
        return {"steps": 8, "tokens_per_second": value, "low": value * 0.99, "high": value * 1.01}

    alone = {"steps": 8, "seconds": 1.0, "tokens_per_second": loader, "cpu_share": cpu}
    return {
        "first_step": 1,
        "batch_sequences": 4,
        "sequence_length": 64,
        "threads": 2,
        "resident": rate(resident),
        "real": rate(real) | {"wait_share": wait},
        "loader": {"first_touch": alone, "again": alone | {"tokens_per_second": 3 * loader}},
        "prefetcher": {"steps": 8, "ready": 12, "empty": 2, "depth": 4},
        "remote": remote,
    }


@pytest.mark.parametrize(
    ("facts", "limit", "said"),
    [
        ({"resident": 100, "real": 98, "loader": 5_000, "cpu": 1.0}, "step", "98.0%"),
        ({"resident": 100, "real": 99.5, "loader": 20, "cpu": 1.0}, "step", "0.2 times"),
        ({"resident": 100, "real": 60, "loader": 5_000, "cpu": 1.0}, "cores", "deployment.threads = 1"),
        ({"resident": 100, "real": 48, "loader": 50, "cpu": 0.95}, "loader", "95%"),
        ({"resident": 100, "real": 48, "loader": 50, "cpu": 0.2}, "storage", "faster disk"),
        ({"resident": 100, "real": 48, "loader": 50, "cpu": 0.2, "remote": True}, "storage", "cache.size"),
    ],
)
def test_the_limit_has_a_reason_in_numbers_and_a_way_out(facts, limit, said):
    found = verdict(measured(**facts))
    assert found["limit"] == limit
    assert said in found["reason"] + found["way_out"]


def test_what_varies_by_itself_is_not_blamed_on_the_cores():
    noisy = measured(resident=100, real=90, loader=5_000, cpu=1.0, wait=0.001)
    noisy["resident"]["low"] = 85
    assert verdict(noisy)["limit"] == "step"
    assert "within what the resident ones vary by" in verdict(noisy)["reason"]


def test_the_table_has_all_four_measurements():
    found = measured(resident=100, real=60, loader=5_000, cpu=1.0)
    text = "\n".join(lines(found | {"verdict": verdict(found)}))
    for said in ("resident input", "first touch", "again", "real input", "1.5 of 4 batches", "limit: cores"):
        assert said in text
