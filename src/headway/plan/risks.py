"""Risks as rules: each looks at the facts and says what follows, with a number, or nothing.

Here stand the rules about the recipe: what is wrong wherever it runs. ``device_risks`` has those of devices and layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headway.base.units import format_count
from headway.formulas.flops import Convention, attention_flops_per_token, flops_per_token
from headway.plan.declared import not_acted_upon
from headway.plan.device_risks import DEVICE_RULES, never_done
from headway.plan.facts import PlanFacts
from headway.plan.final_sections import FALLS_TO_ZERO, is_annealing
from headway.plan.laws.hyperparameters import outside_bands
from headway.plan.laws.repetition import exposures
from headway.plan.plan import Risk
from headway.recipe.chips import unproven
from headway.recipe.schedules import rate_factor

USUAL_FIRST_CONTEXT_TOKENS = 8192
"""Llama 3 and the stages of OLMo 2 and DeepSeek-V3 begin at 4,096 or 8,192 (arXiv 2407.21783, 2501.00656, 2412.19437)."""
LONG_FIRST_CONTEXT_TOKENS = 2 * USUAL_FIRST_CONTEXT_TOKENS
"""Assumed: a length that nobody above begins with."""
MOST_BETA2 = 0.99
"""Assumed: between .95, which long published runs have (arXiv 2407.21783, 2501.00656, 2412.19437), and Adam's own .999."""
DECAYED_SHARE = 0.2
"""Assumed: published runs end at a tenth of the peak or below (OLMo 2 and Llama 3 at zero, DeepSeek-V3 at a thirtieth)."""
MOST_PASSES = 4.0
"""Up to four passes repeated text is worth nearly as much as new text (arXiv 2305.16264)."""
LARGE_MODEL = 1e9
"""Parameters. Assumed: the smallest models of the family that described such spikes have 1B (OLMo 2, arXiv 2501.00656)."""
LINE = "the line is drawn at {} (assumed)"


def no_warmup(facts: PlanFacts) -> Iterator[Risk]:
    if facts.spec.stages[0].rate.warmup_tokens == 0:
        share = facts.schedule.rate(0) / facts.spec.optimizer.peak_rate
        yield Risk(
            "no warm-up",
            "the first updates are full-sized where the loss surface is roughest: the loss diverges or settles higher for good",
            f"step 1 has {100 * share:.0f} % of the peak rate",
        )


def slow_second_moment(facts: PlanFacts) -> Iterator[Risk]:
    beta2 = facts.spec.optimizer.beta2
    if beta2 > MOST_BETA2:
        yield Risk(
            "beta2 is high",
            "after one freak gradient, or when gradients grow, the denominator lags behind and updates are oversized: spikes",
            f"beta2 {beta2:g} remembers {1 / (1 - beta2):,.0f} steps, .95 remembers 20; {LINE.format(f'{MOST_BETA2:g}')}",
        )


def no_decay(facts: PlanFacts) -> Iterator[Risk]:
    stage = facts.spec.stages[-1]
    total = stage.sequences * stage.sequence_length
    end = rate_factor(stage.rate, total, total)
    if end > DECAYED_SHARE:
        yield Risk(
            "the learning rate does not decay",
            "weights keep bouncing at that step size: held-out loss ends some hundredths of a nat above a decayed run",
            f"the run ends at {100 * end:.0f} % of the peak rate; {LINE.format(f'{100 * DECAYED_SHARE:.0f} %')}",
        )


def decays_twice(facts: PlanFacts) -> Iterator[Risk]:
    """A decay to zero and an annealing to zero after it: the second trains at a rate that has to rise again, or at none."""
    stages = facts.spec.stages
    ended = [stage for stage in stages[:-1] if is_annealing(stage)]
    if ended and is_annealing(stages[-1]):
        first, last = ended[0], stages[-1]
        yield Risk(
            "the learning rate reaches zero twice",
            "what comes after the first zero either trains at no rate or raises it again: decide which stage anneals",
            f"{first.name} ends at {100 * first.rate.end:.3g} % of the peak, {last.name} starts at {100 * last.rate.start:.3g} %",
        )


def trains_at_zero(facts: PlanFacts) -> Iterator[Risk]:
    """A stage whose rate is (nearly) zero from end to end learns nothing."""
    for stage in facts.spec.stages:
        if stage.rate.start <= FALLS_TO_ZERO / 20 and stage.rate.end <= stage.rate.start:
            tokens = format_count(stage.sequences * stage.sequence_length, "tokens")
            yield Risk(
                f"stage {stage.name} trains at almost no rate",
                "its tokens are paid for and change nothing",
                f"{tokens} at {100 * stage.rate.start:.2g} % of the peak rate",
            )


