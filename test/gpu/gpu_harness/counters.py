# SPDX-License-Identifier: Apache-2.0
"""What a server counts: steps, and how each was run."""

from __future__ import annotations

import re
from dataclasses import dataclass

import httpx
from harness.generate import REQUEST_SECONDS
from harness.process import Server


@dataclass(frozen=True)
class Steps:
    """Decode steps since the server's start: those that replayed a CUDA graph, and the others."""

    replayed: int
    eager: int

    def __sub__(self, earlier: Steps) -> Steps:
        return Steps(self.replayed - earlier.replayed, self.eager - earlier.eager)


def decode_steps(server: Server) -> Steps:
    """Read from ``/metrics``."""
    answer = httpx.get(f"{server.url}/metrics", timeout=REQUEST_SECONDS)
    answer.raise_for_status()
    passes = re.findall(r'^sglang:cuda_graph_passes_total\{.*mode="(\w+)".*\} (\S+)$', answer.text, re.MULTILINE)
    counts = {mode: 0.0 for mode in ("decode_cuda_graph", "decode_none")}
    for mode, value in passes:
        counts[mode] = counts.get(mode, 0.0) + float(value)
    return Steps(int(counts["decode_cuda_graph"]), int(counts["decode_none"]))
