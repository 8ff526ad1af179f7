# SPDX-License-Identifier: Apache-2.0
"""The byte-level BPE tokenizer that all tiny models share."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 512

# Training numbers the special tokens first, in this order.
BOS_ID, IM_START_ID, EOS_ID, MASK_ID = range(4)
_SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"]

_CORPUS = [
    "The quick brown fox jumps over the lazy dog.",
    "A draft proposes tokens and the target verifies them in one pass.",
    "def main():\n    return sum(range(10))\n",
    "hello world hello tree attention draft verify accept",
]

_CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def train() -> Tokenizer:
    """Train the tokenizer. It has at most ``VOCAB_SIZE`` entries, all 256 bytes among them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=_SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS * 50, trainer)
    return tokenizer


def save(directory: Path) -> None:
    """Write the tokenizer and its chat template as ``transformers`` expects them."""
    train().save(str(directory / "tokenizer.json"))
    bos, _, eos, mask = _SPECIALS
    specials = {"bos_token": bos, "eos_token": eos, "pad_token": bos, "mask_token": mask}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 2048,
        "clean_up_tokenization_spaces": False,
        "chat_template": _CHAT_TEMPLATE,
        **specials,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
    (directory / "special_tokens_map.json").write_text(json.dumps(specials, indent=1))
