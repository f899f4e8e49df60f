"""Small Specs, recipes, texts and token directories for the data tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from headway.data.manifest import DataManifest, SourceEntry, TokenizerEntry
from headway.data.shards import TokenSetWriter
from headway.data.tokenizer import TOKENIZER_FILE, train_tokenizer
from headway.recipe.schema import Recipe
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

RECIPE_TEXT = """\
kind = "recipe"
name = "shown"
tokenizer = {{ vocabulary = 300 }}
model = {{ layers = 1, width = 8, heads = 1 }}
optimizer = {{ peak_rate = 1e-3 }}
evaluation = {{ every = "100k" }}
[data]
held_out = "100"
sources = [{{ name = "a", kind = "text-tree", path = "{path}" }}]
[[stages]]
name = "main"
tokens = "2k"
sequence = 32
batch = 64
mixture = {{ a = 1 }}
"""
"""One source ``a`` under ``path``."""


def small_spec(sources: list[tuple], stages: list[tuple], data_seed: int = 7) -> Spec:
    """``sources``: (name, tokens, chunk[, cap epochs]); ``stages``: (sequences, sequence length, quanta)."""
    return Spec(
        name="small",
        seed=1,
        data_seed=data_seed,
        objective={},
        tokenizer=TokenizerSpec("bpe", 300, "<|document|>", "sha256:tokenizer"),
        model=ModelSpec(1, 8, 1, 1, 8, 8, 300, 1e4, 1e-5, False, False, 0.02),
        sources=tuple(
            SourceSpec(name, tokens, chunk, 1.0, f"sha256:{name}", cap[0] if cap else None, "none")
            for name, tokens, chunk, *cap in sources
        ),
        stages=tuple(
            StageSpec(
                name=f"stage{i}",
                tokens=m * length,
                sequence_length=length,
                sequences=m,
                phases=(BatchPhase(0, 1),),
                rate=RateSpec(0, "constant", 1.0, 1.0),
                quanta=tuple(quanta),
                rope_base=1e4,
            )
            for i, (m, length, quanta) in enumerate(stages)
        ),
        optimizer=OptimizerSpec("adamw", 1e-3, 0.9, 0.95, 1e-8, 0.1, 1.0),
        stability=StabilitySpec(0.0),
        precision=PrecisionSpec("float32"),
        evaluation=EvaluationSpec(1, 1, (), 0),
        manifest_digest="sha256:manifest",
        recipe_digest="sha256:recipe",
    )


def small_recipe(sources: list[dict], *, stages: list[dict] | None = None, vocabulary: int = 300, **data) -> Recipe:
    """A valid recipe over ``sources``; ``data`` overrides keys of its [data] section."""
    names = [source["name"] for source in sources]
    one = {"name": "main", "tokens": 1_000, "sequence": 16, "batch": 32, "rate": {}, "mixture": dict.fromkeys(names, 1.0)}
    return Recipe.model_validate(
        {
            "kind": "recipe",
            "name": "small",
            "seed": 3,
            "tokenizer": {"vocabulary": vocabulary},
            "model": {"layers": 1, "width": 8, "heads": 1},
            "data": {"held_out": 100, "sources": sources, **data},
            "stages": stages or [one],
            "optimizer": {"peak_rate": 1e-3},
            "evaluation": {"every": 100},
        }
    )


def write_words(root: Path, documents: int, seed: int = 0, words: int = 60) -> Path:
    """A tree of text files of made-up words; every file is different."""
    random = np.random.default_rng(seed)
    root.mkdir(parents=True, exist_ok=True)
    syllables = ["ka", "to", "mi", "ren", "sol", "vei", "ba", "nu"]
    for number in range(documents):
        lengths = random.integers(1, 4, words)
        text = " ".join("".join(random.choice(syllables, n)) for n in lengths)
        (root / f"text-{number:03d}.txt").write_text(f"document {number}: {text}\n")
    return root


def write_token_data(root: Path, documents: list[list[list[int]]], shard_bytes: int = 256, dtype: str = "uint16") -> DataManifest:
    """A data directory straight from tokens: per source its documents. The first three quarters are also held out."""
    root.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(["tokens"], vocabulary=257, document_token="<|document|>")
    tokenizer.save(root / TOKENIZER_FILE)
    entries = []
    for number, source in enumerate(documents):
        sets = []
        for relative, part in ((f"{number:02d}", source), (f"{number:02d}/held-out", source[: len(source) * 3 // 4])):
            writer = TokenSetWriter(root, relative, dtype=dtype, shard_bytes=shard_bytes)
            for document in part:
                writer.add(document, len(document))
            sets.append(writer.finish())
        training, held_out = sets
        entry = SourceEntry(
            name=f"source{number}",
            kind="made-up",
            licence="none",
            provenance="",
            tokens=training.tokens,
            documents=training.documents,
            bytes=training.bytes,
            target_share=1.0,
            chunk_tokens=64,
            shards=training.shards,
            ends=training.ends,
            block_digests=training.block_digests,
            held_out=held_out,
            dropped={},
            digest="",
        )
        entries.append(entry.sealed())
    described = TokenizerEntry(TOKENIZER_FILE, tokenizer.digest, tokenizer.vocabulary, "<|document|>", 0)
    manifest = DataManifest("tokens", described, dtype, tuple(entries), "sha256:inputs", "2026-01-01T00:00:00+00:00", {})
    manifest.save(root)
    return manifest
