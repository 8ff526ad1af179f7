# SPDX-License-Identifier: Apache-2.0
"""Is ``ddtree_sm120`` in every table that SGLang looks a backend up in?"""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import sglang  # noqa: F401  first, for the CPU engine
from sglang.srt.arg_groups import choices
from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
from sglang.srt.layers.attention.ddtree_sm120_backend import BACKEND_NAME
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.models.deepseek_common import utils
from sglang.srt.models.deepseek_common.attention_backend_handler import AttentionBackendRegistry
from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import AttnForwardMethod


def test_backend_is_a_choice():
    assert choices.ATTENTION_BACKEND_CHOICES.count(BACKEND_NAME) == 1


@pytest.mark.parametrize("engine,listed", [("1", True), ("0", False)])
def test_drafters_may_use_the_backend_on_a_cpu_only(engine, listed):
    """A GPU's drafter has faster backends; this one would be refused there."""
    code = "from sglang.srt.arg_groups.choices import DRAFT_ATTENTION_BACKEND_CHOICES as c; print('ddtree_sm120' in c)"
    output = subprocess.check_output(
        [sys.executable, "-c", code], env=os.environ | {"SGLANG_USE_CPU_ENGINE": engine}, text=True
    )
    assert output.split()[-1] == str(listed)


def test_factory_is_registered():
    runner = SimpleNamespace(device="cuda")
    with pytest.raises(RuntimeError, match="CUDA kernel not built yet"):
        ATTENTION_BACKENDS[BACKEND_NAME](runner)


def test_mla_parts_come_apart():
    assert utils.FORWARD_ABSORB_CORE_ATTENTION_BACKENDS.count(BACKEND_NAME) == 1


@pytest.mark.parametrize("mode", [ForwardMode.EXTEND, ForwardMode.MIXED, ForwardMode.DECODE, ForwardMode.TARGET_VERIFY])
def test_mla_dispatch_is_absorbed_in_every_mode(mode):
    batch = SimpleNamespace(forward_mode=mode, extend_prefix_lens_cpu=[0])
    handler = AttentionBackendRegistry.get_handler(BACKEND_NAME)
    assert handler is not AttentionBackendRegistry.get_handler("triton")
    assert handler(SimpleNamespace(), batch) == AttnForwardMethod.MLA
