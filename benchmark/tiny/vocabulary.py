# SPDX-License-Identifier: Apache-2.0
"""The byte-level BPE tokenizer of the trained pairs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SIZE = 1024

# Training numbers the special tokens first, in this order.
END_OF_TEXT, MASK = range(2)
_SPECIALS = ["<|endoftext|>", "<|mask|>"]

# Indentation is one token a run of spaces; a newline starts a piece of its own, and words keep one space before them.
_PIECES = r"\n+| +(?= )|[ ]?[A-Za-z]+|[ ]?[0-9]|[ ]?[^\sA-Za-z0-9]+|\s"
_LONGEST = 4096


def train(texts: Iterable[str]) -> Tokenizer:
    """A tokenizer of exactly ``SIZE`` entries, all 256 bytes among them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE,
        special_tokens=_SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != SIZE:
        raise ValueError(f"the text gives {tokenizer.get_vocab_size()} tokens, not {SIZE}")
    return tokenizer


def encode(tokenizer: Tokenizer, texts: list[str]) -> np.ndarray:
    """uint16 ids of the texts one after the other, each followed by the end of text."""
    pieces = [np.array([*piece.ids, END_OF_TEXT], dtype=np.uint16) for piece in tokenizer.encode_batch(texts)]
    return np.concatenate(pieces)


def save(tokenizer: Tokenizer, directory: Path) -> None:
    """Write what ``transformers`` reads. There is no chat template: the models continue text."""
    tokenizer.save(str(directory / "tokenizer.json"))
    specials = {"eos_token": _SPECIALS[END_OF_TEXT], "pad_token": _SPECIALS[END_OF_TEXT], "mask_token": _SPECIALS[MASK]}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": _LONGEST,
        "clean_up_tokenization_spaces": False,
        **specials,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    (directory / "special_tokens_map.json").write_text(json.dumps(specials, indent=1) + "\n")
