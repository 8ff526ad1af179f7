# SPDX-License-Identifier: Apache-2.0
"""What ``validate`` has seen, as gauges and as a line in the log."""

from __future__ import annotations

import functools
import logging
import time
from typing import Any

from sglang.srt.layers.attention.ddtree_sm120.verify_mode.mode import VerifyMode
from sglang.srt.layers.attention.ddtree_sm120.verify_mode.ulp import UlpReport

logger = logging.getLogger(__name__)

LOG_SECONDS = 60.0


@functools.cache
def _gauges(label_names: tuple[str, ...]) -> dict[str, Any]:
    # Imported when the directory of the metrics has been set.
    from prometheus_client import Gauge

    def gauge(name: str, documentation: str, *labels: str) -> Gauge:
        return Gauge(
            name=f"sglang:ddtree_verify_{name}",
            documentation=documentation,
            labelnames=(*label_names, *labels),
            multiprocess_mode="mostrecent",
        )

    since = "since validate was last entered"
    return {
        "mode": gauge("mode", "1 for the mode of --ddtree-verify in force, 0 for the others.", "mode"),
        "steps": gauge("steps", f"Forwards in which both kernels ran, {since}."),
        "rows": gauge("rows", f"Compared outputs of one head for one token in one layer, {since}."),
        "max_ulp": gauge("max_ulp", f"Largest error in bf16 units in the last place, {since}."),
        "mean_ulp": gauge("mean_ulp", f"Mean error in bf16 units in the last place, {since}."),
        "rows_beyond_2_ulp": gauge("rows_beyond_2_ulp", f"Rows with an element off by more than 2 units, {since}."),
        "rows_not_finite": gauge("rows_not_finite", f"Rows with NaN or infinity in either output, {since}."),
    }


def publish_mode(labels: dict[str, Any], mode: VerifyMode) -> None:
    gauge = _gauges(tuple(labels))["mode"]
    for other in VerifyMode:
        gauge.labels(**labels, mode=other.value).set(int(other is mode))


def publish_report(labels: dict[str, Any], steps: int, report: UlpReport) -> None:
    gauges = _gauges(tuple(labels))
    gauges["steps"].labels(**labels).set(steps)
    for name in ("rows", "max_ulp", "mean_ulp", "rows_beyond_2_ulp", "rows_not_finite"):
        gauges[name].labels(**labels).set(getattr(report, name))


class ReportLog:
    """One line a minute at most; a warning while a row was not finite."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def write(self, steps: int, report: UlpReport, *, now: bool = False) -> None:
        """Log unless it was done within the last minute; ``now`` logs anyway."""
        if not now and time.monotonic() - self._last < LOG_SECONDS:
            return
        self._last = time.monotonic()
        level = logging.WARNING if report.rows_not_finite else logging.INFO
        logger.log(
            level,
            "ddtree verify: validate, %d steps, %d rows: error max %.3g (layer %s), mean %.3g bf16 ulp; "
            "%d rows beyond 2 ulp, %d not finite",
            steps,
            report.rows,
            report.max_ulp,
            report.worst_layer,
            report.mean_ulp,
            report.rows_beyond_2_ulp,
            report.rows_not_finite,
        )
