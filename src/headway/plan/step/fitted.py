"""Constants of the models of computation and communication. ``bench/fit_step_time.py --write`` renews this file.

Fitted on 247 published step times of FSDP (H100, A100) and Megatron (A100); links on measured collectives. gemm and
network_efficiency are at their bounds: products and networks reach what the table says. Errors: docs/results/plan_accuracy.json.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Shares are of what the chip's table says. None is of one chip, model or layout."""

    gemm: float = 0.9999999999607386  # of the achievable rate, for products without end
    operand: float = 0.309414074989555  # of memory bandwidth, for the operands of products
    flash: float = 50.549308288809755  # FLOP of attention per byte/s of memory bandwidth, first generation
    memory: float = 0.7490841519971657  # of memory bandwidth, for elementwise passes
    contention: float = 0.5335434897772945  # of a hidden collective's time is lost all the same: it takes cores and bandwidth
    stragglers: float = 0.0  # of the step, per doubling of domains; 0: these steps show none beyond hops
    launch_seconds: float = 0.0004  # of the host per block and pass: assumed, some forty kernels of ten microseconds
    link_efficiency: float = 0.8  # measured rings: 0.78 on A100, 0.81 on H200
    network_efficiency: float = 0.95  # measured: 382 of 400 GB/s between four nodes of B200
    link_tau: float = 8.665245450827189e-05
    network_tau: float = 0.0006930245692723257
    tau_power: float = 0.8649153507886402
    hop_seconds: float = 2.9999999999999997e-05


FITTED = Constants()
SPREAD = (0.85, 1.37)
"""Nine of ten measured steps lie within, as factors of the prediction. Five sources weigh the same: FSDP and Megatron on a chip
that the fit left out, torchtitan, published runs, and steps of chips and models beyond the reference data."""
