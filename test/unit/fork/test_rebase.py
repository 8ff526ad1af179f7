# SPDX-License-Identifier: Apache-2.0
"""The report on another release: edits, upstream's changes around them, new mentions, the matrix."""

import textwrap
from dataclasses import replace

import pytest
from tiny_upstream import HEADER

from fork import patches
from fork.apply import apply_series
from fork.config import Watch
from fork.rebase import changes, edits, matrix, mentions, report

OLD = {
    "pkg/mod.py": """
        import os

        def f(x):
            a = 1
            if x:
                g(a)
            return a

        class C:
            def m(self):
                self.y = 2
    """,
    "pkg/other.py": "z = 0\n",
}
SERIES = """
    [[edit]]
    file  = "pkg/mod.py"
    in    = "f"
    at    = {calls = "g"}
    after = "h(a)"

    [[edit]]
    file  = "pkg/mod.py"
    in    = "C.m"
    at    = {assigns = "self.y"}
    value = "{old} + 1"

    [[edit]]
    file   = "pkg/mod.py"
    in     = "C"
    method = "def n(self): ..."

    [[edit]]
    file     = "pkg/mod.py"
    versions = "<2"
    at       = "end"
    after    = "end = 1"
"""


def release(**changed: str | None) -> dict[str, bytes]:
    texts = {**OLD, **{name.replace("__", "/") + ".py": text for name, text in changed.items()}}
    return {name: textwrap.dedent(text).encode() for name, text in texts.items() if text is not None}


@pytest.fixture
def compare(tmp_path):
    (tmp_path / "0001-a.toml").write_text(HEADER + textwrap.dedent(SERIES))
    series = patches.load_series(tmp_path)

    def run(new: dict[str, bytes], version: str = "2") -> list[edits.Row]:
        old = release()
        return edits.compare(apply_series(old, series, "1"), apply_series(new, series, version), new, version)

    return run


def test_same_release(compare):
    rows = compare(release(), "1")
    assert [(row.state, row.old, row.new) for row in rows] == [
        ("applied", "pkg/mod.py:7", "pkg/mod.py:7"),
        ("applied", "pkg/mod.py:12", "pkg/mod.py:12"),
        ("applied", "pkg/mod.py:10", "pkg/mod.py:10"),
        ("applied", "pkg/mod.py:1", "pkg/mod.py:1"),
    ]
    assert all(row.ok for row in rows)


def test_lines_that_moved_and_an_edit_for_other_releases(compare):
    rows = compare(release(pkg__mod=OLD["pkg/mod.py"].replace("import os", "import os\n        import sys\n")))
    assert [(row.state, row.new, row.ok) for row in rows] == [
        ("moved", "pkg/mod.py:9", True),
        ("moved", "pkg/mod.py:14", True),
        ("moved", "pkg/mod.py:12", True),
        ("skipped", "", True),
    ]


def test_each_failed_edit_has_its_row(compare):
    text = OLD["pkg/mod.py"].replace("g(a)", "g(a)\n                g(0)").replace("self.y = 2", "self.why = 2")
    first, second, third, _ = compare(release(pkg__mod=text))
    assert (first.state, first.ok) == ("ambiguous", False)
    assert first.problem.startswith("2 statements are like this, lines 7, 8;")
    assert (second.state, second.problem, second.candidates) == (
        "gone",
        "no statement is like this",
        ["assigns 'self.why'"],
    )
    assert third.state == "moved" and third.ok, "an edit that works is not hidden by those that fail"


def test_a_symbol_in_another_file(compare):
    head, tail = OLD["pkg/mod.py"].split("        class C:")
    _, second, third, _ = compare(release(pkg__mod=head, pkg__deep="\n\n        class C:" + tail))
    assert (second.state, second.candidates, second.ok) == ("moved", ["pkg/deep.py:5"], False)
    assert (third.state, third.candidates) == ("moved", ["pkg/deep.py:3"])


def test_a_file_that_is_gone(compare):
    first, *_ = compare(release(pkg__mod=None))
    assert (first.state, first.problem) == ("gone", "upstream has no such file")


def test_a_place_of_another_shape(compare):
    rows = compare(release(pkg__mod=OLD["pkg/mod.py"].replace("self.y = 2", "self.y: int")))
    assert rows[1].state == "unfit"


