"""Constants of the models of computation and communication. ``bench/fit_step_time.py --write`` renews this file.

Fitted on 247 published step times of FSDP (H100, A100) and Megatron (A100); links on measured collectives. Errors on what the
fit did not see stand in docs/results/plan_accuracy.json.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Shares are of what the chip's table says. None is of one chip, model or layout."""

    gemm: float = 0.9999999823901073  # of the achievable rate, for products without end
    operand: float = 0.31641682477419397  # of memory bandwidth, for the operands of products
    flash: float = 50.74753383966351  # FLOP of attention per byte/s of memory bandwidth, first generation
    memory: float = 0.7376126451738753  # of memory bandwidth, for elementwise passes
    contention: float = 0.48862418703045424  # of a hidden collective's time is lost all the same: it takes cores and bandwidth
    stragglers: float = 0.0  # of the step, per doubling of domains
    launch_seconds: float = 0.0004  # of the host per block and pass
    link_efficiency: float = 0.8  # measured rings: 0.78 on A100, 0.81 on H200
    network_efficiency: float = 0.9999999999999999
    link_tau: float = 8.665245450827189e-05
    network_tau: float = 0.0006930245692723257
    tau_power: float = 0.8649153507886402
    hop_seconds: float = 6.136224926504532e-06


FITTED = Constants()
SPREAD = (0.91, 1.26)
"""Nine of ten measured steps lie within, as factors of the prediction: chips, families and runs that the fit never saw."""
