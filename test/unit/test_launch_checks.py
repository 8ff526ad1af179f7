# SPDX-License-Identifier: Apache-2.0
"""Refusals of a launch by the functions that make them; ``test/server/test_server_wrong_use.py`` launches."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest
import sglang  # noqa: F401  first, for the CPU engine
from sglang.srt.launch_checks import LaunchError, check_model_paths, check_port
from sglang.srt.launch_checks import port as port_module


@pytest.mark.parametrize("algorithm", ["DDTREE", "ddtree", "DFlash"])
def test_a_block_drafter_needs_a_draft(algorithm):
    """However it is spelt: SGLang takes any case."""
    arguments = SimpleNamespace(
        model_path="owner/name",
        tokenizer_path=None,
        speculative_draft_model_path=None,
        speculative_algorithm=algorithm,
    )
    with pytest.raises(LaunchError, match="--speculative-draft-model-path"):
        check_model_paths(arguments)
    arguments.speculative_draft_model_path = "owner/draft"
    check_model_paths(arguments)


@pytest.mark.parametrize(
    "error", [socket.gaierror(-2, "Name or service not known"), PermissionError(13, "Permission denied")]
)
def test_an_address_that_cannot_be_used_names_the_remedy(monkeypatch, error):
    def refuse(host, port):
        raise error

    monkeypatch.setattr(port_module, "resolving_view", lambda arguments: arguments)
    monkeypatch.setattr(port_module, "_bind", refuse)
    with pytest.raises(LaunchError, match=rf"--host h --port 80 .*{error.strerror}\. --host takes an address of this"):
        check_port(SimpleNamespace(node_rank=0, host="h", port=80))
