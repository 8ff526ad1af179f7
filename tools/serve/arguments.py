# SPDX-License-Identifier: Apache-2.0
"""Arguments of ``sglang serve`` for a target and its draft on this machine."""

from __future__ import annotations

from dataclasses import dataclass

BACKEND = "ddtree_sm120"
ALGORITHM = "DDTREE"


@dataclass(frozen=True)
class Launch:
    """What to serve and where.

    Attributes:
        target, draft: directories or names on the Hugging Face hub.
        host, port: address to listen on.
        gpu: whether this machine has one.
    """

    target: str
    draft: str
    host: str
    port: int
    gpu: bool

    @property
    def url(self) -> str:
        """Where the server answers."""
        return f"http://{self.host}:{self.port}"

    def arguments(self) -> list[str]:
        """Arguments of ``sglang serve``."""
        return [
            *("--model-path", self.target),
            *("--speculative-draft-model-path", self.draft),
            *("--speculative-algorithm", ALGORITHM),
            *("--attention-backend", BACKEND),
            *("--host", self.host, "--port", str(self.port)),
            *(self._on_gpu() if self.gpu else self._on_cpu()),
        ]

    def _on_gpu(self) -> list[str]:
        # What most server tests on a GPU ran with (docs/backend.md); the fork's own default is less proven.
        return ["--speculative-draft-attention-backend", "triton"]

    def _on_cpu(self) -> list[str]:
        return [
            *("--device", "cpu"),
            *("--speculative-draft-attention-backend", BACKEND),
            # The KV pool would else be sized to, and fill, most of the memory.
            *("--max-total-tokens", "16384", "--max-running-requests", "8"),
        ]
