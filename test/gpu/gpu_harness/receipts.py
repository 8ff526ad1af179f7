# SPDX-License-Identifier: Apache-2.0
"""``--receipts FOLDER``: one receipt a test file, of what each of its tests found on this card."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from benchmark.receipt import REPO, make_receipt, write_receipt

HARNESS = Path(__file__).parent
_FOUND: dict[Path, dict[str, dict[str, Any]]] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--receipts", type=Path, default=None, help="write a JSON receipt for each test file to this folder"
    )


@pytest.fixture
def record(request: pytest.FixtureRequest):
    """record(name=value, ...): figures of this test for the receipt, which are printed as well."""

    def keep(**figures: Any) -> None:
        _of(request.node)[request.node.name]["figures"] |= figures
        print(f"\n{request.node.name}: {figures}")

    return keep


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    report = yield
    found = _of(item)[item.name]
    found["seconds"] = round(found["seconds"] + report.duration, 2)
    if report.when == "call" or report.outcome != "passed":
        # A failed clean-up is not made up for by the test's success.
        found["outcome"] = report.outcome if found["outcome"] in ("not run", "passed") else found["outcome"]
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    folder = session.config.getoption("receipts", None)
    if folder is None:
        return
    for path, tests in _FOUND.items():
        outcomes = [found["outcome"] for found in tests.values()]
        receipt = make_receipt(
            path.stem,
            [{"test": name, **found} for name, found in tests.items()],
            config={"outcomes": {outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))}},
            sources=[path, *HARNESS.glob("*.py")],
        )
        card = (receipt["host"]["gpu"] or "none").replace(" ", "-")
        write_receipt(folder / f"{path.stem}-{card}.json", receipt)
        print(f"{path.relative_to(REPO)}: {receipt['config']['outcomes']}", file=sys.stderr)


def _of(item: pytest.Item) -> dict[str, dict[str, Any]]:
    tests = _FOUND.setdefault(item.path, {})
    tests.setdefault(item.name, {"outcome": "not run", "seconds": 0.0, "figures": {}})
    return tests
