# SPDX-License-Identifier: Apache-2.0
"""A server configuration as a hashable value, and the command line that it means."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tools.tiny_models import ModelPair

_BUILD = Path(__file__).parents[3] / "build"
MODELS = _BUILD / "tiny-models"
CACHE = _BUILD / "sglang-cache"
LOGS = _BUILD / "test-logs"

BACKEND = "ddtree_sm120"

# Small enough that the long prompts are prefilled in several chunks.
CHUNKED_PREFILL_SIZE = 64

MAX_TOTAL_TOKENS = 8192
MAX_RUNNING_REQUESTS = 8


@dataclass(frozen=True)
class ServerConfig:
    """One way of starting the server. Equal configurations share a process.

    Attributes:
        pair: name of a tiny model pair, e.g. ``"cycle-mla"``.
        algorithm: ``--speculative-algorithm``, or None for no speculation.
        page_size: tokens a KV page.
        budget: DDTREE's nodes a tree; the default of the flag if None.
        options: further arguments, last on the command line.
    """

    pair: str
    algorithm: str | None = None
    page_size: int = 1
    budget: int | None = None
    options: tuple[str, ...] = ()

    def __str__(self) -> str:
        name = f"{self.pair}-{self.algorithm or 'plain'}-page{self.page_size}"
        if self.budget is not None:
            name += f"-budget{self.budget}"
        return name + "".join(self.options).replace("/", "_").replace("--", "-")

    def arguments(self, models: ModelPair) -> list[str]:
        """Arguments of ``sglang serve``, host and port excepted."""
        return [
            *("--model-path", str(models.target)),
            *("--device", "cpu"),
            *("--attention-backend", BACKEND),
            # Trees and chains are compared token by token: bf16 rounds them apart.
            *("--dtype", "float32"),
            *("--page-size", str(self.page_size)),
            *("--chunked-prefill-size", str(CHUNKED_PREFILL_SIZE)),
            *("--max-total-tokens", str(MAX_TOTAL_TOKENS)),
            *("--max-running-requests", str(MAX_RUNNING_REQUESTS)),
            # Of sampling without a seed: what is drawn, and so what a test sees, is the same in every run.
            *("--random-seed", "1"),
            "--sleep-on-idle",
            "--enable-metrics",
            # Else a tiny model fills its answer with white space, which JSON allows.
            "--constrained-json-disable-any-whitespace",
            *self._speculation(models),
            *self.options,
        ]

    def _speculation(self, models: ModelPair) -> list[str]:
        match self.algorithm:
            case None:
                return []
            case "NGRAM":
                return [
                    *("--speculative-algorithm", "NGRAM"),
                    *("--speculative-num-draft-tokens", "8"),
                ]
            case "DFLASH" | "DDTREE":
                budget = [] if self.budget is None else ["--speculative-ddtree-budget", str(self.budget)]
                return [
                    *("--speculative-algorithm", self.algorithm),
                    *("--speculative-draft-model-path", str(models.draft)),
                    *("--speculative-draft-attention-backend", BACKEND),
                    *budget,
                ]
        raise ValueError(f"no arguments known for {self.algorithm}")
