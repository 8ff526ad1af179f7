# SPDX-License-Identifier: Apache-2.0
"""Seeded weights and the files of a Hugging Face checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tools.tiny_models import tokenizer

DTYPE = torch.bfloat16


class Weights(dict[str, torch.Tensor]):
    """Named bf16 tensors drawn from one seeded generator, in the order they are asked for."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)

    def matrix(self, name: str, *shape: int, scale: float = 0.08) -> None:
        """Add a normal matrix of the given shape and standard deviation."""
        self[name] = (torch.randn(*shape, generator=self._generator) * scale).to(DTYPE)

    def norm(self, name: str, size: int) -> None:
        """Add an RMSNorm weight near one."""
        self[name] = (1 + 0.02 * torch.randn(size, generator=self._generator)).to(DTYPE)


def write(directory: Path, config: dict[str, Any], weights: Weights) -> None:
    """Write config, weights and tokenizer; greedy decoding becomes the model's default."""
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    generation = {"eos_token_id": tokenizer.EOS_ID, "do_sample": False}
    (directory / "generation_config.json").write_text(json.dumps(generation))
    tensors = {name: tensor.contiguous() for name, tensor in weights.items()}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(directory)
