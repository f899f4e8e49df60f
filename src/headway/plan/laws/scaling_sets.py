"""The published sets of coefficients, each with its source. Nothing here is fitted by us; the forms are in ``scaling_laws``.

set          N at 5.76e23 FLOP   what it was fitted on
hoffmann3    32 B                57 M to 16 B parameters on MassiveText; as printed, with two digits per exponent
refit        72 B                the same runs, read off the published figure and fitted again with care
c4           70 B                C4; its authors' own longer runs end 6 to 10 % above it
kaplan       485 B               rates that often did not decay within the run: superseded, outside every band
hoffmann1    67 B                the best point of each training curve
llama3       56 B                40 M to 16 B parameters; the 405 B model was read off it
deepseek     82 B                by non-embedding FLOPs per token; the exponent went from .45 to .58 with the data
porian       76 B                RefinedWeb, every size tuned, at most 1.3e19 FLOP
"""

from __future__ import annotations

import math

from headway.plan.laws.scaling_laws import KaplanLaw, LossLaw, PathLaw, ScalingLaw, SumLaw

# Geometric means of the runs that can be read off Hoffmann et al., figure 4: where their fits know the loss best.
MASSIVETEXT_PARAMETERS, MASSIVETEXT_TOKENS, MASSIVETEXT_FLOPS = 8.7e8, 1.58e10, 8.3e19
MASSIVETEXT_RANGE = (1.4e18, 1.3e22)

HOFFMANN3 = SumLaw(
    name="hoffmann3",
    title="Hoffmann et al., approach 3",
    source="Hoffmann et al. 2022, arXiv 2203.15556, eq. 10",
    data="MassiveText, 32,000 SentencePiece",
    least_flops=MASSIVETEXT_RANGE[0],
    most_flops=MASSIVETEXT_RANGE[1],
    centre_flops=MASSIVETEXT_FLOPS,
    interval="exponent of N .454 to .455 as published: implausibly narrow (arXiv 2404.10102); of the loss as rounded in print",
    floor=1.69,
    a=406.4,
    b=410.7,
    alpha=0.34,
    beta=0.28,
    path_error=0.0005 / 1.96,
    rounding=0.005,
    centre_parameters=MASSIVETEXT_PARAMETERS,
    centre_tokens=MASSIVETEXT_TOKENS,
)
"""Printed with two digits: at 1e12 tokens a rounding of .005 in beta moves the token term by 15 %."""

REFIT = SumLaw(
    name="refit",
    title="Besiroglu et al., refit of approach 3",
    source="Besiroglu et al. 2024, arXiv 2404.10102: standard errors E .03, A 124.58, B 1293.23, alpha .02, beta .02",
    data="MassiveText, 32,000 SentencePiece",
    least_flops=MASSIVETEXT_RANGE[0],
    most_flops=MASSIVETEXT_RANGE[1],
    centre_flops=MASSIVETEXT_FLOPS,
    interval="95 % from the published standard errors, turned about the centre of the runs",
    floor=1.8172,
    a=482.01,
    b=2085.43,
    alpha=0.3478,
    beta=0.3658,
    floor_error=0.03,
    alpha_error=0.02,
    beta_error=0.02,
    path_error=0.02,
    centre_parameters=MASSIVETEXT_PARAMETERS,
    centre_tokens=MASSIVETEXT_TOKENS,
)

C4 = SumLaw(
    name="c4",
    title="Muennighoff et al., C4",
    source="Muennighoff et al. 2023, arXiv 2305.16264, appendix A",
    data="C4, GPT-2 tokenizer",
    least_flops=1e18,
    most_flops=1e22,
    centre_flops=1e20,
    interval="none published; its authors' own one-epoch runs of 1 B and more end 6 to 9 % above it",
    floor=math.exp(0.6254804),
    a=math.exp(6.255414),
    b=math.exp(7.3049974),
    alpha=0.3526596,
    beta=0.3526596,
)

KAPLAN = KaplanLaw(
    name="kaplan",
    title="Kaplan et al.",
    source="Kaplan et al. 2020, arXiv 2001.08361, eq. 1.5 with tables 2 and 6",
    data="WebText2, GPT-2 tokenizer; non-embedding parameters",
    least_flops=1e16,
    most_flops=2e20,
    centre_flops=1e18,
    interval="none published",
    parameters_scale=6.4e13,
    tokens_scale=1.8e13,
    parameters_exponent=0.076,
    tokens_exponent=0.103,
    path_parameters=1.3e9,
    path_exponent=0.73,
)

HOFFMANN1 = PathLaw(
    name="hoffmann1",
    title="Hoffmann et al., approach 1",
    source="Hoffmann et al. 2022, arXiv 2203.15556, tables 2 and 3: 67 B parameters at 5.76e23 FLOP",
    data="MassiveText",
    least_flops=MASSIVETEXT_RANGE[0],
    most_flops=MASSIVETEXT_RANGE[1],
    centre_flops=MASSIVETEXT_FLOPS,
    interval="exponent of N .488 to .502 (80 % of bootstrap fits)",
    scale=67e9 / 5.76e23**0.50,
    exponent=0.50,
    exponent_low=0.488,
    exponent_high=0.502,
)

LLAMA3 = PathLaw(
    name="llama3",
    title="Llama 3",
    source="Grattafiori et al. 2024, arXiv 2407.21783, figure 3: D = .299 C^.537",
    data="Llama 3 pretraining data, 128,000 BPE",
    least_flops=6e18,
    most_flops=1e22,
    centre_flops=2.4e20,
    interval="none published; the text rounds the exponent of D to .53, the figure says .537",
    scale=1 / (6 * 0.299),
    exponent=1 - 0.537,
    exponent_low=1 - 0.537,
    exponent_high=1 - 0.53,
)

DEEPSEEK = PathLaw(
    name="deepseek",
    title="DeepSeek LLM",
    source="Bi et al. 2024, arXiv 2401.02954, eq. 4: non-embedding FLOPs per token M = .1715 C^.5243, here N = M / 6",
    data="DeepSeek LLM pretraining data",
    least_flops=1e17,
    most_flops=3e20,
    centre_flops=5.5e18,
    interval="exponents of the same method on other data: .450 (earlier) to .578 (OpenWebText2)",
    scale=0.1715 / 6,
    exponent=0.5243,
    exponent_low=0.450,
    exponent_high=0.578,
)

PORIAN = PathLaw(
    name="porian",
    title="Porian et al., tuned",
    source="Porian et al. 2024, arXiv 2406.19146: N = .1182 C^.4970 on RefinedWeb with every size tuned",
    data="RefinedWeb, GPT-NeoX tokenizer",
    least_flops=1.25e16,
    most_flops=1.28e19,
    centre_flops=4e17,
    interval="95 % of bootstrap fits: exponent .4907 to .5051",
    scale=0.11819903781389161,
    exponent=0.49702879549161855,
    exponent_low=0.49074776761934963,
    exponent_high=0.5050674166603929,
)

FORECAST_LAWS: tuple[SumLaw, ...] = (HOFFMANN3, REFIT, C4)
"""Whose losses make the band."""

LOSS_LAWS: tuple[LossLaw, ...] = (*FORECAST_LAWS, KAPLAN)
OPTIMUM_LAWS: tuple[ScalingLaw, ...] = (HOFFMANN3, REFIT, C4, HOFFMANN1, LLAMA3, DEEPSEEK, PORIAN)
"""Whose optima make the band: all but the superseded one."""
