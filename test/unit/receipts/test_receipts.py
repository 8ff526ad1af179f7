# SPDX-License-Identifier: Apache-2.0
"""Receipts are checked, and the pages say what they say."""

import json
import subprocess
import sys

import pytest

from benchmark import receipt as maker
from benchmark.receipts import check, pages, store
from benchmark.receipts.figures import FIGURES, registry

GOOD = {
    "schema": 1,
    "name": "bench_x",
    "created": "2026-11-30T14:31:29+00:00",
    "commit": "e0617db",
    "dirty": False,
    "sources_sha256": "0" * 64,
    "command": "bench_x.py --out $OUT",
    "host": {"gpu": "Card 1", "driver": "1", "sm_count": 1, "memory_bytes": 1, "machine": "x86_64", "python": "3.12"},
    "versions": {"torch": "2.11.0", "sglang": None},
    "config": {},
    "results": [{"step": {"median_us": 2.0, "readings_us": [1.0, 2.0, 9.0]}}],
}


@pytest.fixture
def problems(tmp_path):
    def run(name: str = "x-Card-1.json", text: str | None = None, **changed) -> list[str]:
        path = tmp_path / name
        content = {key: value for key, value in {**GOOD, **changed}.items() if value != "absent"}
        path.write_text(json.dumps(content) if text is None else text)
        return [problem.removeprefix(f"{path}: ") for problem in check.problems(path)]

    return run


def test_a_good_one(problems):
    assert problems() == []
    assert problems(dirty=None, host={**GOOD["host"], "gpu": None}) == []


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"schema": 2}, "schema: 1 was expected"),
        ({"commit": None}, "commit: None is not of type 'string'"),
        ({"commit": "main"}, "commit: 'main' does not match"),
        ({"created": "yesterday"}, "created: 'yesterday' does not match"),
        ({"results": []}, "results: []"),
        ({"results": [1]}, "results.0: 1 is not of type 'object'"),
        ({"sources_sha256": "abc"}, "sources_sha256: 'abc' does not match"),
        ({"command": "absent"}, "the receipt: 'command' is a required property"),
        ({"extra": 1}, "the receipt: Additional properties are not allowed ('extra' was unexpected)"),
        (
            {"host": {key: GOOD["host"][key] for key in GOOD["host"] if key != "driver"}},
            "host: 'driver' is a required property",
        ),
        ({"versions": {}}, "versions: 'torch' is a required property"),
        ({"host": {**GOOD["host"], "gpu": "Card 2"}}, "measured on Card 2, which its file's name should say"),
        ({"config": {"model": "/home/me/model"}}, "config.model: names a place of one machine: '/home/me/model'"),
        ({"command": "x --url http://host/"}, "command: names a place of one machine"),
        (
            {"results": [{"median_us": 2.5, "readings_us": [1.0, 2.0, 3.0]}]},
            "results.0.median_us is 2.5, but the median of its readings is 2.0",
        ),
    ],
)
def test_what_is_wrong_is_told(problems, changed, told):
    (problem,) = problems(**changed)
    assert problem.startswith(told)


@pytest.mark.parametrize(
    ("text", "told"), [("{", "Expecting property name"), ('{"x": NaN}', "NaN is not a number"), ("[]", "not a JSON")]
)
def test_what_is_no_receipt(problems, text, told):
    (problem,) = problems(text=text)
    assert problem.startswith(told)


def test_what_make_receipt_makes_is_one(tmp_path, monkeypatch):
    monkeypatch.setenv("RECEIPT_COMMIT", "e0617db")
    monkeypatch.setattr(maker, "_run", lambda *command: None)
    monkeypatch.setattr(sys, "argv", ["bench.py", "--out", "$OUT"])
    source = maker.REPO / "benchmark" / "receipt.py"
    made = maker.make_receipt("bench_x", [{"a": 1}], config={}, sources=[source])
    assert made["sources"] == ["benchmark/receipt.py"]
    path = tmp_path / "bench.json"
    maker.write_receipt(path, made)
    assert check.problems(path) == []
    assert list(check.notes(path)) == []
    made["sources_sha256"] = "0" * 64
    maker.write_receipt(path, made)
    assert list(check.notes(path)) == ["bench.json: its sources have changed since e0617db"]
    made["sources"], made["dirty"] = ["gone.py"], True
    maker.write_receipt(path, made)
    told = list(check.notes(path))
    assert told[0].startswith("bench.json: made from a tree with changes") and told[1].endswith("are gone")


# ---- pages


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setitem(FIGURES, "one", lambda receipts: str(receipts["x"]["value"]))
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "x.json").write_text('{"value": 7}')
    (tmp_path / "docs").mkdir()
    return tmp_path


def update(root, text: str, *, write: bool = False) -> tuple[list[str], str]:
    page = root / "README.md"
    page.write_text(text)
    return pages.update(store.Store(root / "results"), write=write, root=root), page.read_text()


def test_a_page_that_says_what_the_receipt_says(root):
    text = "It takes <!-- figure one -->7<!-- /figure --> µs.\n<!-- figure one -->\n\n7\n\n<!-- /figure -->\n"
    assert update(root, text) == ([], text)


def test_a_page_that_does_not(root):
    text = "It\ntakes <!-- figure one -->8<!-- /figure --> µs.\n<!-- figure one -->\n8\n<!-- /figure -->\n"
    told, kept = update(root, text)
    assert told == ["README.md: not what the receipts say, line 2; `python -m benchmark.receipts --write`"]
    assert kept == text
    told, mended = update(root, text, write=True)
    assert told == []
    assert (
        mended == "It\ntakes <!-- figure one -->7<!-- /figure --> µs.\n<!-- figure one -->\n\n7\n\n<!-- /figure -->\n"
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a <!-- figure two -->7<!-- /figure -->", "there is no figure two; known are"),
        ("a <!-- figure one -->7", "a mark of a figure without its other one"),
        ("7<!-- /figure -->", "a mark of a figure without its other one"),
        ("a\n <!-- figure one -->7<!-- /figure -->", "line 2: a figure may not begin a line of text"),
    ],
)
def test_marks_that_are_wrong(root, text, told):
    (problem,), kept = update(root, text, write=True)
    assert problem.startswith(f"README.md: {told}") and kept == text


def test_a_receipt_that_is_missing(root):
    (root / "results" / "x.json").unlink()
    (problem,), _ = update(root, "a <!-- figure one -->7<!-- /figure -->")
    assert problem.startswith("README.md: figure one cannot be made: FileNotFoundError")


def test_tables():
    assert registry.table(["a", "b"], [[1, "x"]]) == "| a | b |\n|---|---|\n| 1 | x |"
    assert (registry.times(2.056), registry.times(55.08)) == ("2.06x", "55.1x")
    with pytest.raises(ValueError, match="two figures named"):
        registry.figure("kernel.rivals")(lambda receipts: "")


def test_every_figure_is_used():
    text = "".join(page.read_text() for page in pages.pages())
    unused = [name for name in FIGURES if f"<!-- figure {name} -->" not in text]
    assert unused == []


def test_the_receipts_and_the_pages_of_this_repository():
    done = subprocess.run(
        [sys.executable, "-m", "benchmark.receipts"], cwd=maker.REPO, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"{len(store.files())} receipts, 0 problems"
