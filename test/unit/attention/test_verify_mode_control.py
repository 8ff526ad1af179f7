# SPDX-License-Identifier: Apache-2.0
"""From the endpoint to the scheduler and back: messages, answers, who may ask, and what is published."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sglang.srt.entrypoints import http_server
from sglang.srt.layers.attention.ddtree_sm120.verify_mode import control as control_module
from sglang.srt.layers.attention.ddtree_sm120.verify_mode import endpoint, report
from sglang.srt.layers.attention.ddtree_sm120.verify_mode.control import VerifyControl
from sglang.srt.layers.attention.ddtree_sm120.verify_mode.mode import VerifyMode
from sglang.srt.layers.attention.ddtree_sm120.verify_mode.switch import REPORT_EVERY_STEPS, VerifySwitch
from sglang.srt.layers.attention.ddtree_sm120.verify_mode.ulp import UlpTotals
from sglang.srt.managers.io_struct import (
    DDTreeVerifyReqInput,
    DDTreeVerifyReqOutput,
    msgpack_decode,
    msgpack_encode,
)
from sglang.srt.managers.tokenizer_control_mixin import _COMMUNICATOR_SPECS
from sglang.srt.utils.auth import AuthLevel, _get_auth_level_from_app_and_scope, add_api_key_middleware

OFF, VALIDATE, ON = VerifyMode
LABELS = {"model_name": "m", "tp_rank": 0}


def _control(mode=ON, modes=tuple(VerifyMode), labels=LABELS) -> tuple[VerifySwitch, VerifyControl]:
    switch = VerifySwitch(mode, modes, {OFF: "theirs", ON: "ours"}, UlpTotals(2, 0, "cpu"))
    return switch, VerifyControl(switch, labels, None, True)


def _sample(name: str, **labels) -> float | None:
    from prometheus_client import REGISTRY

    every = {key: str(value) for key, value in {**LABELS, **labels}.items()}
    return REGISTRY.get_sample_value(f"sglang:ddtree_verify_{name}", every)


def _run_steps(switch: VerifySwitch, steps: int, error: float = 0.0) -> None:
    served = torch.ones(3, 2, 64)
    for _ in range(steps):
        switch.begin_step(eager=False)
        for layer in range(2):
            switch.totals.add(layer, served, served + error * layer, torch.zeros(3, dtype=torch.int32))


# -- messages ---------------------------------------------------------------------


def test_the_messages_travel():
    request = DDTreeVerifyReqInput(mode="on")
    assert msgpack_decode(msgpack_encode(request)) == request
    _, control = _control(VALIDATE)
    answer = control.handle(DDTreeVerifyReqInput(mode=None))
    assert msgpack_decode(msgpack_encode(answer)) == answer


def test_the_tokenizer_manager_can_ask():
    assert ("ddtree_verify", DDTreeVerifyReqOutput) in _COMMUNICATOR_SPECS


# -- the scheduler's side ---------------------------------------------------------


def test_a_request_switches():
    switch, control = _control(ON)
    answer = control.handle(DDTreeVerifyReqInput(mode="validate"))
    assert answer.success and answer.previous == "on" and answer.state["mode"] == "validate"
    assert answer.state["validation"]["steps"] == 0
    assert switch.mode is VALIDATE
    assert [_sample("mode", mode=mode.value) for mode in VerifyMode] == [0, 1, 0]


@pytest.mark.parametrize("mode,message", [("of", "there is no mode 'of'"), ("off", "--ddtree-verify-modes off,on")])
def test_a_refused_request_changes_nothing(mode, message):
    switch, control = _control(ON, (ON,))
    answer = control.handle(DDTreeVerifyReqInput(mode=mode))
    assert not answer.success and message in answer.message
    assert switch.mode is ON and answer.state["mode"] == "on"


def test_another_backend_has_no_switch():
    control = VerifyControl(None, None, None, True)
    answer = control.handle(DDTreeVerifyReqInput(mode="on"))
    assert not answer.success and "--attention-backend ddtree_sm120" in answer.message and answer.state == {}
    state: dict = {}
    control.add_state(state)
    assert state == {}


def test_the_state_counts_what_was_compared():
    switch, control = _control(VALIDATE)
    assert switch.steps == 0
    _run_steps(switch, 5, error=3 * 2.0**-7)
    state: dict = {}
    control.add_state(state)
    validation = state["ddtree_verify"]["validation"]
    assert validation.pop("since") > 0
    assert validation == {
        "steps": 5,
        "rows": 5 * 2 * 6,
        "max_ulp": 3.0,
        "mean_ulp": 1.5,
        "rows_beyond_2_ulp": 5 * 6,
        "rows_not_finite": 0,
        "worst_layer": 1,
    }


def test_metrics_follow_one_report_behind_and_at_the_end():
    switch, control = _control(ON)
    control.handle(DDTreeVerifyReqInput(mode="validate"))
    _run_steps(switch, 2 * REPORT_EVERY_STEPS, error=2.0**-7)
    # A report comes before its step's layers are compared.
    assert _sample("steps") == REPORT_EVERY_STEPS
    assert _sample("rows") == (REPORT_EVERY_STEPS - 1) * 12
    assert (_sample("max_ulp"), _sample("mean_ulp"), _sample("rows_beyond_2_ulp")) == (1.0, 0.5, 0)
    control.handle(DDTreeVerifyReqInput(mode="off"))
    assert _sample("steps") == 2 * REPORT_EVERY_STEPS and _sample("rows") == 2 * REPORT_EVERY_STEPS * 12
    assert _sample("mode", mode="off") == 1


def test_a_new_count_drops_the_copy_of_the_old_one():
    switch, control = _control(VALIDATE)
    _run_steps(switch, REPORT_EVERY_STEPS, error=1.0)
    control.handle(DDTreeVerifyReqInput(mode="validate"))
    _run_steps(switch, 2 * REPORT_EVERY_STEPS)
    assert _sample("max_ulp") == 0


def test_leaving_before_the_first_step_publishes_nothing_of_the_last_time():
    switch, control = _control(VALIDATE)
    _run_steps(switch, 3, error=1.0)
    control.handle(DDTreeVerifyReqInput(mode="validate"))
    control.handle(DDTreeVerifyReqInput(mode="on"))
    assert [_sample(name) for name in ("steps", "rows", "max_ulp", "rows_beyond_2_ulp")] == [0, 0, 0, 0]


@pytest.mark.parametrize("mode", [None, "on"], ids=["shown", "left"])
def test_what_the_device_counts_is_awaited(monkeypatch, mode):
    """The steps run on a stream of their own: a copy on the scheduler's would say what was counted some steps ago."""
    switch, control = _control(VALIDATE)
    _run_steps(switch, 2)
    counted, seen = switch.totals.values, []

    class OnADevice:
        is_cuda, device = True, "cuda:0"

        def cpu(self) -> torch.Tensor:
            seen.append("copied")
            return counted

    monkeypatch.setattr(control_module.torch.cuda, "synchronize", lambda device: seen.append(f"awaited {device}"))
    switch.totals = SimpleNamespace(values=OnADevice(), first_layer=0)
    answer = control.handle(DDTreeVerifyReqInput(mode=mode))
    assert answer.state["validation"]["rows"] == 2 * 12
    assert seen == ["awaited cuda:0", "copied"] * (len(seen) // 2) and seen


def test_a_line_a_minute(monkeypatch, caplog):
    now = 1000.0
    monkeypatch.setattr(report.time, "monotonic", lambda: now)
    caplog.set_level("INFO")
    switch, _ = _control(VALIDATE, labels=None)
    for _ in range(4):
        now += 25
        _run_steps(switch, REPORT_EVERY_STEPS)
    lines = [record.message for record in caplog.records if "bf16 ulp" in record.message]
    assert len(lines) == 1 and "128 steps" in lines[0] and "0 rows beyond 2 ulp, 0 not finite" in lines[0]


def test_ranks_that_share_the_heads_are_joined(monkeypatch):
    switch = VerifySwitch(VALIDATE, tuple(VerifyMode), {OFF: "theirs", ON: "ours"}, UlpTotals(2, 0, "cpu"))
    group = object()
    control = VerifyControl(switch, None, group, True)
    _run_steps(switch, 1)

    def all_gather(parts, mine, group):
        parts[0].copy_(mine)
        parts[1].copy_(mine + 1)

    monkeypatch.setattr(control_module.torch.distributed, "get_world_size", lambda group: 2)
    monkeypatch.setattr(control_module.torch.distributed, "all_gather", all_gather)
    assert control.state()["validation"]["rows"] == 12 + 12 + 2


# -- the endpoint -----------------------------------------------------------------

KEY = "sesame"
STATE = {"mode": "on", "modes": ["on"]}


class Server:
    """The two routes behind SGLang's own key check."""

    def __init__(self, monkeypatch, *outputs: DDTreeVerifyReqOutput, key: str | None = KEY, workers: int = 1):
        self.asked: list[str | None] = []

        async def communicator(request):
            self.asked.append(request.mode)
            return list(outputs)

        manager = SimpleNamespace(auto_create_handle_loop=lambda: None, ddtree_verify_communicator=communicator)
        monkeypatch.setattr(http_server, "_global_state", SimpleNamespace(tokenizer_manager=manager))
        serving = SimpleNamespace(admin_api_key=key, tokenizer_worker_num=workers)
        monkeypatch.setattr(endpoint, "get_serving", lambda: serving)
        app = FastAPI()
        endpoint.add_routes(app)
        if key:
            add_api_key_middleware(app, api_key=None, admin_api_key=key)
        self.client = TestClient(app)

    def post(self, body, key: str | None = KEY):
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return self.client.post("/ddtree_verify", json=body, headers=headers)


def _output(**more) -> DDTreeVerifyReqOutput:
    return DDTreeVerifyReqOutput(**{"success": True, "previous": "off", "state": STATE, **more})


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_the_servers_routes_are_guarded(method):
    """As SGLang's key check sees the real app: a route that it cannot find counts as open."""
    scope = {"type": "http", "method": method, "path": endpoint.PATH, "root_path": "", "headers": []}
    assert _get_auth_level_from_app_and_scope(http_server.app, scope) is AuthLevel.ADMIN_OPTIONAL


def test_a_switch_is_answered(monkeypatch):
    server = Server(monkeypatch, _output())
    answer = server.post({"mode": "on"})
    assert answer.status_code == 200 and server.asked == ["on"]
    assert answer.json() == {"success": True, "message": "", "mode": "on", "previous": "off", "states": [STATE]}


def test_the_state_is_answered(monkeypatch):
    server = Server(monkeypatch, _output(), _output(state={"mode": "off", "modes": ["off"]}))
    answer = server.client.get("/ddtree_verify", headers={"Authorization": f"Bearer {KEY}"})
    assert answer.status_code == 200 and server.asked == [None]
    assert answer.json()["mode"] == "mixed" and "previous" not in answer.json() and len(answer.json()["states"]) == 2


@pytest.mark.parametrize("key", [None, "wrong"])
def test_the_key_is_asked_for(monkeypatch, key):
    server = Server(monkeypatch, _output())
    assert server.post({"mode": "on"}, key=key).status_code == 401
    assert server.client.get("/ddtree_verify").status_code == 401
    assert server.asked == []


def test_without_an_admin_key_nobody_may_switch(monkeypatch):
    server = Server(monkeypatch, _output(), key=None)
    answer = server.post({"mode": "on"})
    assert answer.status_code == 400 and "--admin-api-key" in answer.json()["error"] and server.asked == []
    assert server.client.get("/ddtree_verify").status_code == 200


def test_nor_where_no_key_is_checked(monkeypatch):
    server = Server(monkeypatch, _output(), workers=2)
    assert server.post({"mode": "on"}).status_code == 400 and server.asked == []


@pytest.mark.parametrize("body", [[], {}, {"mode": 1}, {"mode": "on", "now": True}, "on"])
def test_other_bodies_are_refused(monkeypatch, body):
    server = Server(monkeypatch, _output())
    assert server.post(body).status_code == 400 and server.asked == []


def test_a_refusal_is_400(monkeypatch):
    server = Server(monkeypatch, _output(success=False, message="not prepared"))
    answer = server.post({"mode": "off"})
    assert answer.status_code == 400 and answer.json()["message"] == "not prepared" and answer.json()["mode"] == "on"


def test_a_server_with_another_backend(monkeypatch):
    server = Server(monkeypatch, DDTreeVerifyReqOutput(success=False, message="not ddtree_sm120"))
    answer = server.post({"mode": "off"})
    assert answer.status_code == 400 and answer.json() == {"success": False, "message": "not ddtree_sm120"}
