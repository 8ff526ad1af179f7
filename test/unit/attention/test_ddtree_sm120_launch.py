# SPDX-License-Identifier: Apache-2.0
"""What ``ddtree_sm120`` does to the arguments of a launch on a GPU, and what it refuses there."""

from __future__ import annotations

import dataclasses
import json
import logging
import re
from types import SimpleNamespace

import pytest
import sglang  # noqa: F401  first, for the CPU engine
import torch
from sglang.srt.arg_groups import speculative_hook
from sglang.srt.arg_groups.model_override_base import resolved_view
from sglang.srt.configs.model_config import AttentionArch
from sglang.srt.launch_checks.error import LaunchError
from sglang.srt.layers.attention.ddtree_sm120 import launch, requirements
from sglang.srt.layers.attention.ddtree_sm120.requirements import Demands, unmet
from sglang.srt.server_args import prepare_server_args

KIMI_K2 = Demands(
    is_mla=True,
    latent_dim=512,
    rope_dim=64,
    model_dtype=torch.bfloat16,
    kv_cache_dtype="auto",
    heads=8,
    nodes=33,
    page_size=64,
)


@pytest.fixture(autouse=True)
def package(monkeypatch):
    monkeypatch.setattr(requirements, "package_is_installed", lambda: True)


@pytest.mark.parametrize(
    "heads,tp",
    [(64, 1), (64, 8), (128, 1), (128, 8), (20, 1), (20, 2), (20, 4), (16, 1), (16, 8)],
)
def test_heads_of_the_models_it_is_made_for(heads, tp):
    """Kimi K2, DeepSeek-V3 and R1, GLM-4.7-Flash, DeepSeek-V2-Lite."""
    assert unmet(dataclasses.replace(KIMI_K2, heads=heads // tp)) is None


@pytest.mark.parametrize(
    "change,reason",
    [
        ({"latent_dim": 256}, r"512 \+ 64 .* 256 \+ 64"),
        ({"model_dtype": torch.float16}, "--dtype bfloat16"),
        # Not auto: of a checkpoint that asks for fp8, auto is what was refused.
        ({"kv_cache_dtype": "fp8_e4m3"}, "auto is that .* set --kv-cache-dtype bf16"),
        ({"kv_cache_dtype": torch.float8_e4m3fn}, "auto is that .* set --kv-cache-dtype bf16"),
        ({"kv_cache_dtype": "fp4_e2m1"}, "not fp4_e2m1; set --kv-cache-dtype bf16"),
        ({"sparse": True}, "--attention-backend dsa"),
        ({"heads": 129}, "--tp-size"),
        ({"nodes": 258}, "--speculative-ddtree-budget"),
        ({"page_size": 128}, "--page-size"),
        ({"page_size": 48}, "--page-size"),
        ({"dcp_size": 2}, "--dcp-size"),
        ({"unified_memory": True}, "--enable-unified-memory"),
        ({"drafts": True, "drafts_blocks": True}, "--speculative-draft-attention-backend"),
    ],
)
def test_what_the_kernel_lacks(change, reason):
    assert re.search(reason, unmet(dataclasses.replace(KIMI_K2, **change)))


QWEN3 = dataclasses.replace(
    KIMI_K2, is_mla=False, latent_dim=None, rope_dim=None, heads=32, kv_heads=8, head_dims=(128, 128)
)


@pytest.mark.parametrize(
    "heads,kv_heads,dim", [(32, 8, 128), (64, 8, 128), (28, 4, 128), (16, 1, 256), (8, 8, 64), (8, 1, 128)]
)
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8_e4m3", torch.float8_e4m3fn])
@pytest.mark.parametrize("drafts", [False, True])
def test_gqa_models(heads, kv_heads, dim, kv_cache_dtype, drafts):
    change = {"heads": heads, "kv_heads": kv_heads, "head_dims": (dim, dim), "kv_cache_dtype": kv_cache_dtype}
    assert unmet(dataclasses.replace(QWEN3, **change, drafts=drafts, drafts_blocks=drafts)) is None


@pytest.mark.parametrize(
    "change,reason",
    [
        ({"head_dims": (96, 96)}, "64, 128, 256 numbers, the model has 96 .* --attention-backend triton"),
        ({"head_dims": (128, 64)}, "128 for keys and 64 for values"),
        ({"heads": 64, "kv_heads": 2}, "1 to 16 query heads a KV head"),
        ({"kv_cache_dtype": "fp8_e5m2"}, "--kv-cache-dtype bf16 or fp8_e4m3"),
        ({"kv_cache_dtype": "fp4_e2m1"}, "--kv-cache-dtype bf16 or fp8_e4m3"),
        ({"drafts": True}, "DFLASH and DDTREE only"),
    ],
)
def test_what_the_gqa_kernel_lacks(change, reason):
    assert re.search(reason, unmet(dataclasses.replace(QWEN3, **change)))


def test_missing_package(monkeypatch):
    monkeypatch.setattr(requirements, "package_is_installed", lambda: False)
    assert "make kernel-install" in unmet(KIMI_K2)


class Arguments(SimpleNamespace):
    """A launch on a GPU, as the views of SGLang's argument resolution show it."""

    def __init__(self, **given):
        super().__init__(
            **{
                "device": "cuda",
                "attention_backend": "ddtree_sm120",
                "prefill_attention_backend": None,
                "decode_attention_backend": None,
                "speculative_algorithm": None,
                "speculative_attention_mode": "prefill",
                "speculative_draft_attention_backend": None,
                "speculative_num_draft_tokens": None,
                "speculative_draft_model_path": None,
                "speculative_draft_model_revision": None,
                "speculative_draft_kv_cache_dtype": None,
                "trust_remote_code": False,
                "json_model_override_args": "{}",
                "dtype": "auto",
                "kv_cache_dtype": "auto",
                "enable_dp_attention": False,
                "tp_size": 8,
                "page_size": None,
                "dcp_size": 1,
                "enable_unified_memory": False,
                "enable_two_batch_overlap": False,
                **given,
            }
        )


MODEL = SimpleNamespace(
    attention_arch=AttentionArch.MLA,
    kv_lora_rank=512,
    qk_rope_head_dim=64,
    dtype=torch.bfloat16,
    num_attention_heads=64,
    head_dim=128,
    v_head_dim=128,
    get_num_kv_heads=lambda ranks: 8 // ranks,
    hf_config=SimpleNamespace(architectures=["DeepseekV3ForCausalLM"]),
    quantization=None,
    hf_quant_config={},
    model_path="owner/name",
)


@pytest.fixture
def declared(monkeypatch):
    """``declared(flashinfer, **arguments)``: what choosing the backend adds to them."""

    def run(flashinfer: bool = True, **given) -> dict:
        found = {}
        monkeypatch.setattr(launch, "resolving_view", lambda arguments: arguments)
        monkeypatch.setattr(launch, "resolved_view", lambda arguments: arguments)
        monkeypatch.setattr(launch, "get_platform", lambda: SimpleNamespace(has_flashinfer=flashinfer))
        monkeypatch.setattr(launch, "declare_resolution", lambda arguments, source, **fields: found.update(fields))
        launch.resolve_beside(Arguments(**given))
        return found

    return run


SPLIT = {"prefill_attention_backend": "triton", "decode_attention_backend": "ddtree_sm120"}


@pytest.mark.parametrize(
    "given,expected",
    [
        ({}, {}),
        ({"speculative_algorithm": "NGRAM"}, {}),
        ({"speculative_algorithm": "DFLASH"}, {"speculative_draft_attention_backend": "flashinfer"}),
        (
            {"speculative_algorithm": "DFLASH", "flashinfer": False},
            {"speculative_draft_attention_backend": "triton"},
        ),
        ({"speculative_algorithm": "DSPARK"}, {"speculative_draft_attention_backend": "flashinfer"}),
        ({"speculative_algorithm": "EAGLE"}, {"speculative_draft_attention_backend": "triton"}),
        ({"speculative_algorithm": "EAGLE", "speculative_draft_attention_backend": "flashinfer"}, {}),
        ({"speculative_algorithm": "NGRAM", **SPLIT}, {"speculative_attention_mode": "decode"}),
        ({**SPLIT}, {}),
        ({"speculative_algorithm": "EAGLE", "attention_backend": "triton"}, {}),
        ({"speculative_algorithm": "EAGLE", "device": "cpu"}, {}),
    ],
)
def test_arguments_beside_the_backend(declared, given, expected):
    assert declared(**given) == expected


DRAFT = {
    "model_type": "qwen3",
    "architectures": ["DFlashDraftModel"],
    "torch_dtype": "bfloat16",
    "hidden_size": 7168,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "dflash_config": {"mask_token_id": 1},
}


@pytest.fixture
def draft(tmp_path):
    """``draft(field=value)``: the arguments that name a draft model with that configuration."""

    def write(**fields) -> dict[str, str]:
        (tmp_path / "config.json").write_text(json.dumps(DRAFT | fields))
        return {"speculative_draft_model_path": str(tmp_path)}

    return write


@pytest.mark.parametrize("algorithm", ["DFLASH", "ddtree"])
def test_it_attends_the_draft_of_its_target(declared, draft, algorithm):
    named = {"speculative_algorithm": algorithm, **draft()}
    ours = {"speculative_draft_attention_backend": "ddtree_sm120"}
    assert declared(**named) == ours
    assert declared(**named, **SPLIT) == ours | {"speculative_attention_mode": "decode"}


def test_a_named_draft_backend_stays(declared, draft):
    named = {"speculative_algorithm": "DFLASH", "speculative_draft_attention_backend": "flashinfer"}
    assert declared(**named, **draft()) == {}


@pytest.mark.parametrize("target", ["ddtree_sm120", "triton"])
@pytest.mark.parametrize("algorithm", ["DFLASH", "ddtree"])
def test_it_may_draft_blocks(declared, draft, target, algorithm):
    asked = {"speculative_algorithm": algorithm, "speculative_draft_attention_backend": "ddtree_sm120"}
    assert declared(attention_backend=target, **asked, **draft()) == {}


REFUSED_DRAFTS = [
    ({}, {"head_dim": 80}, "the model has 80"),
    ({"tp_size": 1}, {"num_attention_heads": 256}, "1 to 16 query heads"),
    ({}, {"torch_dtype": "float16"}, "computes in bfloat16"),
    ({}, {"dflash_config": {"mask_token_id": 1, "attention_sink_bias": True}}, "no attention sinks"),
    ({"speculative_draft_kv_cache_dtype": "fp8_e5m2"}, {}, "not fp8_e5m2"),
]


@pytest.mark.parametrize("given,config,reason", REFUSED_DRAFTS)
def test_drafts_that_it_refuses(declared, draft, given, config, reason):
    asked = {"speculative_algorithm": "DFLASH", "speculative_draft_attention_backend": "ddtree_sm120"}
    with pytest.raises(LaunchError, match=f"--speculative-draft-attention-backend ddtree_sm120: .*{reason}"):
        declared(**asked, **given, **draft(**config))


@pytest.mark.parametrize("given,config,reason", REFUSED_DRAFTS)
def test_drafts_for_which_another_is_chosen(declared, draft, caplog, given, config, reason):
    with caplog.at_level(logging.INFO, launch.logger.name):
        found = declared(speculative_algorithm="DFLASH", **given, **draft(**config))
    assert found == {"speculative_draft_attention_backend": "flashinfer"}
    assert re.search(f"does not attend the draft's block: .*{reason}", caplog.text)


@pytest.mark.parametrize("algorithm", ["EAGLE", "DSPARK", None])
def test_algorithms_that_it_does_not_draft_for(declared, draft, algorithm):
    with pytest.raises(LaunchError, match="DFLASH and DDTREE only"):
        declared(speculative_algorithm=algorithm, speculative_draft_attention_backend="ddtree_sm120", **draft())


def test_a_draft_that_cannot_be_read(declared, tmp_path):
    asked = {"speculative_algorithm": "DFLASH", "speculative_draft_attention_backend": "ddtree_sm120"}
    with pytest.raises(LaunchError, match="--speculative-draft-model-path cannot be read"):
        declared(**asked, speculative_draft_model_path=str(tmp_path / "absent"))
    with pytest.raises(LaunchError, match="names no draft model"):
        declared(**asked)


NGRAM = {"speculative_algorithm": "NGRAM"}


@pytest.fixture
def check(monkeypatch):
    def run(model=MODEL, **given) -> None:
        monkeypatch.setattr(launch, "resolving_view", lambda arguments: arguments)
        monkeypatch.setattr(launch, "resolved_view", lambda arguments: arguments)
        monkeypatch.setattr(launch, "model_config_of", lambda arguments: model)
        launch.check_launch(Arguments(**given))

    return run


@pytest.mark.parametrize(
    "given,reason",
    [
        ({"kv_cache_dtype": "fp8_e4m3"}, "--kv-cache-dtype"),
        ({"quantization": "modelopt_fp4", "hf_quant_config": {"kv_cache_quant_algo": "FP8"}}, "--kv-cache-dtype bf16"),
        ({"hf_config": SimpleNamespace(architectures=["DeepseekV32ForCausalLM"], index_topk=2048)}, "backend dsa"),
        ({"decode_attention_backend": "triton"}, "--prefill-attention-backend flashinfer"),
        (
            {"prefill_attention_backend": "ddtree_sm120", "attention_backend": "triton"},
            "-backend is triton, which leaves",
        ),
        (
            {"decode_attention_backend": "triton", **NGRAM, "speculative_attention_mode": "decode"},
            "--prefill-attention-backend flashinfer",
        ),
        ({"enable_two_batch_overlap": True, "speculative_algorithm": "EAGLE"}, "leave --enable-two-batch-overlap out"),
        ({"tp_size": 1, "num_attention_heads": 192}, "--tp-size"),
        ({"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 300}, "--speculative-num-draft-tokens"),
        ({"page_size": 128}, "--page-size"),
        ({"attention_arch": AttentionArch.MHA, "head_dim": 96}, "choose --attention-backend triton"),
        ({"page_size": 128, "attention_backend": "triton", "decode_attention_backend": "ddtree_sm120"}, "--page-size"),
    ],
)
def test_refused_at_launch(check, given, reason):
    model = SimpleNamespace(**{name: given.pop(name, value) for name, value in vars(MODEL).items()})
    with pytest.raises(LaunchError, match=reason):
        check(model, **given)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"device": "cpu", "page_size": 128},
        {"device": "cpu", "decode_attention_backend": "torch_native"},
        {"attention_backend": "triton"},
        # The verify is then the prefill backend's.
        {"decode_attention_backend": "triton", **NGRAM},
        {"enable_two_batch_overlap": True},
        {"enable_two_batch_overlap": True, **NGRAM},
    ],
)
def test_not_refused_at_launch(check, given):
    check(**given)


@pytest.mark.parametrize(
    "here,change,chosen",
    [
        (True, {}, "ddtree_sm120"),
        (False, {}, None),
        (True, {"kv_cache_dtype": "fp8_e4m3"}, None),
        (True, {"quantization": "modelopt_fp4", "hf_quant_config": {"kv_cache_quant_algo": "FP8"}}, None),
        (True, {"attention_arch": AttentionArch.MHA}, None),
    ],
)
def test_default_on_sm_120(monkeypatch, here, change, chosen):
    monkeypatch.setattr(launch, "is_sm120", lambda: False)
    monkeypatch.setattr(launch, "is_sm121", lambda: here)
    monkeypatch.setattr(launch, "mambaish_config", lambda config: None)
    monkeypatch.setattr(launch, "resolving_view", lambda arguments: arguments)
    model = SimpleNamespace(**{name: change.pop(name, value) for name, value in vars(MODEL).items()})
    assert launch.default_backend(Arguments(attention_backend=None, **change), model) == chosen


class _Reached(Exception):
    pass


def _reached(*arguments):
    raise _Reached


def test_upstream_asks_before_it_resolves_speculation(monkeypatch):
    monkeypatch.setattr(launch, "resolve_beside", _reached)
    with pytest.raises(_Reached):
        speculative_hook.handle_speculative_decoding(SimpleNamespace())


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 128,
    "max_position_embeddings": 512,
}


@pytest.fixture
def resolve(tmp_path):
    """``resolve(*arguments)``: the resolved server arguments of a CPU server; only the config exists."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))

    def run(*arguments: str):
        server_args = prepare_server_args(["--model-path", str(tmp_path), "--device", "cpu", *arguments])
        server_args.resolve_once()
        return resolved_view(server_args)

    return run


def test_upstream_checks_the_resolved_arguments(monkeypatch, resolve):
    monkeypatch.setattr(launch, "check_launch", _reached)
    with pytest.raises(_Reached):
        resolve("--attention-backend", "ddtree_sm120")


def test_eagle_tree_with_pages(monkeypatch, resolve, tmp_path):
    eagle = (
        "--page-size 16 --speculative-algorithm EAGLE --speculative-eagle-topk 4 --speculative-num-steps 3 "
        f"--speculative-num-draft-tokens 8 --speculative-draft-model-path {tmp_path}"
    ).split()
    resolved = resolve("--attention-backend", "ddtree_sm120", *eagle)
    assert (resolved.page_size, resolved.speculative_eagle_topk) == (16, 4)
    with pytest.raises(ValueError, match="page_size"):
        resolve("--attention-backend", "torch_native", *eagle)
