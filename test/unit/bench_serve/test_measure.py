# SPDX-License-Identifier: Apache-2.0
"""Times of a stream's chunks become times of steps."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmark.serve.measure import WARM_CHUNKS, Chunk, cut_into_samples, measure, measure_whole


def stream(chunks: int, *, ms: float, tokens_a_step: int, steps_a_chunk: int = 1) -> list[Chunk]:
    """A prefill's chunk and one a turn of some steps; the first turns are slow, as warming up is."""
    times, now = [10.0], 10.0
    for chunk in range(chunks):
        now += 1e-3 * ms * steps_a_chunk * (5 if chunk < WARM_CHUNKS else 1)
        times.append(now)
    last = len(times) - 1
    tokens = tokens_a_step * steps_a_chunk
    return [Chunk(t, 1 + i * tokens, steps_a_chunk * last if i == last else 0) for i, t in enumerate(times)]


@pytest.mark.parametrize("steps_a_chunk", [1, 3])
def test_the_median_is_that_of_warm_steps(steps_a_chunk):
    chunks = stream(8 + 4 * 12, ms=2.0, tokens_a_step=3, steps_a_chunk=steps_a_chunk)
    times = cut_into_samples(chunks, chunks_a_sample=4)
    assert len(times.ms_per_step) == 12
    assert times.median == pytest.approx(2.0)
    assert times.steps_per_chunk == steps_a_chunk
    assert times.accept_length == pytest.approx(3.0)
    assert times.tokens_per_second == pytest.approx(1500.0)
    assert times.steps == 48 * steps_a_chunk


class OneMillisecondServer(BaseHTTPRequestHandler):
    """Answers /generate with two tokens a step of a millisecond."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        tokens = asked["sampling_params"]["max_new_tokens"]
        steps = (tokens - 1) // 2
        done = {"completion_tokens": 1 + 2 * steps, "spec_verify_ct": steps}
        self.send_response(200)
        if not asked.get("stream"):
            time.sleep(1e-3 * steps)
            body = json.dumps({"meta_info": done}).encode()
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.send_header("connection", "close")
        self.end_headers()
        for step in range(steps + 1):
            meta = done if step == steps else {"completion_tokens": 1 + 2 * step}
            self.wfile.write(b"data: " + json.dumps({"meta_info": meta}).encode() + b"\n\n")
            time.sleep(1e-3)
        self.close_connection = True

    def log_message(self, *args):
        pass


@pytest.fixture
def url():
    server = ThreadingHTTPServer(("127.0.0.1", 0), OneMillisecondServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_server_is_measured_streaming_and_not(url):
    streamed = measure(url, [1, 2, 3], samples=10, room=8192)
    assert len(streamed.ms_per_step) >= 10
    assert streamed.median >= 1.0
    assert streamed.accept_length == pytest.approx(2.0)
    whole = measure_whole(url, [1, 2, 3], 10, streamed)
    assert len(whole.ms_per_step) == 10
    assert whole.as_result()["whole_median_ms"] > 0


def test_too_few_tokens_for_the_samples_are_refused(url):
    with pytest.raises(RuntimeError, match="too few"):
        measure(url, [1, 2, 3], samples=10, room=100)
