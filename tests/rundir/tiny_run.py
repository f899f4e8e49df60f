"""A small Spec and run directory for tests of the rooms that read and write run directories."""

from __future__ import annotations

from pathlib import Path

from headway.recipe.spec import (
    BatchPhase,
    EvaluationSpec,
    ModelSpec,
    OptimizerSpec,
    PrecisionSpec,
    RateSpec,
    SourceSpec,
    Spec,
    StabilitySpec,
    StageSpec,
    TokenizerSpec,
)
from headway.rundir.create import RunInfo, create_run
from headway.rundir.layout import RunDirectory

TOKENS_PER_STEP = 64


def tiny_spec(steps: int = 20, manifest_digest: str | None = "sha256:aa") -> Spec:
    """``steps`` steps of 4 sequences of 16 tokens."""
    stage = StageSpec(
        name="main",
        tokens=steps * TOKENS_PER_STEP,
        sequence_length=16,
        sequences=steps * 4,
        phases=(BatchPhase(0, 4),),
        rate=RateSpec(0, "constant", 1.0, 1.0),
        quanta=(65_536,),
        rope_base=1e4,
    )
    return Spec(
        name="tiny",
        seed=1,
        data_seed=1,
        objective={},
        tokenizer=TokenizerSpec("bpe", 64, "<d>", "sha256:bb"),
        model=ModelSpec(1, 8, 1, 1, 8, 16, 64, 1e4, 1e-5, True, True, 0.02),
        sources=(SourceSpec("code", 10_000, 64, 1.0, "sha256:cc", None, "none"),),
        stages=(stage,),
        optimizer=OptimizerSpec("adamw", 1e-3, 0.9, 0.95, 1e-8, 0.1, 1.0),
        stability=StabilitySpec(0.0),
        precision=PrecisionSpec("float32"),
        evaluation=EvaluationSpec(512, 64, (), 0),
        manifest_digest=manifest_digest,
        recipe_digest="sha256:dd",
    )


def tiny_run(root: Path, steps: int = 20, drill_faults: list[dict] | None = None) -> RunDirectory:
    info = RunInfo(data=str(root.parent / "data"), deployment={}, author="a person")
    return create_run(root, spec=tiny_spec(steps), recipe_text="name = 'tiny'\n", info=info, drill_faults=drill_faults)
