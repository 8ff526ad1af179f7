# SPDX-License-Identifier: Apache-2.0
"""A server on a GPU as a hashable value, and the command line that it means."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass

from tools.tiny_models import ModelPair

BACKEND = "ddtree_sm120"
MAX_TOTAL_TOKENS = 65536
MAX_RUNNING_REQUESTS = 8

# Further arguments for every server, such as a sampling backend that needs no compiler.
MORE = tuple(shlex.split(os.environ.get("GPU_TEST_SERVER_ARGS", "")))


@dataclass(frozen=True)
class GpuConfig:
    """One way of starting the server on CUDA, graphs and overlap scheduler on. Equal ones share a process.

    Attributes:
        pair: name of a tiny model pair.
        algorithm: ``--speculative-algorithm``, or None for no speculation.
        backend: ``--attention-backend``.
        budget: DDTREE's nodes a tree besides the root.
        graph_sizes: batch sizes that graphs are captured for; a batch between two of them is padded.
        tp: ranks of tensor parallelism.
        options: further arguments, last on the command line.
    """

    pair: str
    algorithm: str | None = "DDTREE"
    backend: str = BACKEND
    budget: int = 32
    graph_sizes: tuple[int, ...] = (1, 2, 4, 8)
    tp: int = 1
    options: tuple[str, ...] = ()

    def __str__(self) -> str:
        sizes = "-".join(map(str, self.graph_sizes))
        name = f"{self.pair}-{self.algorithm or 'plain'}-{self.backend}-graphs-{sizes}-tp{self.tp}"
        return name + "".join(self.options).replace("/", "_").replace("--", "-")

    def arguments(self, models: ModelPair) -> list[str]:
        """Arguments of ``sglang serve``, host and port excepted."""
        return [
            *("--model-path", str(models.target)),
            *("--attention-backend", self.backend),
            *("--tp-size", str(self.tp)),
            *("--max-total-tokens", str(MAX_TOTAL_TOKENS)),
            *("--max-running-requests", str(MAX_RUNNING_REQUESTS)),
            *("--cuda-graph-bs-decode", *map(str, self.graph_sizes)),
            # Several servers share the card, and a start should be short.
            *("--mem-fraction-static", "0.3", "--disable-prefill-cuda-graph"),
            "--enable-metrics",
            *self._speculation(models),
            *MORE,
            *self.options,
        ]

    def _speculation(self, models: ModelPair) -> list[str]:
        if self.algorithm is None:
            return []
        budget = ["--speculative-ddtree-budget", str(self.budget)] if self.algorithm == "DDTREE" else []
        return [
            *("--speculative-algorithm", self.algorithm),
            *("--speculative-draft-model-path", str(models.draft)),
            # FlashInfer has no kernel for the heads of the tiny drafts, which are 32 wide.
            *("--speculative-draft-attention-backend", "triton"),
            *budget,
        ]
