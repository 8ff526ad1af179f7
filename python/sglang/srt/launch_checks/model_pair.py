# SPDX-License-Identifier: Apache-2.0
"""Does the DFLASH draft belong to the target?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sglang.srt.arg_groups.model_override_base import model_config_of
from sglang.srt.arg_groups.overrides import resolving_view
from sglang.srt.launch_checks.error import LaunchError

if TYPE_CHECKING:
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.server_args import ServerArgs

_REMEDY = "Set --speculative-draft-model-path to a draft trained for this target."


def check_model_pair(server_args: ServerArgs) -> None:
    """Refuse a draft that was made for another target. Reads resolved arguments.

    The draft borrows the target's embedding and head and reads its hidden states;
    of a misfit only some kinds stop the server, and those at its first request.
    """
    cfg = resolving_view(server_args)
    if cfg.speculative_algorithm not in ("DFLASH", "DDTREE"):
        return
    from sglang.srt.utils.hf_transformers_utils import get_config, get_hf_text_config

    draft = get_config(
        cfg.speculative_draft_model_path,
        trust_remote_code=cfg.trust_remote_code,
        revision=cfg.speculative_draft_model_revision,
        model_override_args=json.loads(cfg.json_model_override_args),
    )
    if cfg.speculative_algorithm == "DDTREE":
        from sglang.srt.speculative.ddtree.draft_heads import conditional_head_of, refusal_of

        head = conditional_head_of(draft)
        if head is not None:
            raise LaunchError(refusal_of(head))
    for misfit in _misfits(draft, get_hf_text_config(draft), model_config_of(server_args)):
        raise LaunchError(
            f"the draft {cfg.speculative_draft_model_path} does not fit the target "
            f"{cfg.model_path}: {misfit}. {_REMEDY}"
        )


def _misfits(draft: Any, draft_text: Any, target: ModelConfig):
    from sglang.srt.speculative.dflash_utils import parse_dflash_draft_config

    for name in ("hidden_size", "vocab_size"):
        theirs, ours = getattr(draft_text, name, None), getattr(target, name)
        if theirs is not None and theirs != ours:
            yield f"its {name} is {theirs}, the target's is {ours}"

    dflash = parse_dflash_draft_config(draft_hf_config=draft)
    layers = target.num_hidden_layers
    for layer in dflash.target_layer_ids or ():
        if not 0 <= layer < layers:
            yield f"its target_layer_ids name layer {layer}, the target has layers 0 to {layers - 1}"
    if dflash.mask_token_id is not None and dflash.mask_token_id >= target.vocab_size:
        yield (f"its mask_token_id is {dflash.mask_token_id}, the target's vocabulary ends at {target.vocab_size - 1}")
