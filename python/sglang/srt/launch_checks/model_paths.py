# SPDX-License-Identifier: Apache-2.0
"""Are the models where the flags say?"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sglang.srt.launch_checks.error import LaunchError

if TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs

_PATH_FLAGS = ("model_path", "tokenizer_path", "speculative_draft_model_path")
_DRAFT_MODEL_ALGORITHMS = ("DFLASH", "DDTREE")


def check_model_paths(server_args: ServerArgs) -> None:
    """Refuse a path that is no repository's name and does not exist, and a missing draft.

    Reads raw arguments. Names of the form ``owner/name`` and URLs are left to the loader.
    """
    for field in _PATH_FLAGS:
        path = getattr(server_args, field)
        if path is not None and _is_local(path) and not os.path.exists(path):
            raise LaunchError(f"--{field.replace('_', '-')} {path}: there is no such file or directory.")
    algorithm = (server_args.speculative_algorithm or "").upper()
    if algorithm in _DRAFT_MODEL_ALGORITHMS and server_args.speculative_draft_model_path is None:
        raise LaunchError(
            f"--speculative-algorithm {algorithm} needs a DFLASH draft of the target: "
            "set --speculative-draft-model-path."
        )


def _is_local(path: str) -> bool:
    return path.startswith(("/", "./", "../", "~"))
