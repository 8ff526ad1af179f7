# SPDX-License-Identifier: Apache-2.0
"""Each patch that lets upstream's speculative decoding run on a CPU, at the place that it edits."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import sglang  # noqa: F401  first, for the CPU engine
import torch
from sglang.srt.arg_groups.model_override_base import resolved_view
from sglang.srt.mem_cache import allocation
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.model_executor.model_runner import ModelRunner
from sglang.srt.models import dflash
from sglang.srt.server_args import prepare_server_args
from sglang.srt.speculative import dflash_utils, eagle_utils
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "vocab_size": 128,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "float32",
}
DRAFT = LLAMA | {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "num_hidden_layers": 1,
    "block_size": 8,
    "num_target_layers": 4,
    "dflash_config": {"mask_token_id": 3, "target_layer_ids": [0, 1]},
}


@pytest.fixture
def resolve(tmp_path):
    """``resolve(algorithm)``: the resolved server arguments of a CPU server; only the configs exist."""
    for name, config in (("target", LLAMA), ("draft", DRAFT)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))

    def run(algorithm: str, *arguments: str):
        draft = ["--speculative-draft-model-path", str(tmp_path / "draft")] if algorithm == "DFLASH" else []
        server_args = prepare_server_args(
            [
                "--model-path",
                str(tmp_path / "target"),
                "--device",
                "cpu",
                "--speculative-algorithm",
                algorithm,
                *draft,
                *arguments,
            ]
        )
        server_args.resolve_once()
        return resolved_view(server_args)

    return run


def test_dflash_is_accepted_on_a_cpu(resolve):
    resolved = resolve("DFLASH", "--attention-backend", "ddtree_sm120")
    assert resolved.speculative_num_draft_tokens == 8
    assert resolved.speculative_draft_attention_backend == "ddtree_sm120"


@pytest.mark.parametrize("algorithm", ["NGRAM", "DFLASH"])
def test_overlap_schedule_stays_on(resolve, algorithm):
    assert resolve(algorithm, "--attention-backend", "ddtree_sm120").disable_overlap_schedule is False


def test_overlap_schedule_can_be_switched_off(resolve):
    assert (
        resolve("NGRAM", "--attention-backend", "ddtree_sm120", "--disable-overlap-schedule").disable_overlap_schedule
        is True
    )


def test_overlap_schedule_of_another_backend_is_left_to_upstream(resolve):
    assert resolve("NGRAM", "--attention-backend", "torch_native").disable_overlap_schedule is True


def test_idle_scheduler_sleeps(resolve):
    assert resolve("NGRAM", "--attention-backend", "ddtree_sm120").sleep_on_idle is True


def test_ngram_tree_with_pages(resolve):
    resolved = resolve("NGRAM", "--attention-backend", "ddtree_sm120", "--page-size", "16")
    assert (resolved.page_size, resolved.speculative_eagle_topk > 1) == (16, True)
    with pytest.raises(ValueError, match="page_size"):
        resolve("NGRAM", "--attention-backend", "torch_native", "--page-size", "16")


class _Reached(Exception):
    """Raised by what comes right after the edited statement."""


def test_dflash_step_records_streams_of_device_tensors_only():
    class Worker:
        device = "cpu"

        def _validate_phase1_sampling_support(self, batch):
            pass

        @property
        def target_worker(self):
            raise _Reached

    batch = SimpleNamespace(
        forward_mode=ForwardMode.DECODE, is_extend_in_batch=False, spec_info=None, seq_lens=torch.tensor([3, 4])
    )
    with pytest.raises(_Reached):
        DFlashWorkerV2.forward_batch_generation(Worker(), batch)


class _Rotary:
    """Rotary embedding by an angle of zero."""

    cos_sin_cache = torch.ones(4, 2)

    def __call__(self, positions, q, k):
        return q, k


def test_dflash_attention_runs_in_bfloat16(monkeypatch):
    """The layer without its kernels: projections and norms pass through, so attention gets the parts of qkv."""
    monkeypatch.setattr(dflash, "apply_qk_norm", lambda q, k, *rest, **options: (q, k))
    qkv = torch.randn(3, 8, dtype=torch.bfloat16)
    layer = SimpleNamespace(
        use_table_qk_norm_rope=True,
        qkv_proj=lambda hidden: (qkv, None),
        q_norm=SimpleNamespace(weight=torch.ones(2, dtype=torch.bfloat16), variance_epsilon=1e-6),
        k_norm=SimpleNamespace(weight=torch.ones(2, dtype=torch.bfloat16)),
        rotary_emb=_Rotary(),
        num_heads=2,
        num_kv_heads=1,
        head_dim=2,
        q_size=4,
        kv_size=2,
        use_gemma_norm=False,
        v_scale=None,
        attention_sink_bias=None,
        attn=lambda q, k, v, batch: torch.cat([v, k, q], dim=-1),
        apply_attention_output=lambda out, hidden: out,
        o_proj=lambda out: (out, None),
    )
    out = dflash.DFlashAttention.forward(layer, torch.arange(3), qkv, None)
    assert torch.equal(out, torch.cat([qkv[:, 6:], qkv[:, 4:6], qkv[:, :4]], dim=-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_input_embeds_keep_the_dtype_of_the_model(dtype):
    runner = SimpleNamespace(_pp_kwargs=lambda proxy: {}, dtype=dtype, is_generation=True)
    embeds = torch.full((2, 4), 1 / 3)
    batch = SimpleNamespace(input_embeds=embeds, replace_embeds=None, replace_positions=None)
    kwargs = ModelRunner._extend_forward_kwargs(runner, batch, None)
    assert torch.equal(kwargs["input_embeds"], embeds.to(dtype))
    assert kwargs["input_embeds"].dtype == dtype


def test_last_loc_on_a_cpu(monkeypatch):
    monkeypatch.setattr(allocation, "attention_backends", lambda: ("ddtree_sm120", "ddtree_sm120"))
    table = torch.arange(40, dtype=torch.int32).view(4, 10)
    locations = allocation.get_last_loc(table, torch.tensor([2, 0, 3]), torch.tensor([1, 0, 10]))
    assert locations.tolist() == [20, -1, 39]


def test_tree_sampler_is_bound():
    assert dflash_utils.tree_speculative_sampling_target_only is not None
    assert dflash_utils.is_dflash_sampling_verify_available()


def test_probability_filters_are_bound():
    probs = torch.tensor([[0.1, 0.2, 0.7]])
    by_k = dflash_utils.top_k_renorm_prob(probs, torch.tensor([2]))
    by_p = dflash_utils.top_p_renorm_prob(probs, torch.tensor([0.5]))
    torch.testing.assert_close(by_k, torch.tensor([[0.0, 2 / 9, 7 / 9]]))
    torch.testing.assert_close(by_p, torch.tensor([[0.0, 0.0, 1.0]]))


@pytest.fixture
def eagle_sample(monkeypatch):
    """``eagle_sample(logits, **sampling)`` on a tree of the root alone; the token drawn behind each root."""
    spec = SimpleNamespace(
        speculative_use_rejection_sampling=False,
        speculative_accept_threshold_single=1.0,
        speculative_accept_threshold_acc=1.0,
    )
    one_rank = SimpleNamespace(tp_group=SimpleNamespace(world_size=1))
    monkeypatch.setattr(eagle_utils, "get_spec", lambda: spec)
    monkeypatch.setattr("sglang.srt.runtime_context.get_parallel", lambda: one_rank)
    monkeypatch.setattr("sglang.srt.layers.dp_attention.is_dp_attention_enabled", lambda: False)

    def run(logits: torch.Tensor, temperature: float, top_k: int = 1 << 30, top_p: float = 1.0) -> torch.Tensor:
        batch_size = logits.shape[0]
        none = torch.full((batch_size, 1), -1)
        verify_input = SimpleNamespace(
            draft_token=torch.zeros(batch_size, dtype=torch.int64),
            draft_token_num=1,
            max_tree_depth=1,
            tree_topk=1,
            retrieve_index=torch.arange(batch_size)[:, None],
            retrieve_next_token=none,
            retrieve_next_sibling=none,
        )
        sampling_info = SimpleNamespace(
            is_all_greedy=temperature == 0,
            temperatures=torch.full((batch_size, 1), temperature),
            top_ks=torch.full((batch_size,), top_k),
            top_ps=torch.full((batch_size,), top_p),
            need_top_k_sampling=top_k < logits.shape[1],
            need_top_p_sampling=top_p < 1,
            need_min_p_sampling=False,
            sampling_seed=None,
            acc_additive_penalties=None,
            acc_scaling_penalties=None,
            logit_bias=None,
            has_watermark_candidates=False,
        )
        batch = SimpleNamespace(
            device="cpu",
            forward_mode=ForwardMode.TARGET_VERIFY,
            seq_lens=torch.full((batch_size,), 5),
            sampling_info=sampling_info,
            return_logprob=False,
        )
        predict, accept_lens, _ = eagle_utils.eagle_sample(
            verify_input, batch, SimpleNamespace(next_token_logits=logits.clone())
        )
        assert accept_lens.tolist() == [1] * batch_size
        return predict

    return run


LOGITS = torch.tensor([2.0, 1.0, 0.0, 1.5]).expand(20_000, -1)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_eagle_sample_follows_the_temperature(eagle_sample, temperature):
    torch.manual_seed(1)
    counts = eagle_sample(LOGITS, temperature).bincount(minlength=4).double()
    expected = LOGITS[0].double().div(temperature).softmax(-1) * 20_000
    # Chi-square with 3 degrees of freedom: 99.99 % lie below 21.1.
    assert float(((counts - expected) ** 2 / expected).sum()) < 21.1


def test_eagle_sample_follows_top_k_and_top_p(eagle_sample):
    assert set(eagle_sample(LOGITS, 1.0, top_k=2).tolist()) == {0, 3}
    assert set(eagle_sample(LOGITS, 1.0, top_p=0.3).tolist()) == {0}


def test_eagle_sample_is_greedy_at_temperature_zero(eagle_sample):
    assert set(eagle_sample(LOGITS, 0.0).tolist()) == {0}
