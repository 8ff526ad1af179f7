# SPDX-License-Identifier: Apache-2.0
"""The job that takes each patch away: what it counts as a failing test, and what it leaves behind."""

import hashlib
import json

import pytest
from tiny_upstream import HEADER

from fork import cli, manifest, needs, patches
from fork import config as configuration
from fork.apply import apply_series
from fork.carried import intact
from fork.errors import ForkError

EDIT = '[[edit]]\nfile = "{file}"\nat = "end"\nafter = "{text}"\n'
UPSTREAM = {"pkg/a.py": b"x = 0\n", "pkg/b.py": b"y = 0\n"}


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A workshop of three patches, 0002 and 0003 for one file; its tests end as ``shop.ends`` says."""
    folder = tmp_path / "checkout" / "patches"
    folder.mkdir(parents=True)
    edits = {
        "0001-one": EDIT.format(file="pkg/a.py", text="one = 1")
        + EDIT.format(file="pkg/gone.py", text="one = 1").replace("at =", 'versions = "<1"\nat ='),
        "0002-two": EDIT.format(file="pkg/b.py", text="two = 2"),
        "0003-three": '[[edit]]\nfile = "pkg/b.py"\nat = {assigns = "two"}\nafter = "three = 3"\n',
        "0004-old": '[[edit]]\nfile = "pkg/b.py"\nversions = "<1"\nat = "end"\nafter = "four = 4"\n',
    }
    for name, edit in edits.items():
        (folder / f"{name}.toml").write_text(HEADER.replace('needs = "n"', f'needs = "t.py::{name[5:]}"') + edit)
    made = needs.Workshop.__new__(needs.Workshop)
    made.config = configuration.replace(configuration.load(), root=tmp_path / "checkout", version="1.0")
    made.root, made.site = tmp_path / "checkout", tmp_path / "site"
    made.wheel, made.series = UPSTREAM, patches.load_series(folder)
    made.texts = {patch.name: patch.path.read_bytes() for patch in made.series}
    made.tree = apply_series(UPSTREAM, made.series, "1.0")
    assert not made.tree.errors
    (made.site / "pkg").mkdir(parents=True)
    (made.site / "sglang").mkdir()
    for file, content in made.tree.edited.items():
        (made.site / file).write_bytes(content)
    told = {"edited": {file: {"after": "", "patches": names} for file, names in made.tree.edited_by.items()}}
    files = {"pkg/b.py": {"sha256": "", "symbols": {"y": "value", "two": "value"}}}
    records = {
        manifest.MANIFEST: json.dumps(told).encode(),
        f"sglang/{intact.TABLE}": json.dumps({"files": files}).encode(),
    }
    for file, content in records.items():
        (made.site / file).write_bytes(content)
    monkeypatch.setattr(needs.wheel, "package_files", lambda *_: {**made.tree.edited, **records})
    made.ends = {}

    def run(*tests):
        present = {path.stem for path in folder.iterdir()}
        missing = {patch.name for patch in made.series} - present
        made.seen = (made.site / "pkg" / "b.py").read_text().splitlines()[1:]
        return made.ends.get(tuple(missing), (1, "1 failed", set()) if missing else (0, "3 passed", set()))

    made.run = run
    monkeypatch.setattr(needs, "Workshop", lambda config, folder: made)
    return made


def verdicts(shop, *names) -> dict[str, needs.Verdict]:
    return {verdict.patch: verdict for verdict in needs.check(shop.config, names)}


def state(shop) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in shop.root.parent.rglob("*") if path.is_file()}


def test_every_test_fails_without_its_patch(shop):
    before = state(shop)
    told = verdicts(shop)
    assert {name: verdict.ok for name, verdict in told.items()} == {
        "0001-one": True,
        "0002-two": True,
        "0003-three": True,
        "0004-old": None,
    }
    assert told["0002-two"].said == "fails without it; 0003-three went with it"
    assert told["0004-old"].said == "not for 1.0"
    assert state(shop) == before, "each patch was put back"


def test_what_runs_lacks_the_patch(shop):
    verdicts(shop, "0003-three")
    assert shop.seen == ["y = 0", "two = 2"]
    verdicts(shop, "0001-one")
    assert shop.seen == ["y = 0", "two = 2", "three = 3"]


def test_the_records_fit_what_runs(shop):
    (_, two, *_) = shop.series
    shop.without(two)
    content = (shop.site / "pkg" / "b.py").read_bytes()
    assert content == UPSTREAM["pkg/b.py"]
    assert set(json.loads((shop.site / manifest.MANIFEST).read_text())["edited"]) == {"pkg/a.py"}
    table = json.loads((shop.site / "sglang" / intact.TABLE).read_text())
    digest = hashlib.sha256(content).hexdigest()
    assert table["files"]["pkg/b.py"] == {"sha256": digest, "symbols": {"y": "value"}}


@pytest.mark.parametrize(
    ("end", "ok", "said"),
    [
        ((0, "1 passed", set()), False, "passes without it"),
        ((2, "Interrupted: 1 error during collection", set()), True, "cannot be imported without it"),
        ((4, "ERROR: found no collectors for t.py::one", set()), True, "cannot be imported without it"),
        ((2, "interrupted", set()), False, "pytest ends with 2: interrupted"),
        ((4, "not found: t.py::one", set()), False, "pytest ends with 4: not found: t.py::one"),
        ((5, "no tests ran", set()), False, "pytest ends with 5: no tests ran"),
    ],
)
def test_what_counts(shop, end, ok, said):
    shop.ends = {("0001-one",): end}
    verdict = verdicts(shop, "0001-one")["0001-one"]
    assert (verdict.ok, verdict.said) == (ok, said)


def test_a_test_that_fails_anyway_says_nothing(shop, capsys, monkeypatch):
    shop.ends = {(): (1, "1 failed, 2 passed", {"t.py::one"})}
    assert verdicts(shop)["0001-one"].said == "its test fails with the patch too"
    monkeypatch.setattr(configuration, "load", lambda: shop.config)
    assert cli.main(["needs"]) == 1
    out = capsys.readouterr().out
    assert "WRONG  0001-one" in out and out.endswith("1 patches whose test says nothing\n")


def test_tests_that_do_not_run_at_all(shop):
    shop.ends = {(): (4, "usage error", set())}
    with pytest.raises(ForkError, match="do not run at all"):
        verdicts(shop)


def test_an_unknown_patch(shop):
    with pytest.raises(ForkError, match="there is no patch 0009-nine"):
        verdicts(shop, "0009-nine")


def test_failures_are_read_from_the_report(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="test.unit.t" name="a[1]"><failure/></testcase>'
        '<testcase classname="test.unit.t" name="b"/><testcase classname="test.unit.t" name="c"><error/></testcase>'
        "</testsuite></testsuites>"
    )
    assert needs._failed(report) == {"test/unit/t.py::a", "test/unit/t.py::c"}
    assert needs._failed(tmp_path / "none.xml") == set()
