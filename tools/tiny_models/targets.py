# SPDX-License-Identifier: Apache-2.0
"""Configs and random weights of the target models, heads excepted: see :mod:`.cycle`.

The MLA target keeps the latent and rope widths of DeepSeek-V3 (512 + 64), which
are what an MLA kernel is compiled for; everything else is as small as it may be.
"""

from __future__ import annotations

from typing import Any

from tools.tiny_models.checkpoint import Weights
from tools.tiny_models.tokenizer import BOS_ID, EOS_ID, VOCAB_SIZE

HIDDEN = 128
LAYERS = 3
_HEADS = 4
_INTERMEDIATE = 256

Target = tuple[dict[str, Any], Weights]


def base_config(**more: Any) -> dict[str, Any]:
    """The config keys that every checkpoint here has, plus ``more``."""
    config = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN,
        "intermediate_size": _INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _HEADS,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "torch_dtype": "bfloat16",
        "use_cache": True,
    }
    return config | more


def mla(
    seed: int,
    *,
    hidden: int = HIDDEN,
    layers: int = LAYERS,
    heads: int = _HEADS,
    yarn_factor: int = 4,
    original_context: int = 512,
) -> Target:
    """A dense DeepSeek-V3 with ``kv_lora_rank`` 512, for ``yarn_factor * original_context`` positions."""
    q_lora, kv_lora, nope, rope, v_dim = 64, 512, 128, 64, 128
    config = base_config(
        architectures=["DeepseekV3ForCausalLM"],
        model_type="deepseek_v3",
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=yarn_factor * original_context,
        q_lora_rank=q_lora,
        kv_lora_rank=kv_lora,
        qk_nope_head_dim=nope,
        qk_rope_head_dim=rope,
        v_head_dim=v_dim,
        # On a CPU, SGLang builds the MLA rope for deepseek_yarn only.
        rope_scaling={
            "type": "yarn",
            "factor": float(yarn_factor),
            "original_max_position_embeddings": original_context,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
        # transformers wants integers here even though every layer is dense.
        first_k_dense_replace=layers,
        moe_intermediate_size=64,
        moe_layer_freq=1,
        n_group=1,
        n_routed_experts=4,
        n_shared_experts=1,
        norm_topk_prob=True,
        num_experts_per_tok=2,
        routed_scaling_factor=1.0,
        scoring_func="sigmoid",
        topk_group=1,
        topk_method="noaux_tc",
        num_nextn_predict_layers=0,
    )
    weights = Weights(seed)
    weights.matrix("model.embed_tokens.weight", VOCAB_SIZE, hidden, scale=1.0)
    for i in range(layers):
        layer = f"model.layers.{i}"
        attn = f"{layer}.self_attn"
        weights.norm(f"{layer}.input_layernorm.weight", hidden)
        weights.norm(f"{layer}.post_attention_layernorm.weight", hidden)
        weights.matrix(f"{attn}.q_a_proj.weight", q_lora, hidden)
        weights.norm(f"{attn}.q_a_layernorm.weight", q_lora)
        weights.matrix(f"{attn}.q_b_proj.weight", heads * (nope + rope), q_lora)
        weights.matrix(f"{attn}.kv_a_proj_with_mqa.weight", kv_lora + rope, hidden)
        weights.norm(f"{attn}.kv_a_layernorm.weight", kv_lora)
        weights.matrix(f"{attn}.kv_b_proj.weight", heads * (nope + v_dim), kv_lora)
        weights.matrix(f"{attn}.o_proj.weight", hidden, heads * v_dim)
        _mlp(weights, layer, hidden)
    weights.norm("model.norm.weight", hidden)
    return config, weights


def gqa(seed: int) -> Target:
    """A Qwen3 with 4 query heads over 2 KV heads of width 32."""
    head_dim, kv_heads = 32, 2
    config = base_config(
        architectures=["Qwen3ForCausalLM"],
        model_type="qwen3",
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
    )
    weights = Weights(seed)
    weights.matrix("model.embed_tokens.weight", VOCAB_SIZE, HIDDEN, scale=1.0)
    for i in range(LAYERS):
        layer = f"model.layers.{i}"
        attn = f"{layer}.self_attn"
        weights.norm(f"{layer}.input_layernorm.weight", HIDDEN)
        weights.norm(f"{layer}.post_attention_layernorm.weight", HIDDEN)
        weights.matrix(f"{attn}.q_proj.weight", _HEADS * head_dim, HIDDEN)
        weights.matrix(f"{attn}.k_proj.weight", kv_heads * head_dim, HIDDEN)
        weights.matrix(f"{attn}.v_proj.weight", kv_heads * head_dim, HIDDEN)
        weights.matrix(f"{attn}.o_proj.weight", HIDDEN, _HEADS * head_dim)
        weights.norm(f"{attn}.q_norm.weight", head_dim)
        weights.norm(f"{attn}.k_norm.weight", head_dim)
        _mlp(weights, layer, HIDDEN)
    weights.norm("model.norm.weight", HIDDEN)
    return config, weights


def _mlp(weights: Weights, layer: str, hidden: int) -> None:
    weights.matrix(f"{layer}.mlp.gate_proj.weight", _INTERMEDIATE, hidden)
    weights.matrix(f"{layer}.mlp.up_proj.weight", _INTERMEDIATE, hidden)
    weights.matrix(f"{layer}.mlp.down_proj.weight", hidden, _INTERMEDIATE)
