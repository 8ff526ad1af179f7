# SPDX-License-Identifier: Apache-2.0
"""Which checkpoints there are, and making those that are missing.

A checkpoint is built beside its place and moved there when whole, with a stamp
that holds a hash of this package's sources: one made by other sources, or left
half made, is made again.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tools.tiny_models import checkpoint, cycle, drafts, targets

_STAMP = ".made-from"

Checkpoint = targets.Target
Progress = Callable[[str], None]


@dataclass(frozen=True)
class ModelPair:
    """Directories of a target and of the DFLASH draft that fits it."""

    target: Path
    draft: Path


def _target(make: Callable[[int], Checkpoint], *, seed: int, mixing: float) -> Checkpoint:
    config, weights = make(seed)
    cycle.bind(weights, mixing)
    return config, weights


# The mixing of the random ones is found by trial: most next tokens hang on the whole
# context, and yet the output often falls into loops, which the draft foretells.
_TARGETS: dict[str, Callable[[], Checkpoint]] = {
    "cycle-mla": lambda: _target(targets.mla, seed=1, mixing=0.05),
    "cycle-gqa": lambda: _target(targets.gqa, seed=2, mixing=0.05),
    "random-mla": lambda: _target(targets.mla, seed=3, mixing=1.0),
    "random-gqa": lambda: _target(targets.gqa, seed=4, mixing=4.0),
}

# Each is wrong in one way for every target above.
_MISMATCHED: dict[str, Callable[[], Checkpoint]] = {
    "hidden-size": lambda: drafts.copy_draft(seed=5, hidden=2 * targets.HIDDEN),
    "vocab-size": lambda: drafts.copy_draft(seed=6, vocab=2 * drafts.VOCAB_SIZE),
    "layer-ids": lambda: drafts.copy_draft(seed=7, target_layer_ids=(0, targets.LAYERS + 4)),
}

PAIRS = tuple(_TARGETS)
# Trained by `benchmark/tiny` and kept in the repository.
TRAINED = ("trained-mla", "trained-gqa")
_KEPT = Path(__file__).parents[2] / "models"
MISMATCHES = tuple(_MISMATCHED)


def ensure(root: Path, pair: str, progress: Progress = lambda _: None) -> ModelPair:
    """Make the named pair under ``root`` unless it is there; a trained one lies in the repository.

    Raises:
        KeyError: no such pair; the message lists those there are.
    """
    if pair in TRAINED:
        return ModelPair(target=_KEPT / pair / "target", draft=_KEPT / pair / "draft")
    if pair not in _TARGETS:
        raise KeyError(f"no tiny model pair {pair!r}; there are: {', '.join(PAIRS + TRAINED)}")
    return ModelPair(
        target=ensure_checkpoint(root / pair / "target", _TARGETS[pair], progress),
        draft=ensure_checkpoint(root / pair / "draft", lambda: drafts.copy_draft(seed=8), progress),
    )


def ensure_mismatched(root: Path, mismatch: str, progress: Progress = lambda _: None) -> Path:
    """Make the draft that is wrong in the named way under ``root`` unless it is there."""
    return ensure_checkpoint(root / "mismatched" / mismatch, _MISMATCHED[mismatch], progress)


def ensure_checkpoint(directory: Path, make: Callable[[], Checkpoint], progress: Progress = lambda _: None) -> Path:
    """Write what ``make`` returns to ``directory`` unless these sources already did."""
    stamp = directory / _STAMP
    if stamp.is_file() and stamp.read_text() == _source_hash():
        return directory
    progress(f"making {directory}")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with (directory.parent / f".{directory.name}.lock").open("w") as lock:
        # Another process may be making it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (stamp.is_file() and stamp.read_text() == _source_hash()):
            _make_checkpoint(directory, make)
    return directory


def _make_checkpoint(directory: Path, make: Callable[[], Checkpoint]) -> None:
    config, weights = make()
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".making-") as tmp:
        whole = Path(tmp) / "checkpoint"
        whole.mkdir()
        checkpoint.write(whole, config, weights)
        (whole / _STAMP).write_text(_source_hash())
        shutil.rmtree(directory, ignore_errors=True)
        whole.rename(directory)


@cache
def _source_hash() -> str:
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()
