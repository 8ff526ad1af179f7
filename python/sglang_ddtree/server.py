# SPDX-License-Identifier: Apache-2.0
"""The server as this tool sees it: health, the switch's state, and greedy answers, over HTTP."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import requests

from sglang_ddtree.errors import ServerError

SHORT_SECONDS = 15
ALTERNATIVES = 5


@dataclass(frozen=True)
class SwitchState:
    """What every rank of the server says of the switch; docs/verify-switch.md describes it.

    Attributes:
        mode: the mode of all ranks, or ``"mixed"``.
        ranks: each rank's own state.
    """

    mode: str
    ranks: list[dict[str, Any]]

    def prepared(self, mode: str) -> bool:
        """Whether every rank can be switched to ``mode``."""
        return all(mode in rank.get("modes", ()) for rank in self.ranks)


@dataclass(frozen=True)
class Answer:
    """A greedy answer.

    Attributes:
        ids: the generated tokens.
        alternatives: for each of them, the most probable tokens and their log-probabilities; empty if not asked for.
        seconds: from the request to the whole answer.
        accept_length: tokens a verify step, if the server speculates.
    """

    ids: list[int]
    seconds: float
    alternatives: list[dict[int, float]] = field(default_factory=list)
    accept_length: float | None = None


class Server:
    """A server at a URL, with the keys that it may ask for."""

    def __init__(self, url: str, admin_key: str | None = None, api_key: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._admin_key, self._api_key = admin_key, api_key

    @property
    def has_admin_key(self) -> bool:
        """Whether a key for the admin endpoints is known here."""
        return self._admin_key is not None

    def unhealthy(self) -> str | None:
        """None if ``/health`` answers 200, else what it does."""
        try:
            status = _request("GET", f"{self.url}/health", timeout=SHORT_SECONDS).status_code
        except requests.ConnectionError:
            return "does not accept connections"
        except requests.Timeout:
            return f"does not answer within {SHORT_SECONDS} s"
        except requests.RequestException as error:
            return f"cannot be asked: {error}"
        return None if status == 200 else f"answers {status}"

    def info(self) -> dict[str, Any]:
        """``/server_info``."""
        info: dict[str, Any] = self._json("GET", "/server_info", self._api_key, SHORT_SECONDS)
        return info

    def state(self) -> SwitchState:
        """The switch's state, which needs no admin key.

        Raises:
            ServerError: the server cannot be asked, or its attention backend has no switch.
        """
        info = self.info()
        ranks = [rank["ddtree_verify"] for rank in info.get("internal_states") or () if rank.get("ddtree_verify")]
        if not ranks:
            backend = info.get("attention_backend")
            raise ServerError(
                f"{self.url} has no cutover switch: it runs --attention-backend {backend}; "
                "the switch comes with --attention-backend ddtree_sm120"
            )
        modes = {rank["mode"] for rank in ranks}
        return SwitchState(modes.pop() if len(modes) == 1 else "mixed", ranks)

    def check_admin_key(self) -> None:
        """Raise ServerError if the admin endpoint does not take the key."""
        self._json("GET", "/ddtree_verify", self._admin_key, SHORT_SECONDS)

    def switch(self, mode: str) -> None:
        """Switch every rank to ``mode`` while the server runs."""
        self._json("POST", "/ddtree_verify", self._admin_key, 4 * SHORT_SECONDS, {"mode": mode})

    def generate(self, prompt: str, tokens: int, timeout: float, *, alternatives: bool = False) -> Answer:
        """A greedy answer of exactly ``tokens`` tokens."""
        body: dict[str, Any] = {
            "text": prompt,
            "sampling_params": {"max_new_tokens": tokens, "temperature": 0.0, "ignore_eos": True},
        }
        if alternatives:
            body |= {"return_logprob": True, "top_logprobs_num": ALTERNATIVES}
        began = time.monotonic()
        reply = self._json("POST", "/generate", self._api_key, timeout, body)
        seconds = time.monotonic() - began
        try:
            meta = reply["meta_info"]
            tops = meta.get("output_top_logprobs") or () if alternatives else ()
            return Answer(
                ids=list(reply["output_ids"]),
                seconds=seconds,
                alternatives=[{int(entry[1]): float(entry[0]) for entry in top} for top in tops],
                accept_length=meta.get("spec_accept_length"),
            )
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ServerError(f"/generate of {self.url} gave an answer without {error}") from error

    def _json(self, method: str, path: str, key: str | None, timeout: float, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            answer = _request(method, self.url + path, json=body, headers=headers, timeout=timeout)
        except requests.Timeout as error:
            raise ServerError(f"{method} {path} of {self.url}: no answer within {timeout:.0f} s") from error
        except requests.RequestException as error:
            raise ServerError(
                f"{method} {path} of {self.url}: the connection failed ({type(error).__name__})"
            ) from error
        if answer.status_code == 200:
            try:
                return answer.json()
            except ValueError as error:
                raise ServerError(f"{method} {path} of {self.url}: the answer is not JSON") from error
        raise ServerError(f"{method} {path} of {self.url}: {answer.status_code}, {_said(answer)}", answer.status_code)


def _request(method: str, url: str, **options: Any) -> requests.Response:
    """Over a connection of its own: a kept one may be closed by the server at any time, and outlives a restart."""
    with requests.Session() as session:
        # A proxy of the environment is not for the service's own address.
        session.trust_env = False
        return session.request(method, url, **options)


def _said(answer: requests.Response) -> str:
    try:
        body = answer.json()
        return str(body.get("message") or body.get("error") or body)
    except (ValueError, AttributeError):
        return answer.text.strip()[:200] or "no text"
