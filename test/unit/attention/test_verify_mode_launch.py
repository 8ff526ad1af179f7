# SPDX-License-Identifier: Apache-2.0
"""What a launch may ask of the cutover switch, and what is refused before a process is started."""

from __future__ import annotations

import inspect

import pytest
from sglang.srt.arg_groups.fields.exec_ import ExecKernel
from sglang.srt.environ import envs
from sglang.srt.launch_checks.error import LaunchError
from sglang.srt.layers.attention.ddtree_sm120.verify_mode import launch_check
from sglang.srt.layers.attention.ddtree_sm120.verify_mode.launch_check import check_verify_mode
from sglang.srt.server_args import ServerArgs


@pytest.fixture
def declared(monkeypatch):
    """``declared(...)``: fields that the check resolves for such arguments."""

    def check(**arguments) -> dict:
        values = {
            "attention_backend": "ddtree_sm120",
            "prefill_attention_backend": None,
            "decode_attention_backend": None,
            "ddtree_verify": None,
            "ddtree_verify_modes": None,
            "admin_api_key": None,
            **arguments,
        }
        found: dict = {}
        monkeypatch.setattr(launch_check, "resolved_view", lambda _: type("View", (), values))
        monkeypatch.setattr(launch_check, "declare_resolution", lambda *_, **fields: found.update(fields))
        check_verify_mode(None)
        return found

    return check


def test_the_flags_have_their_defaults():
    assert ExecKernel().ddtree_verify is None
    assert ExecKernel().ddtree_verify_modes is None


def test_the_check_runs_when_arguments_are_resolved():
    source = inspect.getsource(ServerArgs.resolve_once)
    assert source.index("run_resolution_pipeline(self)") < source.index("check_verify_mode(self)")


def test_the_variable_stands_in_for_the_flag(declared):
    with envs.SGLANG_DDTREE_VERIFY.override("validate"):
        assert declared() == {"ddtree_verify": "validate"}
        assert declared(decode_attention_backend="ddtree_sm120", attention_backend="triton") != {}
        assert declared(ddtree_verify="off") == {}, "the flag wins"
        assert declared(attention_backend="triton") == {}
    assert declared() == {}


@pytest.mark.parametrize(
    "arguments,message",
    [
        ({"ddtree_verify": "on", "attention_backend": "triton"}, "--ddtree-verify belongs to --attention-backend d"),
        ({"ddtree_verify_modes": "on", "attention_backend": "triton"}, "--ddtree-verify-modes belongs to"),
        ({"ddtree_verify_modes": "on,of"}, "--ddtree-verify-modes: there is no mode 'of'"),
        ({"ddtree_verify": "on", "ddtree_verify_modes": "off"}, "on is not among --ddtree-verify-modes off"),
    ],
)
def test_refusals(declared, arguments, message):
    with pytest.raises(LaunchError, match=message):
        declared(**arguments)


def test_a_wrong_variable_is_named(declared):
    refused = pytest.raises(LaunchError, match="SGLANG_DDTREE_VERIFY: there is no")
    with envs.SGLANG_DDTREE_VERIFY.override("yes"), refused:
        declared()
