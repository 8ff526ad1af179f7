# SPDX-License-Identifier: Apache-2.0
"""No key of the server in what it tells about itself."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from sglang.srt.utils.server_info_keys import REDACTED, without_keys

COMMANDS = {
    "--model-path m --admin-api-key sesame --port 1": f"--model-path m --admin-api-key {REDACTED} --port 1",
    "--api-key=sesame": f"--api-key={REDACTED}",
    "--admin-api-key 'ses ame' --api-key sesame": f"--admin-api-key {REDACTED} --api-key {REDACTED}",
    "--ssl-keyfile-password sesame --ssl-keyfile k": f"--ssl-keyfile-password {REDACTED} --ssl-keyfile k",
    "--model-path m": "--model-path m",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_command_line(command):
    assert without_keys({"launch_command": command})["launch_command"] == COMMANDS[command]


def test_values_at_every_depth():
    info = {"api_key": None, "admin_api_key": "sesame", "internal_states": [{"admin_api_key": "sesame", "port": 1}]}
    assert without_keys(info) == {
        "api_key": None,
        "admin_api_key": REDACTED,
        "internal_states": [{"admin_api_key": REDACTED, "port": 1}],
    }
    assert info["admin_api_key"] == "sesame"


@pytest.fixture
def arguments() -> SimpleNamespace:
    return SimpleNamespace(
        resolved_dict=lambda: {"admin_api_key": "sesame", "api_key": "open", "port": 1},
        launch_command="--admin-api-key sesame --api-key open",
        kv_events_config=None,
    )


def test_server_info_of_every_transport(arguments, monkeypatch):
    from sglang.srt.utils import common

    monkeypatch.setattr(common, "describe_kv_events_publisher", lambda arguments: None)
    told = str(common.build_server_info(arguments, {}))
    assert "sesame" not in told and "open" not in told and REDACTED in told
