# SPDX-License-Identifier: Apache-2.0
"""The test that a patch names as its ``needs``: there, or not."""

import os
from dataclasses import replace

import pytest
from tiny_upstream import HEADER

from fork import cli, named, patches, upstream
from fork import config as configuration

TESTS = """\
import pytest
import a_package_that_only_a_gpu_machine_has

def test_plain(): ...
async def test_awaited(): ...
def helper(): ...

if True:
    def test_inside(): ...

@pytest.mark.parametrize("word", ["one", "two"])
@pytest.mark.parametrize("number", range(3))
def test_words(word, number): ...

@pytest.mark.parametrize("a, b", [(1, "x"), (2, "y")])
def test_pairs(a, b): ...

@pytest.mark.parametrize("case", CASES, ids=["small", "large"])
def test_named_cases(case): ...

@pytest.mark.parametrize("case", CASES)
def test_cases(case): ...

def test_fixture(server): ...

class Base:
    def test_inherited(self): ...

class TestClass(Base):
    def test_method(self): ...
    class TestInner:
        def test_deep(self): ...

def outer():
    def test_hidden(): ...
"""
THERE = [
    "test_plain", "test_awaited", "test_inside", "test_words", "test_words[0-one]", "test_words[2-two]",
    "test_pairs[2-y]", "test_named_cases[large]", "test_cases[anything]", "test_fixture[DDTREE]",
    "TestClass::test_method", "TestClass::test_inherited", "TestClass::TestInner::test_deep",
]  # fmt: skip
MISSING = {
    "test_gone": "test/gpu/test_a.py has no test test_gone",
    "test_plai": "has no test test_plai",
    "helper": "has no test helper",
    "test_hidden": "has no test test_hidden",
    "test_method": "has no test test_method",
    "TestClass": "has no test TestClass",
    "TestClass::test_plain": "has no test TestClass::test_plain",
    "TestGone::test_method": "has no class TestGone",
    "test_plain::test_method": "has no class test_plain",
    "test_plain[one]": "test_plain has no parameters [one]",
    "TestClass::test_method[one]": "test_method has no parameters [one]",
    "test_words[0-three]": "test_words has no parameters [0-three]",
    "test_pairs[1-y]": "test_pairs has no parameters [1-y]",
    "test_named_cases[huge]": "test_named_cases has no parameters [huge]",
    "test_words[0-one": "that is not path::test",
    "": "that is not path::test",
}


@pytest.fixture
def root(tmp_path):
    (tmp_path / "test" / "gpu").mkdir(parents=True)
    (tmp_path / "test" / "gpu" / "test_a.py").write_text(TESTS)
    (tmp_path / "patches").mkdir()
    return tmp_path


def said(root, needs: str) -> list[str]:
    edit = '[[edit]]\nfile = "sglang/version.py"\nat = "end"\nafter = "x = 1"\n'
    (root / "patches" / "0001-a.toml").write_text(HEADER.replace('needs = "n"', f'needs = "{needs}"') + edit)
    return list(named.problems(root, patches.load_series(root / "patches")))


@pytest.mark.parametrize("name", THERE)
def test_a_test_that_is_there(root, name):
    assert said(root, f"test/gpu/test_a.py::{name}") == []


@pytest.mark.parametrize("name", MISSING)
def test_a_test_that_is_missing(root, name):
    (problem,) = said(root, f"test/gpu/test_a.py::{name}")
    assert problem.startswith(f"0001-a: needs test/gpu/test_a.py::{name}, but ")
    assert MISSING[name] in problem


def test_a_file_that_is_missing_or_broken(root):
    assert said(root, "test/gone.py::test_a") == [
        "0001-a: needs test/gone.py::test_a, but there is no file test/gone.py"
    ]
    assert "that is not path::test" in said(root, "test/gpu/test_a.py")[0]
    (root / "test" / "gpu" / "test_a.py").write_text("def test_a(:\n")
    assert "but line 1 of test/gpu/test_a.py is not Python" in said(root, "test/gpu/test_a.py::test_a")[0]


def test_bases_that_go_in_a_circle(root):
    (root / "test" / "gpu" / "test_a.py").write_text("class TestA(TestB): ...\nclass TestB(TestA): ...\n")
    assert "has no test TestA::test_a" in said(root, "test/gpu/test_a.py::TestA::test_a")[0]


def test_this_series(config):
    assert list(named.problems(config.root, patches.load_series(config.patches))) == []


def test_check_fails(root, config, pinned, capsys, monkeypatch):
    said(root, "test/gpu/test_a.py::test_gone")
    here = replace(config, root=root, trees=())
    monkeypatch.setattr(configuration, "load", lambda: here)
    monkeypatch.setattr(upstream, "fetch", lambda *_: pinned)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    assert cli.main(["check"]) == 1
    out = capsys.readouterr().out
    assert "\n0001-a: needs test/gpu/test_a.py::test_gone, but test/gpu/test_a.py has no test test_gone\n" in out
    said(root, "test/gpu/test_a.py::test_plain")
    assert cli.main(["check"]) == 0, capsys.readouterr()
