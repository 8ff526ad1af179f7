# SPDX-License-Identifier: Apache-2.0
"""What the models measure, and the ``config.json`` that says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmark.tiny.vocabulary import END_OF_TEXT, MASK, SIZE

EPS = 1e-6
THETA = 10000.0
LONGEST = 4096
BLOCK = 16


@dataclass(frozen=True)
class TargetSize:
    """A decoder with SwiGLU MLPs and pre-normalisation.

    Attributes:
        kind: ``"mla"`` (DeepSeek-V3, every layer dense) or ``"gqa"`` (Qwen3).
        captured: layers whose output the drafter reads; never the last, since
            SGLang takes features on entry to the next one.
    """

    kind: str
    hidden: int
    layers: int
    heads: int
    intermediate: int
    captured: tuple[int, ...]
    # MLA only.
    q_lora: int = 0
    kv_lora: int = 0
    nope: int = 0
    rope: int = 0
    value: int = 0
    # GQA only.
    kv_heads: int = 0
    head_dim: int = 0

    def config(self) -> dict[str, Any]:
        """``config.json`` of the checkpoint."""
        shared = _shared(self.hidden, self.layers, self.heads, self.intermediate)
        if self.kind == "gqa":
            return shared | {
                "architectures": ["Qwen3ForCausalLM"],
                "model_type": "qwen3",
                "num_key_value_heads": self.kv_heads,
                "head_dim": self.head_dim,
            }
        return shared | {
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "deepseek_v3",
            "num_key_value_heads": self.heads,
            "q_lora_rank": self.q_lora,
            "kv_lora_rank": self.kv_lora,
            "qk_nope_head_dim": self.nope,
            "qk_rope_head_dim": self.rope,
            "v_head_dim": self.value,
            # On a CPU, SGLang builds the MLA rope for deepseek_yarn only; a factor of 1 makes it the plain one.
            "rope_scaling": {
                "type": "yarn",
                "factor": 1.0,
                # Beyond the context, so that a block drafted at its end has positions.
                "original_max_position_embeddings": 2 * LONGEST,
                "beta_fast": 32,
                "beta_slow": 1,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
            },
            # Every layer is dense; transformers wants integers for the experts all the same.
            "first_k_dense_replace": self.layers,
            "moe_intermediate_size": 64,
            "moe_layer_freq": 1,
            "n_group": 1,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "norm_topk_prob": True,
            "num_experts_per_tok": 2,
            "routed_scaling_factor": 1.0,
            "scoring_func": "sigmoid",
            "topk_group": 1,
            "topk_method": "noaux_tc",
            "num_nextn_predict_layers": 0,
        }


@dataclass(frozen=True)
class DrafterSize:
    """A DFLASH drafter: Qwen3 layers over a block, with the target's features as context."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int

    def config(self, target: TargetSize) -> dict[str, Any]:
        """``config.json`` of the checkpoint."""
        return _shared(self.hidden, self.layers, self.heads, self.intermediate) | {
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "block_size": BLOCK,
            "num_target_layers": target.layers,
            "dflash_config": {"mask_token_id": MASK, "target_layer_ids": list(target.captured)},
        }


def _shared(hidden: int, layers: int, heads: int, intermediate: int) -> dict[str, Any]:
    return {
        "vocab_size": SIZE,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "hidden_act": "silu",
        "max_position_embeddings": LONGEST,
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
        "rope_scaling": None,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "bos_token_id": END_OF_TEXT,
        "eos_token_id": END_OF_TEXT,
        "torch_dtype": "bfloat16",
        "use_cache": True,
    }


# The head widths of the MLA target are DeepSeek-V3's too (128 + 64, values 128): prefill kernels are built for them.
TARGETS = {
    "mla": TargetSize(
        kind="mla",
        hidden=160,
        layers=3,
        heads=4,
        intermediate=256,
        captured=(0, 1),
        q_lora=64,
        kv_lora=512,
        nope=128,
        rope=64,
        value=128,
    ),
    "gqa": TargetSize(
        kind="gqa",
        hidden=192,
        layers=5,
        heads=4,
        intermediate=512,
        captured=(1, 2, 3),
        kv_heads=2,
        head_dim=64,
    ),
}
DRAFTERS = {
    "mla": DrafterSize(hidden=160, layers=5, heads=4, kv_heads=2, head_dim=64, intermediate=128),
    "gqa": DrafterSize(hidden=192, layers=5, heads=4, kv_heads=2, head_dim=64, intermediate=160),
}