def long_context_first(facts: PlanFacts) -> Iterator[Risk]:
    length = facts.spec.stages[0].sequence_length
    if length <= LONG_FIRST_CONTEXT_TOKENS:
        return
    model = facts.spec.model
    attention, usual = (
        attention_flops_per_token(model, tokens, Convention.CAUSAL) for tokens in (length, USUAL_FIRST_CONTEXT_TOKENS)
    )
    whole = flops_per_token(model, length, Convention.CAUSAL)
    slower = whole / flops_per_token(model, USUAL_FIRST_CONTEXT_TOKENS, Convention.CAUSAL)
    more = f"{attention / usual:.3g} x the attention per token of 8,192 tokens" if usual else "no attention"
    yield Risk(
        "long context from step one",
        "attention is paid for at every token although long range needs few tokens to learn: extend the context at the end",
        f"{100 * attention / whole:.0f} % of the compute is attention; {more}, {slower:.2f} x the compute; "
        + LINE.format(f"{LONG_FIRST_CONTEXT_TOKENS:,} tokens"),
    )


def no_clipping(facts: PlanFacts) -> Iterator[Risk]:
    if facts.spec.optimizer.clip_norm is None:
        yield Risk("no gradient clipping", "one freak batch moves the weights at full size", "clip_norm is 0")


def unguarded_logits(facts: PlanFacts) -> Iterator[Risk]:
    """Neither QK-norm nor z-loss, on a model of a size at which spikes are usual."""
    model = facts.spec.model
    count = facts.parameters["total"].number()
    if count >= LARGE_MODEL and not model.qk_norm and facts.spec.stability.z_loss == 0:
        yield Risk(
            "neither QK-norm nor z-loss",
            "attention and output logits can grow without bound: a known cause of loss spikes in long runs",
            f"{format_count(count)} parameters; qk_norm = false, z_loss = 0; {LINE.format(format_count(LARGE_MODEL))}",
        )


def many_passes(facts: PlanFacts) -> Iterator[Risk]:
    """Of built sources by what the stream takes, of a draft's by what the recipe says there is."""
    for name, passes, cap in _passes(facts):
        if cap is not None and passes > cap * 1.001:
            yield Risk(
                f"source {name} is read beyond its cap",
                "the run stops where the cap is reached, or breaks what was promised for this source",
                f"{passes:.1f} passes, cap {cap:g}",
            )
        elif passes > MOST_PASSES:
            yield Risk(
                f"source {name} is repeated",
                "beyond about four passes repeated text is worth clearly less than new text",
                f"{passes:.1f} passes; about {MOST_PASSES:.0f} are as good as new text (arXiv 2305.16264)",
            )


def _passes(facts: PlanFacts) -> Iterator[tuple[str, float, float | None]]:
    if facts.spec.is_draft:
        yield from ((e.source, e.passes, e.cap_epochs) for e in exposures(facts) if e.passes is not None)
        return
    from headway.data.stream import source_coverage

    caps = {source.name: source.cap_epochs for source in facts.spec.sources}
    yield from ((entry.source, entry.epochs, caps[entry.source]) for entry in source_coverage(facts.spec))


def beyond_the_window(facts: PlanFacts) -> Iterator[Risk]:
    """Every layer sees a window only: what lies further back arrives through layers, or not at all."""
    model = facts.spec.model
    if model.window is None or any(not model.is_windowed(layer) for layer in range(model.layers)):
        return
    longest = max(stage.sequence_length for stage in facts.spec.stages)
    if longest > model.window:
        yield Risk(
            "sequences are longer than the window",
            "no layer sees further back than its window: what lies beyond is passed on from layer to layer, and fades",
            f"{longest:,} tokens, window {model.window:,}, at most {model.window * model.layers:,} through all layers",
        )


def shorter_than_asked(facts: PlanFacts) -> Iterator[Risk]:
    asked, longest = facts.spec.objective.get("context"), max(stage.sequence_length for stage in facts.spec.stages)
    if isinstance(asked, int) and asked > longest:
        yield Risk(
            "no stage is as long as the context that users need",
            "the model meets positions that it never saw: quality falls off beyond the longest stage",
            f"{longest:,} tokens trained, {asked:,} asked",
        )


def announced_chip(facts: PlanFacts) -> Iterator[Risk]:
    """Every figure of the plan stands on what was promised."""
    chip = facts.cluster.chip if facts.cluster else None
    if chip is not None and chip.announced:
        yield Risk(
            "the chip is announced, not on sale",
            "rates, memory and links may come out otherwise: plan again when they are measured",
            unproven(chip) or "",
        )


RECIPE_RULES: tuple[Callable[[PlanFacts], Iterator[Risk]], ...] = (
    no_warmup,
    slow_second_moment,
    no_decay,
    decays_twice,
    trains_at_zero,
    long_context_first,
    no_clipping,
    unguarded_logits,
    many_passes,
    beyond_the_window,
    shorter_than_asked,
    outside_bands,
)

RULES = (never_done, *RECIPE_RULES, *DEVICE_RULES, announced_chip, not_acted_upon)


def find_risks(facts: PlanFacts) -> list[Risk]:
    """All that apply, in the order of ``RULES``."""
    return [risk for rule in RULES for risk in rule(facts)]
