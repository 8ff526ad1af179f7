# SPDX-License-Identifier: Apache-2.0
"""Command lines and options of the documentation are ones that the programs take."""

from __future__ import annotations

import argparse
import re
import shlex
import stat
import subprocess
from pathlib import Path

import pytest
import yaml
from sglang_ddtree import cli

ROOT = Path(__file__).parents[3]
PAGES = [*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "docker" / "README.md"]
PLACEHOLDERS = {"[options]": "", "off|validate|on": "on"} | {f"[{o}]": o for o in ("--json", "--forget", "--yes")}


def commands(program: str) -> list[tuple[str, list[str]]]:
    """Every call of a program in a code block: the page's name and the arguments."""
    found = []
    for page in PAGES:
        for block in re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.M | re.S):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words and Path(words[0]).name == program:
                    found.append((page.name, words[1:]))
    return found


@pytest.fixture(scope="module")
def server_parser() -> argparse.ArgumentParser:
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(exit_on_error=False)
    ServerArgs.add_cli_args(parser)
    return parser


def test_server_command_lines(server_parser):
    calls = [(page, words[1:]) for page, words in commands("sglang") if words[:1] == ["serve"]]
    assert len(calls) >= 6
    for page, words in calls:
        arguments, unknown = server_parser.parse_known_args(words)
        assert not unknown, (page, unknown)
        assert arguments.model_path, page


def test_server_yaml(server_parser):
    settings = yaml.safe_load((ROOT / "deploy" / "server.yaml").read_text())
    known = {option for action in server_parser._actions for option in action.option_strings}
    assert {f"--{name}" for name in settings} <= known
    assert "ddtree-verify" not in settings, "it would win over the environment file"
    assert "model-path" not in settings, "it is not looked for there"
    assert not any("key" in name for name in settings), "a key that everybody knows"


def test_compose_command(server_parser):
    service = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]["server"]
    words = [re.sub(r"\$\{\w+:-(.*?)\}", r"\1", word) for word in service["command"]]
    arguments, unknown = server_parser.parse_known_args(words)
    # Upstream's `sglang serve` looks for the model on its command line only.
    assert not unknown and arguments.model_path == "/models/target"


def test_what_compose_says_wins_over_the_settings(server_parser):
    """Paths and the address are those of the container, though server.yaml has those of a machine."""
    from sglang.srt.utils.server_args_config_parser import ConfigArgumentMerger

    service = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]["server"]
    words = [re.sub(r"\$\{\w+:-(.*?)\}", r"\1", word) for word in service["command"]]
    words[words.index("--config") + 1] = str(ROOT / "deploy" / "server.yaml")
    arguments = server_parser.parse_args(ConfigArgumentMerger(server_parser).merge_config_with_args(words))
    assert arguments.speculative_draft_model_path == "/models/draft" and arguments.host == "0.0.0.0"
    assert arguments.attention_backend == "ddtree_sm120", "the settings were read"


def test_every_flag_of_the_fork_is_in_the_index(server_parser):
    ours = {option for action in server_parser._actions for option in action.option_strings if "ddtree" in option}
    assert ours and ours <= set(re.findall(r"--[\w-]+", (ROOT / "docs" / "index.md").read_text()))


def test_cutover_command_lines():
    calls = commands("sglang-ddtree")
    assert len(calls) >= 9
    for _page, words in calls:
        cli.parser().parse_args([word for word in (PLACEHOLDERS.get(word, word) for word in words) if word])


def test_the_table_of_options_is_complete():
    page = (ROOT / "docs" / "cutover.md").read_text()
    tabled = set(re.findall(r"--[\w-]+", " ".join(re.findall(r"^\| (`--.*?) \|", page, re.M))))
    (commands,) = (a for a in cli.parser()._actions if isinstance(a, argparse._SubParsersAction))
    options = {o: a for a in commands.choices["cutover"]._actions for o in a.option_strings if o.startswith("--")}
    assert set(options) - {"--help", "--to"} == tabled
    for name in ("prompts", "tokens", "repeats", "watch", "tie-nats", "max-diverged", "max-ulp", "max-mean-ulp",
                 "max-beyond-2-ulp", "restart-timeout", "health-timeout", "settle", "poll"):  # fmt: skip
        (row,) = [line for line in page.splitlines() if line.startswith("|") and f"`--{name}`" in line]
        names = re.findall(r"`--([\w-]+)`", row.split("|")[1])
        values = [part.strip() for part in row.split("|")[2].split(",")]
        assert float(values[names.index(name)]) == float(options[f"--{name}"].default), name


def test_every_make_target_that_a_page_names():
    """In code, of this repository's Makefiles."""
    makefiles = [ROOT / "Makefile", ROOT / "sgl-kernel" / "sgl-kernel.mk", ROOT / "docker" / "docker.mk"]
    rules = re.compile(r"^([a-z][a-z0-9 -]*):(?!=)", re.M)
    targets = {name for path in makefiles for names in rules.findall(path.read_text()) for name in names.split()}
    pages = [*PAGES, *ROOT.glob("*/README.md"), *ROOT.glob("*/*/README.md")]
    named = {
        (page.relative_to(ROOT).as_posix(), name)
        for page in pages
        for code in re.findall(r"```.*?```|`[^`\n]+`", page.read_text(), re.S)
        for name in re.findall(r"(?:^|[`\s;])make ([a-z][a-z0-9-]*)", code)
    }
    assert len(named) > 20
    assert {(page, name) for page, name in named if name not in targets} == set()


def test_the_installation_of_the_service(tmp_path):
    """The lines that put files into their places, below another root and for another group."""
    page = (ROOT / "docs" / "cutover.md").read_text()
    (block,) = (b for b in re.findall(r"^```\w*\n(.*?)^```", page, re.M | re.S) if "install -D" in b)
    lines = [line.partition(" && ")[0] for line in block.splitlines() if line.startswith("install ")]
    script = "\n".join(lines).replace(" -g sglang", "").replace(" /etc/", f" {tmp_path}/etc/")
    (tmp_path / "etc" / "systemd" / "system").mkdir(parents=True)  # systemd's
    subprocess.run(["bash", "-ec", script], cwd=ROOT, check=True)
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()} == {
        "etc/sysusers.d/sglang-ddtree.conf",
        "etc/sglang-ddtree/server.yaml",
        "etc/sglang-ddtree/sglang.env",
        "etc/sglang-ddtree/admin-key",
        "etc/systemd/system/sglang-ddtree.service",
    }
    assert stat.S_IMODE((tmp_path / "etc" / "sglang-ddtree" / "server.yaml").stat().st_mode) == 0o640
