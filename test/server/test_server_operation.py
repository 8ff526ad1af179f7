# SPDX-License-Identifier: Apache-2.0
"""Running the server: aborted requests, health, information, metrics, an orderly end."""

from __future__ import annotations

import importlib.metadata
import re

import httpx
import pytest
from harness.config import BACKEND, MAX_TOTAL_TOKENS, ServerConfig
from harness.generate import REQUEST_SECONDS, flush, load, wait_freed, wait_idle
from harness.process import Server, wait_until

pytestmark = pytest.mark.parametrize(
    "server",
    [ServerConfig("cycle-mla", "DFLASH"), ServerConfig("cycle-gqa", "DFLASH", 16)],
    indirect=True,
    ids=str,
)


def get(server: Server, path: str) -> httpx.Response:
    return httpx.get(f"{server.url}{path}", timeout=REQUEST_SECONDS)


def test_health(server):
    assert get(server, "/health").status_code == 200
    assert get(server, "/health_generate").status_code == 200


def test_models(client):
    (model,) = client.models.list().data
    assert model.max_model_len == 2048


def test_server_info_says_what_runs(server):
    info = get(server, "/server_info").json()
    assert info["attention_backend"] == BACKEND
    assert info["speculative_algorithm"] == "DFLASH"
    assert info["speculative_draft_attention_backend"] == BACKEND
    assert info["speculative_num_draft_tokens"] == 8
    assert info["device"] == "cpu"
    assert info["disable_overlap_schedule"] is False
    assert info["version"] == importlib.metadata.version("sglang")


def metrics(server: Server) -> dict[str, float]:
    """Prometheus samples, summed over their labels."""
    values: dict[str, float] = {}
    for line in get(server, "/metrics").text.splitlines():
        if sample := re.match(r"(sglang:\w+)(?:\{.*\})? (\S+)$", line):
            name, value = sample.groups()
            values[name] = values.get(name, 0) + float(value)
    return values


def test_metrics_count_tokens_and_accepted_drafts(server, client):
    before = metrics(server)
    client.completions.create(model="default", prompt="a", max_tokens=41, temperature=0)
    after = metrics(server)
    grown = {name: after[name] - before.get(name, 0) for name in after}
    assert grown["sglang:generation_tokens_total"] == 41
    # The prefill gives one token, five whole blocks of eight the others.
    assert grown["sglang:spec_verify_calls_total"] == 5
    assert "sglang:spec_accept_length" in after


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_an_aborted_stream_frees_its_cache(server, client, api):
    flush(server)
    # "k" lies on a cycle that the draft cannot foretell: the answer takes its time.
    tokens = 1900
    many = {"model": "default", "max_tokens": tokens, "temperature": 0, "stream": True}
    before = metrics(server)

    def grown(name: str) -> float:
        return metrics(server).get(f"sglang:{name}", 0) - before.get(f"sglang:{name}", 0)

    if api == "completions":
        stream = client.completions.create(prompt="k", **many)
    else:
        message = {"role": "user", "content": "k"}
        stream = client.chat.completions.create(messages=[message], **many)
    for _ in range(5):
        next(iter(stream))
    assert load(server)["num_running_reqs"] == 1
    stream.close()
    wait_idle(server)
    # Counted when the server has ended it.
    wait_until(lambda: grown("num_aborted_requests_total") == 1, REQUEST_SECONDS, "aborted request")
    assert grown("generation_tokens_total") < tokens // 2

    answer = client.completions.create(model="default", prompt="0", temperature=0)
    assert answer.choices[0].text == "123456789"
    wait_freed(server)
    assert load(server)["max_total_num_tokens"] == MAX_TOTAL_TOKENS


def test_aborting_some_of_many_leaves_the_others_right(server, client):
    flush(server)
    streams = [
        client.completions.create(model="default", prompt="k", max_tokens=300, temperature=0, stream=True)
        for _ in range(6)
    ]
    for stream in streams[::2]:
        next(iter(stream))
        stream.close()
    for stream in streams[1::2]:
        text = "".join(chunk.choices[0].text for chunk in stream)
        assert text == ("lmnok" * 60)
    wait_freed(server)
