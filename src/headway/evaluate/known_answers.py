"""Known-answer products on every device and in every number format that training uses.

Whole numbers of at most a few bits: every partial sum is exact in float32, so any order of additions, any kernel and any number
of threads must give the same bits, and the exact result comes from 64-bit integers on the CPU. Formats of less precision round
the exact result once, at the end.
"""

from __future__ import annotations

import time
from typing import Any

import torch

SIDE, INNER, LARGEST = 256, 1024, 3
"""Sums of 1,024 products of at most 9 stay below 2^14: exact in float32 accumulation, whatever the order."""
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def known_answers(seconds: float) -> list[dict[str, Any]]:
    """{device, dtype, products, wrong, error} for each; about ``seconds`` in all."""
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False  # partial sums would be rounded
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    devices = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    share = seconds / (len(devices) * len(DTYPES))
    return [_on(device, dtype, share) for device in devices for dtype in DTYPES]


def _on(device: str, dtype: torch.dtype, seconds: float) -> dict[str, Any]:
    told: dict[str, Any] = {"device": device, "dtype": str(dtype).removeprefix("torch."), "products": 0, "wrong": 0}
    deadline = time.monotonic() + seconds
    try:
        while told["products"] == 0 or time.monotonic() < deadline:
            told["wrong"] += not right_product(told["products"], device, dtype)
            told["products"] += 1
    except RuntimeError as error:  # a device that cannot even run it
        told["error"] = str(error).splitlines()[0]
    return told


def right_product(number: int, device: str, dtype: torch.dtype) -> bool:
    """Whether product ``number`` comes out exact, in the usual order and with its inner dimension reversed."""
    place = torch.arange(SIDE * INNER, dtype=torch.int64)
    a = ((place * 40_503 + number * 977) % (2 * LARGEST + 1) - LARGEST).view(SIDE, INNER)
    b = ((place * 30_011 + number * 131) % (2 * LARGEST + 1) - LARGEST).view(INNER, SIDE)
    exact = (a @ b).to(torch.float64).to(dtype)
    there_a, there_b = a.to(dtype).to(device), b.to(dtype).to(device)
    products = (there_a @ there_b, there_a.flip(1) @ there_b.flip(0))
    return all(torch.equal(product.cpu(), exact) for product in products)
