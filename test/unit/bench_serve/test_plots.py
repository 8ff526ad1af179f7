# SPDX-License-Identifier: Apache-2.0
"""The picture of a comparison in which servers failed."""

from typing import Any

import pytest
from matplotlib import pyplot as plt

from benchmark.serve import plots


def result(algorithm: str, turn_ms: float, **more: Any) -> dict[str, Any]:
    return {
        "algorithm": algorithm,
        "width": 8,
        "backend": "ddtree_sm120",
        "draft_backend": "ddtree_sm120",
        "turn_ms": turn_ms,
        "context": 5700,
        **more,
    }


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """``drawn(results)``: the figure, which would be closed otherwise."""
    monkeypatch.setattr(plt, "close", lambda _: None)

    def draw(*results: dict[str, Any]):
        plots.draw({"host": {"gpu": "a GPU"}, "results": list(results)}, tmp_path / "serve")
        return plt.gcf() if (tmp_path / "serve.png").exists() else None

    return draw


def test_failed_servers_have_no_panel_and_are_named(drawn):
    figure = drawn(
        result("DFLASH", 0.0, median_ms=3.0), result("DFLASH", 3.0, median_ms=1.0), result("DDTREE", 3.0, error="died")
    )
    (panel,) = figure.axes
    assert panel.get_title() == "DFLASH, block 8"
    assert [line.get_text().rpartition(", ")[2] for line in panel.get_legend().get_texts()] == [
        "one step a turn",
        "turns of 3 ms",
    ]
    assert figure.get_supxlabel().startswith("failed, no times: DDTREE")


def test_without_a_time_there_is_no_picture(drawn):
    assert drawn(result("DFLASH", 0.0, error="died")) is None
