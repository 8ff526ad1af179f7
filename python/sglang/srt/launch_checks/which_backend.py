# SPDX-License-Identifier: Apache-2.0
"""``python -m sglang.srt.launch_checks.which_backend``: the attention backend that an MLA model gets on this machine.

Resolves the arguments of a server for a model of DeepSeek's shape, of which only the
config exists, and prints one line of JSON: ``backend``, and in ``why`` what was logged
about the choice.
"""

from __future__ import annotations

import json
import logging
import tempfile
from pathlib import Path

_CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "first_k_dense_replace": 1,
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "kv_lora_rank": 512,
    "max_position_embeddings": 4096,
    "moe_intermediate_size": 512,
    "n_group": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_attention_heads": 8,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 8,
    "q_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "topk_group": 1,
    "torch_dtype": "bfloat16",
    "v_head_dim": 128,
    "vocab_size": 1024,
}


class _Reasons(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if "backend" in line.lower() or "ddtree_sm120" in line:
            self.lines.append(line)


def ask(*arguments: str) -> dict[str, object]:
    """``backend`` and ``why`` for a launch with these further arguments."""
    from sglang.srt.arg_groups.model_override_base import resolved_view
    from sglang.srt.server_args import prepare_server_args

    reasons = _Reasons()
    root = logging.getLogger()
    level = root.level
    root.addHandler(reasons)
    root.setLevel(logging.INFO)
    try:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(_CONFIG))
            server_args = prepare_server_args(["--model-path", folder, *arguments])
            server_args.resolve_once()
            view = resolved_view(server_args)
    finally:
        root.removeHandler(reasons)
        root.setLevel(level)
    why = [_where_it_is_the_default(view.attention_backend, view.device), *reasons.lines]
    return {"backend": view.attention_backend, "why": why}


def _where_it_is_the_default(backend: str, device: str) -> str:
    """Why ``ddtree_sm120`` is or is not the choice; when its demands are not met, the log has the reason."""
    default = "ddtree_sm120 is the default of MLA models on sm_120 and sm_121"
    if backend == "ddtree_sm120":
        return default
    if device != "cuda":
        return f"{default}; on device {device} it runs where --attention-backend ddtree_sm120 asks for it"
    import torch

    major, minor = torch.cuda.get_device_capability()
    return f"{default}; this card is sm_{major}{minor}"


if __name__ == "__main__":
    print(json.dumps(ask()))
