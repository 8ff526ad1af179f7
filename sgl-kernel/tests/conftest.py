# SPDX-License-Identifier: Apache-2.0
"""Puts a checkout's package on the path, so that the suite runs from a plain `make lib` as well as from the wheel."""

import importlib.util
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "benchmark"), str(HERE.parent.parent / "benchmark")]
if importlib.util.find_spec("sgl_kernel_ddtree") is None:
    sys.path.insert(0, str(HERE.parent / "python"))

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--receipt", default=None, help="write a JSON receipt of every compared case to this file")


_RECORDS: list[dict] = []
_OUTCOMES: dict[str, int] = {}


@pytest.fixture
def record(request: pytest.FixtureRequest):
    """record(case, **numbers): keeps the figures of one comparison for the receipt."""

    def keep(case: str, **numbers: float) -> None:
        _RECORDS.append({"test": request.node.name, "case": case, **numbers})

    return keep


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        _OUTCOMES[report.outcome] = _OUTCOMES.get(report.outcome, 0) + 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = session.config.getoption("--receipt")
    if path is None:
        return
    from receipt import make_receipt, write_receipt

    modules = {item.path for item in session.items}
    sources = [*_kernel_sources(modules), *modules, *HERE.glob("*cases.py"), Path(__file__)]
    numbers = sorted({key for record in _RECORDS for key in record} - {"test", "case"})
    worst = {key: max(record[key] for record in _RECORDS if key in record) for key in numbers}
    config = {"outcomes": _OUTCOMES, "worst": worst}
    write_receipt(Path(path), make_receipt(Path(path).stem, _RECORDS, config=config, sources=sources))


def _kernel_sources(modules: set[Path]) -> list[Path]:
    """What the operators are made of that the modules are named after; of all operators where one is named after none."""
    folders = [path for path in (HERE.parent / "csrc").iterdir() if path.is_dir()]
    tested = {op for op in folders for module in modules if op.name in module.stem}
    if not all(any(op.name in module.stem for op in tested) for module in modules):
        tested = set(folders)
    return [source for op in {*tested, HERE.parent / "csrc" / "common"} for source in op.iterdir()]
