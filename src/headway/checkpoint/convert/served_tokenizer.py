"""The run's tokenizer beside exported weights, as ``transformers`` loads it.

Documents begin with the document token while training, so it is the beginning (and the end) of text there: the post-processor
puts it in front of every prompt. In our own tokenizer no text can produce it; theirs reads it where a text spells it, so prompts
from outside are to be given with ``split_special_tokens=True``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import processors

from headway.base.files import write_json
from headway.data.tokenizer import TOKENIZER_FILE, Tokenizer

CONFIG = "tokenizer_config.json"


def write_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """tokenizer.json and its configuration."""
    tokenizer.save(directory / TOKENIZER_FILE)
    token = tokenizer.document_token
    inner = tokenizers.Tokenizer.from_file(str(directory / TOKENIZER_FILE))
    inner.post_processor = processors.TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A {token} $B", special_tokens=[(token, tokenizer.document_token_id)]
    )
    inner.save(str(directory / TOKENIZER_FILE))
    write_json(
        directory / CONFIG,
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": token,
            "eos_token": token,
            "clean_up_tokenization_spaces": False,
        },
    )


def token_ids(tokenizer: Tokenizer | None) -> dict[str, Any]:
    """For ``config.json``."""
    identity = None if tokenizer is None else tokenizer.document_token_id
    return {"bos_token_id": identity, "eos_token_id": identity}
