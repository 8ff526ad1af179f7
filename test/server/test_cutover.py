# SPDX-License-Identifier: Apache-2.0
"""``sglang-ddtree`` against real servers: live, by restarts, with what can go wrong; and the documented commands."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness import service as restarts
from harness.config import ServerConfig
from harness.generate import generate, generate_together
from harness.process import Server, free_port, wait_until
from harness.prompts import short_prompts

ROOT = Path(__file__).parents[2]
TOOL = str(Path(sys.executable).with_name("sglang-ddtree"))
KEY = "sesame"
# As other tests have them, so that they share its process.
OPEN = ServerConfig("random-mla")
TREE = ServerConfig("random-mla", "DDTREE", page_size=16, budget=8)
SWITCHED = ServerConfig("random-mla", "DDTREE", page_size=16, budget=8, options=("--admin-api-key", KEY))
SMALL = ("--yes", "--poll", "0.1", "--prompts", "2", "--tokens", "16", "--repeats", "2", "--min-speed-ratio", "0.05")
# A restarted server on two busy cores.
BACK = ("--health-timeout", "240")

Run = Callable[..., subprocess.CompletedProcess[str]]


def servers(*configs: ServerConfig) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("server", configs, indirect=True, ids=str)


def mode_of(url: str) -> str:
    return httpx.get(f"{url}/server_info", timeout=30).json()["internal_states"][0]["ddtree_verify"]["mode"]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def environment() -> dict[str, str]:
    """Of the tool: no key unless a test gives one."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SGLANG_DDTREE_")}


@pytest.fixture
def run(state: Path, environment: dict[str, str]) -> Run:
    """``run(url, "cutover", ...)``; the admin key is known unless ``key`` is another."""

    def call(url: str, command: str, *arguments: str, key: str | None = KEY, **options: Any) -> Any:
        secret = {} if key is None else {"SGLANG_DDTREE_ADMIN_KEY": key}
        where = () if command == "health" else ("--state-dir", str(state))
        line = [TOOL, command, "--url", url, *where, *arguments]
        return subprocess.run(
            line, env=environment | secret, capture_output=True, text=True, check=False, timeout=600, **options
        )

    return call


def record(state: Path) -> dict[str, Any]:
    return json.loads(max(state.glob("*Z.json")).read_text())


@servers(OPEN)
def test_a_server_without_a_key(server, run):
    """Shown, and refused with what would help; nothing is changed."""
    assert run(server.url, "health", key=None).returncode == 0
    shown = run(server.url, "status", key=None)
    assert shown.returncode == 0 and "healthy\nmode: on\nkernels: off: torch, on: mla_tree_verify (C++)" in shown.stdout
    refused = run(server.url, "cutover", "--to", "off", "--yes", key=None)
    assert refused.returncode == 2 and "a restart needs --environment-file" in refused.stderr
    assert mode_of(server.url) == "on"


