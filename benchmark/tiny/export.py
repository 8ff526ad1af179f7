# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in the format that SGLang loads."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import nn

from benchmark.tiny import vocabulary
from benchmark.tiny.drafter import Drafter
from benchmark.tiny.sizes import DRAFTERS, TARGETS
from benchmark.tiny.target import Target

LIMIT_BYTES = 8_000_000
_WEIGHTS = "model.safetensors"


def write(directory: Path, model: nn.Module, config: dict[str, Any], tokenizer: Tokenizer) -> None:
    """Write one checkpoint in bf16; a parameter's name in the model is its name in the file."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    generation = {"eos_token_id": vocabulary.END_OF_TEXT, "do_sample": False}
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=1) + "\n")
    tensors = {
        name: value.detach().to("cpu", torch.bfloat16).contiguous() for name, value in model.state_dict().items()
    }
    save_file(tensors, directory / _WEIGHTS, metadata={"format": "pt"})
    vocabulary.save(tokenizer, directory)


def write_target(directory: Path, kind: str, target: Target, tokenizer: Tokenizer) -> None:
    """Write ``target/`` alone."""
    write(directory / "target", target, TARGETS[kind].config(), tokenizer)


def write_pair(directory: Path, kind: str, target: Target, drafter: Drafter, tokenizer: Tokenizer) -> None:
    """Write ``target/`` and ``draft/``.

    Raises:
        ValueError: the weights of the pair exceed ``LIMIT_BYTES``.
    """
    write_target(directory, kind, target, tokenizer)
    write(directory / "draft", drafter, DRAFTERS[kind].config(TARGETS[kind]), tokenizer)
    size = sum(path.stat().st_size for path in directory.rglob(_WEIGHTS))
    if size > LIMIT_BYTES:
        raise ValueError(f"the pair takes {size} bytes, more than {LIMIT_BYTES}")


def read_pair(directory: Path, kind: str) -> tuple[Target, Drafter]:
    """The pair in float32, in evaluation mode."""
    size = TARGETS[kind]
    target = Target(size)
    drafter = Drafter(DRAFTERS[kind], len(size.captured) * size.hidden)
    read(directory / "target", target)
    read(directory / "draft", drafter)
    return target, drafter


def read(checkpoint: Path, model: nn.Module) -> None:
    """Fill a model with a checkpoint's weights and put it in evaluation mode."""
    weights = load_file(checkpoint / _WEIGHTS)
    model.load_state_dict({key: value.float() for key, value in weights.items()})
    model.eval()


def hashes(directory: Path) -> dict[str, str]:
    """sha256 of every file below, by its path."""
    return {
        path.relative_to(directory).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != "SHA256SUMS"
    }
