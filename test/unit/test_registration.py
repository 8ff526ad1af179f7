# SPDX-License-Identifier: Apache-2.0
"""Is ``ddtree_sm120`` in every table that SGLang looks a backend up in?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import sglang  # noqa: F401  first, for the CPU engine
from sglang.srt.arg_groups import choices, model_override_base
from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
from sglang.srt.layers.attention.ddtree_sm120 import describe, launch, mla_dispatch
from sglang.srt.layers.attention.ddtree_sm120_backend import BACKEND_NAME
from sglang.srt.managers.scheduler_components import internal_state
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.models.deepseek_common import utils
from sglang.srt.models.deepseek_common.attention_backend_handler import AttentionBackendRegistry
from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import AttnForwardMethod


def test_backend_is_a_choice():
    assert choices.ATTENTION_BACKEND_CHOICES.count(BACKEND_NAME) == 1


@pytest.fixture(scope="module", params=["1", "0"], ids=["cpu", "gpu"])
def listed_in(request) -> tuple[bool, dict[str, bool]]:
    """Whether the engine is the CPU's, and the lists that have the backend with it."""
    code = (
        "import json; from sglang.srt.arg_groups import choices; "
        "print(json.dumps({k: 'ddtree_sm120' in v for k, v in vars(choices).items() if isinstance(v, list)}))"
    )
    output = subprocess.check_output(
        [sys.executable, "-c", code], env=os.environ | {"SGLANG_USE_CPU_ENGINE": request.param}, text=True
    )
    return request.param == "1", json.loads(output.splitlines()[-1])


def test_drafters_may_use_the_backend(listed_in):
    _, listed = listed_in
    assert listed["DRAFT_ATTENTION_BACKEND_CHOICES"]


def test_chunked_prefix_cache_stays_on_with_a_gpu(listed_in):
    """The prefill on a CPU reads no chunks."""
    cpu, listed = listed_in
    assert listed["CHUNKED_PREFIX_CACHE_SUPPORTED_ATTENTION_BACKENDS"] is not cpu


def test_factory_is_registered():
    runner = SimpleNamespace(device="npu")
    with pytest.raises(RuntimeError, match="runs on a CUDA GPU and on a CPU"):
        ATTENTION_BACKENDS[BACKEND_NAME](runner)


def test_mla_parts_come_apart():
    assert utils.FORWARD_ABSORB_CORE_ATTENTION_BACKENDS.count(BACKEND_NAME) == 1


MODES = [ForwardMode.EXTEND, ForwardMode.MIXED, ForwardMode.DECODE, ForwardMode.TARGET_VERIFY]


def _dispatch(monkeypatch, mode: ForwardMode, backend: object) -> AttnForwardMethod:
    monkeypatch.setattr(mla_dispatch, "get_attn_backend", lambda: backend)
    batch = SimpleNamespace(forward_mode=mode, extend_prefix_lens_cpu=[0])
    return AttentionBackendRegistry.get_handler(BACKEND_NAME)(SimpleNamespace(), batch)


@pytest.mark.parametrize("mode", MODES)
def test_mla_dispatch_is_absorbed_in_every_mode(monkeypatch, mode):
    assert AttentionBackendRegistry.get_handler(BACKEND_NAME) is not AttentionBackendRegistry.get_handler("triton")
    assert _dispatch(monkeypatch, mode, SimpleNamespace()) == AttnForwardMethod.MLA


@pytest.mark.parametrize("wrapped_in", [None, "full_attn_backend", "primary", "prefill_backend"])
@pytest.mark.parametrize("mode", MODES)
def test_mla_dispatch_of_a_prefill_is_the_delegates(monkeypatch, mode, wrapped_in):
    """On a GPU: what the delegate's own name would dispatch to, whatever the backend is wrapped in."""
    backend = SimpleNamespace(prefill_backend_name="other")
    if wrapped_in is not None:
        backend = SimpleNamespace(**{wrapped_in: backend})
    monkeypatch.setitem(AttentionBackendRegistry._handlers, "other", lambda attn, batch: AttnForwardMethod.MHA_ONE_SHOT)
    expected = AttnForwardMethod.MHA_ONE_SHOT if mode.is_extend_without_speculative() else AttnForwardMethod.MLA
    assert _dispatch(monkeypatch, mode, backend) == expected


@pytest.mark.parametrize("uses_mla,chosen", [(True, "ddtree_sm120"), (False, "triton")])
def test_default_backend_of_mla_models(monkeypatch, uses_mla, chosen):
    """Upstream's function asks ours about MLA models, and takes the answer."""
    monkeypatch.setattr(launch, "default_backend", lambda server_args, model_config: BACKEND_NAME)
    platform = SimpleNamespace(is_hopper_with_cuda_12_3=False, is_sm100=False, is_hip=False, has_flashinfer=False)
    monkeypatch.setattr(model_override_base, "get_platform", lambda: platform)
    monkeypatch.setattr(model_override_base, "resolving_view", lambda server_args: server_args)
    config = SimpleNamespace(hf_config=SimpleNamespace(architectures=["X"]))
    assert model_override_base.get_default_attn_backend(SimpleNamespace(), uses_mla, config) == chosen


@pytest.mark.parametrize(
    "wrapped_in",
    [(), ("decode_backend",), ("primary",), ("full_attn_backend",), ("full_attn_backend", "decode_backend")],
)
def test_a_wrapped_backend_is_described(wrapped_in):
    """Two-batch overlap, models with recurrent layers and another prefill backend put the backend into another."""
    backend = SimpleNamespace(describe=lambda: {"decode_and_verify": "a kernel"})
    for key in reversed(wrapped_in):
        backend = SimpleNamespace(**{key: backend}, prefill_backend="fa2")
    state: dict = {}
    describe.describe_backend(state, backend, None)
    assert state == {"ddtree_sm120": {"decode_and_verify": "a kernel"}}


def test_a_verify_on_the_prefill_backend_is_described():
    """--speculative-attention-mode prefill; with decode a launch is refused."""
    ours = SimpleNamespace(describe=lambda: {"decode_and_verify": "a kernel"})
    state: dict = {}
    describe.describe_backend(state, SimpleNamespace(prefill_backend=ours, decode_backend=SimpleNamespace()), None)
    assert state["ddtree_sm120"] == {"decode_and_verify": "a kernel"}


def test_other_backends_are_not_described():
    state: dict = {}
    describe.describe_backend(state, SimpleNamespace(prefill_backend="fa2", decode_backend="fa2"), None)
    assert state == {}


def test_server_info_describes_the_backend(monkeypatch):
    monkeypatch.setattr(internal_state, "get_parallel", lambda: SimpleNamespace(dp_size=1, tp_size=1, pp_size=1))
    monkeypatch.setattr(internal_state, "compute_world_size", lambda **sizes: 1)
    backend = SimpleNamespace(describe=lambda: {"prefill": "flashinfer"})
    runner = SimpleNamespace(attn_backend=backend)
    draft_runner = SimpleNamespace(attn_backend=SimpleNamespace(describe=lambda: {"draft_block": "a kernel"}))
    scheduler = SimpleNamespace(
        startup_time=0,
        max_running_requests=1,
        metrics_reporter=SimpleNamespace(last_gen_throughput=0),
        tp_worker=SimpleNamespace(model_runner=runner),
        draft_worker=SimpleNamespace(draft_model_runner=draft_runner),
    )
    state = {}
    internal_state.SchedulerInternalStateController(scheduler, False)._add_topology(state)
    assert state["ddtree_sm120"] == {"prefill": "flashinfer", "draft_block": "a kernel"}
