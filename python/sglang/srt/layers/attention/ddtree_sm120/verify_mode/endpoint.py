# SPDX-License-Identifier: Apache-2.0
"""``/ddtree_verify``: read the state of the switch, or set its mode. docs/verify-switch.md describes it."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from sglang.srt.managers.io_struct import DDTreeVerifyReqInput, DDTreeVerifyReqOutput
from sglang.srt.runtime_context import get_serving
from sglang.srt.utils.auth import AuthLevel, auth_level

PATH = "/ddtree_verify"


def add_routes(app: FastAPI) -> None:
    # On the app itself: SGLang's key check does not look into included routers, whose routes it takes for open ones.
    app.add_api_route(PATH, get_ddtree_verify, methods=["GET"])
    app.add_api_route(PATH, set_ddtree_verify, methods=["POST"])


@auth_level(AuthLevel.ADMIN_OPTIONAL)
async def get_ddtree_verify():
    """The state of every data-parallel rank."""
    return _answer(await _ask(None))


@auth_level(AuthLevel.ADMIN_OPTIONAL)
async def set_ddtree_verify(raw_request: Request):
    """Set the mode, from the next step on."""
    refusal = _why_nobody_may_switch()
    if refusal is not None:
        return JSONResponse({"error": refusal}, status_code=HTTPStatus.BAD_REQUEST)
    try:
        body = await raw_request.json()
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        return _refuse(f"the body is not JSON: {error}")
    if not isinstance(body, dict) or set(body) != {"mode"} or not isinstance(body["mode"], str):
        return _refuse('the body must be {"mode": "off"}, {"mode": "validate"} or {"mode": "on"}')
    return _answer(await _ask(body["mode"]), switched=True)


async def _ask(mode: str | None) -> list[DDTreeVerifyReqOutput]:
    from sglang.srt.entrypoints.http_server import _global_state

    manager = _global_state.tokenizer_manager
    manager.auto_create_handle_loop()
    return await manager.ddtree_verify_communicator(DDTreeVerifyReqInput(mode=mode))


def _why_nobody_may_switch() -> str | None:
    serving = get_serving()
    if not serving.admin_api_key:
        return (
            "This endpoint requires an admin API key, but this server was started without one. "
            "Restart with --admin-api-key to enable it."
        )
    if serving.tokenizer_worker_num > 1:
        return "With --tokenizer-worker-num above 1 no API key is checked, so this endpoint is off. Restart with 1."
    return None


def _answer(outputs: list[DDTreeVerifyReqOutput], *, switched: bool = False) -> JSONResponse:
    failed = next((output for output in outputs if not output.success), None)
    content: dict[str, Any] = {"success": failed is None, "message": "" if failed is None else failed.message}
    if all(output.state for output in outputs):
        content["mode"] = _common([output.state["mode"] for output in outputs])
        if switched:
            content["previous"] = _common([output.previous for output in outputs])
        content["states"] = [output.state for output in outputs]
    return JSONResponse(content, status_code=HTTPStatus.OK if failed is None else HTTPStatus.BAD_REQUEST)


def _refuse(message: str) -> JSONResponse:
    return JSONResponse({"success": False, "message": message}, status_code=HTTPStatus.BAD_REQUEST)


def _common(modes: list[str]) -> str:
    return modes[0] if len(set(modes)) == 1 else "mixed"
