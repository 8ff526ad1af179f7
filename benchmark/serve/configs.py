# SPDX-License-Identifier: Apache-2.0
"""Which servers are compared, and the command line that each one means."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tools.tiny_models import ModelPair


@dataclass(frozen=True)
class ServeConfig:
    """One server of the comparison.

    Attributes:
        algorithm: ``"DFLASH"`` or ``"DDTREE"``.
        backend: the target's ``--attention-backend``.
        draft_backend: ``--speculative-draft-attention-backend``.
        width: the block of DFLASH, the budget of DDTREE.
        turn_ms: ``--speculative-turn-ms``, device time of the steps that a turn of the scheduler may have;
            0 for one step.
    """

    algorithm: str
    backend: str
    draft_backend: str
    width: int
    turn_ms: float = 0.0

    @property
    def label(self) -> str:
        more = f", turns of {self.turn_ms:g} ms" if self.turn_ms else ""
        return f"{self.algorithm} {self.width}, {self.backend}, draft {self.draft_backend}{more}"

    @property
    def file_name(self) -> str:
        return self.label.replace(", ", "-").replace(" ", "-")

    def arguments(self, models: ModelPair, context: int, more: list[str]) -> list[str]:
        """Arguments of the server for one request of at most ``context`` tokens."""
        width = {
            "DFLASH": ["--speculative-num-draft-tokens", str(self.width)],
            "DDTREE": ["--speculative-ddtree-budget", str(self.width)],
        }[self.algorithm]
        return [
            *("--model-path", str(models.target)),
            *("--attention-backend", self.backend),
            *("--speculative-algorithm", self.algorithm),
            *("--speculative-draft-model-path", str(models.draft)),
            *("--speculative-draft-attention-backend", self.draft_backend),
            *width,
            # Enough for a prompt, its generation, and what a step reserves ahead.
            *("--max-total-tokens", str(context + 16384)),
            *("--max-running-requests", "1"),
            *("--cuda-graph-bs-decode", "1"),
            # The prefill's graphs take a minute to capture and no part in a decode step.
            "--disable-prefill-cuda-graph",
            *("--speculative-turn-ms", str(self.turn_ms)),
            *more,
        ]


def log_path(folder: Path, config: ServeConfig) -> Path:
    """Where the server of ``config`` logs to."""
    return folder / f"{config.file_name}.log"
