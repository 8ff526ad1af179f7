# SPDX-License-Identifier: Apache-2.0
"""Which attention backend an MLA model gets, and why."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import sglang  # noqa: F401  first, for the CPU engine
import torch
from sglang.srt.configs.model_config import AttentionArch
from sglang.srt.launch_checks import which_backend
from sglang.srt.layers.attention.ddtree_sm120 import launch, requirements


def test_on_a_cpu():
    level = logging.getLogger().level
    answer = which_backend.ask()
    assert answer["backend"] in ("torch_native", "intel_amx")
    assert "on device cpu it runs where --attention-backend ddtree_sm120 asks for it" in answer["why"][0]
    assert logging.getLogger().level == level


def test_a_flag_decides():
    assert which_backend.ask("--attention-backend", "ddtree_sm120")["backend"] == "ddtree_sm120"


def test_the_choice_is_explained(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    told = which_backend._where_it_is_the_default
    assert told("triton", "cuda").endswith("on sm_120 and sm_121; this card is sm_90")
    assert told("ddtree_sm120", "cuda") == "ddtree_sm120 is the default of MLA models on sm_120 and sm_121"


def test_what_the_backend_logs_is_among_the_reasons(monkeypatch):
    """On sm_120 without its kernels it is not the default, and says why."""
    monkeypatch.setattr(launch, "is_sm120", lambda: True)
    monkeypatch.setattr(requirements, "package_is_installed", lambda: False)
    monkeypatch.setattr("sglang.srt.server_args.prepare_server_args", _launch_that_asks)
    monkeypatch.setattr("sglang.srt.arg_groups.model_override_base.resolved_view", lambda server_args: server_args)
    monkeypatch.setattr(launch, "_demands_of", lambda *_: DEMANDS)
    monkeypatch.setattr(launch, "mambaish_config", lambda _: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (12, 0))
    first, second = which_backend.ask()["why"]
    assert first.endswith("this card is sm_120")
    assert second.startswith("ddtree_sm120 is not chosen by default: it needs the package sglang-kernel-ddtree")


DEMANDS = requirements.Demands(True, 512, 64, torch.bfloat16, "auto", heads=8, nodes=1, page_size=1)


def _launch_that_asks(arguments):
    class Arguments:
        attention_backend, device = "triton", "cuda"

        def resolve_once(self):
            launch.default_backend(self, SimpleNamespace(attention_arch=AttentionArch.MLA))

    return Arguments()