def test_changes_inside_edited_functions(tmp_path):
    (tmp_path / "0001-a.toml").write_text(HEADER + textwrap.dedent(SERIES))
    tree = apply_series(release(), patches.load_series(tmp_path), "1")
    text = OLD["pkg/mod.py"].replace("a = 1", "a = 2").replace("import os", "import sys")
    (change,) = changes.compare(tree, release(), release(pkg__mod=text), "1")
    assert (change.file, change.symbol, change.patches) == ("pkg/mod.py", "f", ["0001-a"])
    assert (change.plus, change.minus) == (1, 1)
    assert [line for line in change.diff if line[0] in "+-"] == ["-    a = 1", "+    a = 2"]
    assert changes.compare(tree, release(), release(), "1") == []


WATCHES = (Watch("names it", ("IT", "is_it"), 1, "pkg/"), Watch("lists them", ("one", "two", "three"), 2, "pkg/"))


def found(text: str, file: str = "pkg/mod.py") -> list[tuple[str, str]]:
    upstream = {file: textwrap.dedent(text).encode()}
    return [(mention.watch, mention.text) for mention in mentions.new(WATCHES, release(), upstream)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 'IT'", [("names it", "x = 'IT'")]),
        ("if a.is_it():\n    pass", [("names it", "a.is_it()")]),
        ("def f():\n    return ['one', 'two']", [("lists them", "return ['one', 'two']")]),
        ("x = 'one'\ny = 'two'", []),
        ("'''IT'''", []),
        ("def f():\n    '''one and two'''", []),
        ("x = 'ITEM'", []),
        ("match x:\n    case 'IT':\n        pass", [("names it", "match x: case 'IT': pass")]),
    ],
)
def test_new_mentions(text, expected):
    assert found(text) == expected


def test_mentions_elsewhere_or_known_do_not_count():
    assert found("x = 'IT'", "test/mod.py") == []
    same = {"pkg/mod.py": b"def f():\n    x = 'IT'\n"}
    moved = {"pkg/mod.py": b"y = 0\ndef f():\n    x = 'IT'\n"}
    assert mentions.new(WATCHES, same, moved) == []
    assert [mention.scope for mention in mentions.new(WATCHES, {}, moved)] == ["f"]


# ---- on the real releases


@pytest.fixture(scope="module")
def reports(config, carried):
    """A brief report of each supported release, against the one that the tests run on."""
    others = [
        report.Carried(config, version, carried.series) for version in config.supported if version != config.version
    ]
    return {other.config.version: report.make(carried, other, brief=True) for other in [carried, *others]}


def test_every_supported_release_is_clean(config, reports):
    assert set(reports) == set(config.supported)
    for version, made in reports.items():
        assert made.ok, f"{version}:\n" + "\n".join(matrix.lines(config, [made]))
    assert matrix.holds(config, list(reports.values()))


def test_the_symbols_are_many_and_the_absent_ones_are_used(config, reports):
    """An analysis that finds little would call everything clean."""
    made = reports[config.version]
    assert len(made.symbols) > 150
    assert {row.state for row in made.symbols} == {"present"}
    known = {row.symbol for row in made.symbols}
    if config.version == config.pinned:
        assert set(config.absent) <= known, "upstream.toml excuses a symbol that nothing uses"


def test_the_report_as_text(config, reports):
    (made, *_) = (made for version, made in reports.items() if version != config.version)
    broken = replace(made.edits[0], state="gone", problem="no statement is like this", candidates=["calls 'x'"])
    failing = replace(made, edits=[broken, *made.edits[1:]])
    text = "\n".join(report.lines(failing, everything=False, diffs=False, colour=False))
    assert "not ready" in text.splitlines()[0]
    assert f"! gone       {broken.patch}.1 " in text
    assert "nearest: calls 'x'" in text
    assert sum(line[2:].startswith(("applied", "moved", "skipped", "gone")) for line in text.splitlines()) >= len(
        made.edits
    )
    table = "\n".join(matrix.lines(config, [failing]))
    assert "FAILED" in table and f"{made.new} lacks" in table
    assert not matrix.holds(config, [failing])