def missing_on(server: Server) -> list[tuple[str, ...]]:
    """Metrics and labels that the dashboard asks for and the server does not expose."""
    exposed: dict[str, dict[str, set[str]]] = {}
    for line in httpx.get(f"{server.url}/metrics", timeout=30).text.splitlines():
        if match := re.match(r"(sglang:\w+)(?:\{(.*)\})? ", line):
            labels = exposed.setdefault(match[1], {})
            for name, value in re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2] or ""):
                labels.setdefault(name, set()).add(value)
    board = json.loads((ROOT / "deploy" / "grafana" / "sglang-ddtree.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    queries += [v["query"] for v in board["templating"]["list"] if v["type"] == "query"]
    used = [selector for query in queries for selector in re.findall(r"(sglang:\w+)(?:\{(.*?)\})?", query)]
    assert len(used) > 20
    missing: list[tuple[str, ...]] = []
    for name, selectors in used:
        if name not in exposed:
            missing.append((name,))
            continue
        for label, operator, value in re.findall(r'(\w+)(=~?)"(.*?)"', selectors):
            # Prometheus adds the instance; what a variable stands for is chosen on the page.
            known = label == "instance" or label in exposed[name]
            if not known or (operator == "=" and value not in exposed[name][label]):
                missing.append((name, label, value))
    return missing


def stream(server: Server) -> None:
    """The time between chunks is measured of streams alone."""
    body = {"text": "a", "sampling_params": {"max_new_tokens": 40, "ignore_eos": True}, "stream": True}
    with httpx.stream("POST", f"{server.url}/generate", json=body, timeout=120) as answer:
        answer.raise_for_status()
        assert sum(line.startswith("data: {") for line in answer.iter_lines()) > 1


@servers(TREE)
def test_the_dashboard_asks_for_what_a_server_has(server):
    """All but the comparison, which `validate` brings."""
    generate_together(server, [prompt.ids for prompt in short_prompts()[:4]], 2)
    stream(server)
    assert {entry[0] for entry in missing_on(server)} <= {
        f"sglang:ddtree_verify_{name}"
        for name in ("steps", "rows_beyond_2_ulp", "rows_not_finite", "max_ulp", "mean_ulp")
    }


@pytest.fixture
def off(server: Server) -> Iterator[Server]:
    """The server in mode off, before and after."""

    def switch() -> None:
        headers = {"Authorization": f"Bearer {KEY}"}
        httpx.post(f"{server.url}/ddtree_verify", json={"mode": "off"}, headers=headers, timeout=60).raise_for_status()

    switch()
    yield server
    switch()


@pytest.mark.long
@servers(SWITCHED)
def test_live_there_and_back(off, run, state):
    env = state.parent / "service.env"
    env.write_text("SGLANG_DDTREE_VERIFY=off\n")
    for target in ("validate", "on"):
        done = run(off.url, "cutover", "--to", target, *SMALL, "--environment-file", str(env))
        assert done.returncode == 0, done.stdout + done.stderr
        assert mode_of(off.url) == target and env.read_text() == f"SGLANG_DDTREE_VERIFY={target}\n"
        assert "2 of 2 answers equal" in done.stdout and "result: kept" in done.stdout
        if target == "validate":
            (seen,) = next(s for s in record(state)["steps"] if s["step"] == "compare the kernels")["validation"]
            assert seen["steps"] > 10 and seen["rows_not_finite"] == 0
            stream(off)
            # The gauges of the comparison follow every 64 steps, one report behind.
            generate_together(off, [prompt.ids for prompt in short_prompts()[:4]], 2, new_tokens=200, ignore_eos=True)
            assert not missing_on(off), "the dashboard"
    assert run(off.url, "rollback", "--yes").returncode == 0
    assert mode_of(off.url) == "validate" and env.read_text() == "SGLANG_DDTREE_VERIFY=validate\n"


@pytest.mark.long
@servers(SWITCHED)
def test_wrong_key(off, run):
    refused = run(off.url, "cutover", "--to", "on", *SMALL, key="guess")
    assert refused.returncode == 2 and "the admin key is wrong" in refused.stderr
    assert mode_of(off.url) == "off"


@pytest.mark.long
@servers(SWITCHED)
def test_no_key_is_told(server):
    """The arguments, the command line, and the schedulers' states, which have all arguments once more."""
    told = httpx.get(f"{server.url}/server_info", timeout=30).text
    assert KEY not in told and told.count("<redacted>") >= 2


@pytest.mark.long
@servers(SWITCHED)
def test_too_slow(off, run, state):
    done = run(off.url, "cutover", "--to", "on", *SMALL, "--min-speed-ratio", "100")
    assert done.returncode == 1 and "too slow" in record(state)["reason"]
    assert mode_of(off.url) == "off"


@pytest.mark.long
@servers(SWITCHED)
def test_comparison_beyond_a_limit(off, run, state):
    done = run(off.url, "cutover", "--to", "validate", *SMALL, "--max-ulp", "1e-9")
    assert done.returncode == 1 and "max error" in record(state)["reason"]
    assert mode_of(off.url) == "off"


@pytest.mark.long
@servers(SWITCHED)
def test_two_at_once(off, run, state, environment):
    env = environment | {"SGLANG_DDTREE_ADMIN_KEY": KEY}
    line = [TOOL, "cutover", "--to", "on", "--url", off.url, "--state-dir", str(state), *SMALL]
    both = [subprocess.Popen(line, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for _ in range(2)]
    said = [process.communicate(timeout=300)[1].decode() for process in both]
    assert sorted(process.returncode for process in both) == [0, 2]
    assert sum("a cutover or rollback is under way here" in text for text in said) == 1
    assert mode_of(off.url) == "on" and len(list(state.glob("*Z.json"))) == 1


@pytest.mark.long
@servers(SWITCHED)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
@pytest.mark.parametrize("step", ["measure before", "switch", "measure after", "compare the kernels"])
def test_stopped_at_each_step(off, run, state, environment, step, number):
    """A signal brings it back at once; after a kill, a rollback does."""
    line = [TOOL, "cutover", "--to", "validate", "--watch", "30", "--url", off.url, "--state-dir", str(state), *SMALL]
    process = subprocess.Popen(
        line, env=environment | {"SGLANG_DDTREE_ADMIN_KEY": KEY}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    def begun() -> bool:
        assert process.poll() is None
        return any(state.glob("*Z.json")) and any(entry["step"] == step for entry in record(state)["steps"])

    wait_until(begun, 120, step)
    process.send_signal(number)
    status = process.wait(120)
    if number is signal.SIGTERM:
        assert status == 130
    else:
        assert status == -signal.SIGKILL
        assert run(off.url, "status").returncode == 0
        # The kill may come after the step's begin was noted and before its change was.
        undone = {"measure before": (2,), "switch": (0, 2)}.get(step, (0,))
        assert run(off.url, "rollback", "--yes").returncode in undone
    assert mode_of(off.url) == "off"
    assert run(off.url, "cutover", "--to", "validate", *SMALL).returncode == 0


@pytest.mark.long
@servers(SWITCHED)
def test_no_room_for_the_record(off, run, state):
    """The file size limit stands for a full disk: the record outgrows it once there are answers in it."""

    def little_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))

    done = run(off.url, "cutover", "--to", "on", *SMALL, "--tokens", "64", preexec_fn=little_room)
    assert done.returncode == 2 and "nothing was changed" in done.stderr
    assert mode_of(off.url) == "off"
    assert all(json.loads(path.read_text()) for path in state.glob("*Z.json"))


@pytest.mark.long
@servers(SWITCHED)
def test_documented_commands(off, environment, tmp_path):
    """Every block of the pages that calls the tool or curl, as it stands but for the address and the patience."""
    blocks = []
    for page in ("cutover.md", "verify-switch.md"):
        text = (ROOT / "docs" / page).read_text()
        blocks += [
            b for b in re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S) if re.match("sglang-ddtree |curl ", b)
        ]
    blocks = [block for block in blocks if "[options]" not in block and "supervisorctl" not in block]
    assert len(blocks) >= 2
    quick = " ".join(SMALL)
    shim = (
        "set -euo pipefail\n"
        "sglang-ddtree() { local name=$1; shift; case $name in "
        f'cutover) set -- "$@" {quick};; rollback) set -- "$@" --yes;; esac; '
        f'"{TOOL}" $name --state-dir "{tmp_path}/state" "$@"; }}\n'
    )
    own = {"KEY": KEY, "SGLANG_DDTREE_ADMIN_KEY": KEY, "SGLANG_DDTREE_URL": off.url}
    for block in blocks:
        script = re.sub(r"(localhost|127\.0\.0\.1):30000", off.url.removeprefix("http://"), block)
        script = script.replace("--watch 600", "--watch 1").replace("curl ", "curl -fsS ")
        done = subprocess.run(
            ["bash", "-c", shim + script],
            env=environment | own,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, block + done.stdout + done.stderr


class Plain:
    """A service that a command restarts; what a mode starts is up to the test."""

    def __init__(self, folder: Path, commands: dict[str, list[str]], url: str) -> None:
        self.folder, self.url = folder, url
        self.env = folder / "service.env"
        self.env.write_text("# of the service\nSGLANG_DDTREE_VERIFY=off\n")
        (folder / "service.json").write_text(json.dumps(commands))
        self.how = (
            *("--environment-file", str(self.env)),
            *("--restart-command", f"{sys.executable} {restarts.__file__} {folder}"),
        )


@pytest.fixture
def plain(models, tmp_path, monkeypatch, environ) -> Iterator[Callable[..., Plain]]:
    """``plain(on=...)`` starts a service in mode off; ``on`` is the pair or the command that mode on has."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "1")
    port = free_port()

    def command(pair: str) -> list[str]:
        config = ServerConfig(pair, "DDTREE", page_size=16, budget=8)
        line = [sys.executable, "-m", "sglang.launch_server", "--host", "127.0.0.1", "--port", str(port)]
        return [*line, *config.arguments(models[pair])]

    def make(on: str | list[str]) -> Plain:
        service = Plain(
            tmp_path,
            {"off": command("random-mla"), "on": command(on) if isinstance(on, str) else on},
            f"http://127.0.0.1:{port}",
        )
        restarts.start(tmp_path)

        def healthy() -> bool:
            try:
                return httpx.get(f"{service.url}/health", timeout=5).status_code == 200
            except httpx.HTTPError:
                return False

        wait_until(healthy, 240, "healthy service")
        return service

    yield make
    restarts.stop(tmp_path)


@pytest.mark.long
def test_restart_there_and_back(plain, run, state):
    """Without an admin key, and with two servers at work: the one in mode on has another process."""
    service = plain(on="random-mla")
    first = (service.folder / "pid").read_text()
    done = run(service.url, "cutover", "--to", "on", *SMALL, *BACK, *service.how, key=None)
    assert done.returncode == 0, done.stdout + done.stderr
    assert mode_of(service.url) == "on" and (service.folder / "pid").read_text() != first
    assert service.env.read_text() == "# of the service\nSGLANG_DDTREE_VERIFY=on\n"
    assert run(service.url, "rollback", "--yes", *BACK, key=None).returncode == 0
    assert mode_of(service.url) == "off"
    assert service.env.read_text() == "# of the service\nSGLANG_DDTREE_VERIFY=off\n"


@pytest.mark.long
def test_wrong_answer(plain, run, state):
    """In mode on, the service serves another model."""
    service = plain(on="cycle-mla")
    done = run(service.url, "cutover", "--to", "on", *SMALL, *BACK, *service.how, key=None)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "another answer from token" in record(state)["reason"]
    assert mode_of(service.url) == "off" and "VERIFY=off" in service.env.read_text()


@pytest.mark.long
@pytest.mark.parametrize(
    "on", [["sleep", "600"], ["false"]], ids=["stands still", "ends at once"]
)  # fmt: skip
def test_health_never_comes_back(plain, run, state, on):
    service = plain(on=on)
    began = time.monotonic()
    line = (*SMALL, "--health-timeout", "20", *service.how)
    done = run(service.url, "cutover", "--to", "on", *line, key=None)
    # The way back has the same patience, which a start on two busy cores may take more than.
    if done.returncode == 3:
        assert run(service.url, "rollback", "--yes", *BACK, key=None).returncode == 0
    else:
        assert done.returncode == 1, done.stdout + done.stderr
    assert time.monotonic() - began > 20
    assert "did not come back within 20 s: it does not accept connections" in done.stdout + done.stderr
    assert mode_of(service.url) == "off" and "VERIFY=off" in service.env.read_text()


def test_the_tool_is_there():
    assert importlib.util.find_spec("sglang_ddtree") is not None and os.access(TOOL, os.X_OK)


@servers(OPEN)
def test_answers_have_what_the_tool_reads(server):
    """Tokens, and the likely ones for each place."""
    from sglang_ddtree.server import Server as Client

    answer = Client(server.url).generate("a", 8, 120, alternatives=True)
    assert len(answer.ids) == 8 == len(answer.alternatives)
    for token, tops in zip(answer.ids, answer.alternatives, strict=True):
        assert len(tops) == 5 and tops[token] == max(tops.values())
    assert generate(server, short_prompts()[0].ids, 4, ignore_eos=True).ids[:4] == answer.ids[:4]
