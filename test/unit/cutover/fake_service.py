# SPDX-License-Identifier: Apache-2.0
"""A service as the tool sees one: the server's endpoints over HTTP, an environment file, a command that restarts it."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

KEY = "the-admin-key"
MODES = ["off", "validate", "on"]
GOOD_COMPARISON = {
    "since": 1.0,
    "steps": 40,
    "rows": 100_000,
    "max_ulp": 1.5,
    "mean_ulp": 0.02,
    "rows_beyond_2_ulp": 0,
    "rows_not_finite": 0,
    "worst_layer": 2,
}


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """An asker that was stopped meanwhile is no error."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class FakeService:
    """Holds a mode, answers as a server does, and can be told to do worse in some mode.

    Attributes:
        mode: in force; None while it is down.
        prepared: modes that the running server may be switched to.
        wrong, ties: modes in which a token is another one, an unlikely or nearly as likely one.
        never_healthy: modes in which a restarted server never gets healthy.
        comparison: what ``validate`` finds.
        hooks: called at the start of a request, by ``"METHOD /path"``.
        requests: what was asked, in order.
    """

    def __init__(self, folder: Path, mode: str = "off") -> None:
        self.mode: str | None = mode
        self.prepared = list(MODES)
        self.wrong: set[str] = set()
        self.ties: set[str] = set()
        self.never_healthy: set[str] = set()
        self.comparison: dict[str, Any] = dict(GOOD_COMPARISON)
        self.hooks: dict[str, Callable[[], None]] = {}
        self.requests: list[str] = []
        self.restarts = 0
        self.environment = folder / "sglang.env"
        self.environment.write_text(f"# the service\nSGLANG_DDTREE_VERIFY={mode}\nOTHER='a b'\n")
        self._http = _Http(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()
        self._ordered = folder / "restart-ordered"

    @property
    def restart_command(self) -> str:
        """Lets the service read its environment file anew."""
        return f"touch {self._ordered}"

    @property
    def restart_ordered(self) -> bool:
        """Whether a restart is due."""
        return self._ordered.exists()

    def close(self) -> None:
        """Stop answering."""
        self._http.shutdown()
        self._http.server_close()

    def restart(self) -> None:
        """What the restart command orders; done before the next request is answered."""
        self._ordered.unlink()
        self.restarts += 1
        for line in self.environment.read_text().splitlines():
            if line.startswith("SGLANG_DDTREE_VERIFY="):
                self.mode = line.partition("=")[2]

    def state(self) -> dict[str, Any]:
        """One rank's state."""
        return {
            "mode": self.mode,
            "modes": self.prepared,
            "kernels": {"off": "triton", "on": "mla_tree_verify"},
            "validation": self.comparison if self.mode == "validate" else None,
        }

    def answer(self, prompt: str, tokens: int) -> dict[str, Any]:
        """A greedy answer, always the same one, but for the modes that are to do worse."""
        ids = [len(prompt) % 50 + n for n in range(tokens)]
        tops = [[[-0.1, token, None], [-0.2, token + 100, None], [-5.0, token + 200, None]] for token in ids]
        if self.mode in self.wrong:
            ids[2] += 200
        if self.mode in self.ties:
            ids[2] += 100
        return {"output_ids": ids, "meta_info": {"output_top_logprobs": tops, "spec_accept_length": 2.0}}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = 1 << 16  # head and body in one packet, else the asker's acknowledgement is waited for

            def do_GET(self) -> None:
                self._serve("GET")

            def do_POST(self) -> None:
                self._serve("POST")

            def _serve(self, method: str) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, content = service.serve(method, self.path, body, self.headers.get("Authorization"))
                raw = json.dumps(content).encode()
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(raw)))
                    self.end_headers()
                    self.wfile.write(raw)
                    self.wfile.flush()
                except OSError:  # the asker was killed meanwhile
                    self.close_connection = True

            def log_message(self, *_arguments: object) -> None:
                pass

        return Handler

    def serve(self, method: str, path: str, body: bytes, key: str | None) -> tuple[int, Any]:
        """Status and content of an answer."""
        asked = f"{method} {path}"
        self.requests.append(asked)
        if self.restart_ordered:
            self.restart()
        if hook := self.hooks.get(asked):
            hook()
        match asked:
            case "GET /health":
                return (503 if self.mode is None or self.mode in self.never_healthy else 200), {}
            case _ if self.mode is None:
                return 503, {"error": "down"}
            case "GET /server_info":
                return 200, {"attention_backend": "ddtree_sm120", "internal_states": [{"ddtree_verify": self.state()}]}
            case "GET /ddtree_verify" | "POST /ddtree_verify" if key != f"Bearer {KEY}":
                return 401, {"error": "Unauthorized"}
            case "GET /ddtree_verify":
                return 200, {"success": True, "mode": self.mode, "states": [self.state()]}
            case "POST /ddtree_verify":
                self.mode = json.loads(body)["mode"]
                return 200, {"success": True, "mode": self.mode, "states": [self.state()]}
            case "POST /generate":
                asked_for = json.loads(body)
                if len(asked_for["text"]) > 4000:
                    return 400, {"error": {"message": "the input is longer than the context"}}
                return 200, self.answer(asked_for["text"], asked_for["sampling_params"]["max_new_tokens"])
        return 404, {"error": asked}
