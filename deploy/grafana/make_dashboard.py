# SPDX-License-Identifier: Apache-2.0
"""Writes ``sglang-ddtree.json``, a Grafana dashboard: ``python deploy/grafana/make_dashboard.py``.

A dashboard's JSON is long and repeats itself; this table of panels is what is edited.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TARGET = Path(__file__).with_name("sglang-ddtree.json")

# Chosen at the top of the page.
WHERE = 'instance=~"$instance",model_name=~"$model"'


def gauge(name: str, more: str = "") -> str:
    """A gauge, the largest of the ranks."""
    return f"max by (instance) ({name}{{{WHERE}{more}}})"


def rate(name: str) -> str:
    """A counter's rate a second."""
    return f"sum by (instance) (rate({name}{{{WHERE}}}[$__rate_interval]))"


def quantile(q: float, name: str) -> str:
    """A quantile of a histogram."""
    return f"histogram_quantile({q}, sum by (le) (rate({name}_bucket{{{WHERE}}}[$__rate_interval])))"


def share(name: str, bound: str) -> str:
    """Share of a histogram's observations above a bound."""
    total = f"sum(rate({name}_count{{{WHERE}}}[$__rate_interval]))"
    return f'1 - sum(rate({name}_bucket{{{WHERE},le="{bound}"}}[$__rate_interval])) / {total}'


# Row, then panels: title, unit, what it tells, queries by legend.
ROWS: list[tuple[str, list[tuple[str, str, str, dict[str, str]]]]] = [
    (
        "The cutover switch",
        [
            (
                "Mode",
                "short",
                "1 for the mode in force.",
                {mode: gauge("sglang:ddtree_verify_mode", f',mode="{mode}"') for mode in ("off", "validate", "on")},
            ),
            (
                "Error of our kernel in validate",
                "short",
                "In bf16 units in the last place; counts from the last time that validate was entered.",
                {
                    "max": gauge("sglang:ddtree_verify_max_ulp"),
                    "mean": gauge("sglang:ddtree_verify_mean_ulp"),
                },
            ),
            (
                "Rows beyond limits in validate",
                "short",
                "Both should stay at 0.",
                {
                    "beyond 2 ulp": gauge("sglang:ddtree_verify_rows_beyond_2_ulp"),
                    "not finite": gauge("sglang:ddtree_verify_rows_not_finite"),
                },
            ),
            (
                "Forwards compared",
                "short",
                "Flat while validate is in force means that nothing is compared.",
                {"forwards": gauge("sglang:ddtree_verify_steps")},
            ),
        ],
    ),
    (
        "Speculation",
        [
            (
                "Tokens a step",
                "short",
                "Accepted drafts and the bonus token; at most the block.",
                {"{{instance}}": gauge("sglang:spec_accept_length")},
            ),
            (
                "Accept rate",
                "percentunit",
                "Accepted drafts over drafted positions; 1 means that every step took a whole block.",
                {"{{instance}}": gauge("sglang:spec_accept_rate")},
            ),
            (
                "Nodes of a tree",
                "short",
                "Root excluded; below the budget where the candidates run out.",
                {"{{instance}}": gauge("sglang:spec_tree_nodes")},
            ),
            (
                "Steps that accept nothing, or much",
                "percentunit",
                "Share of the steps. Many with nothing: another draft, or a smaller budget.",
                {
                    "nothing": f"1 - ({share('sglang:spec_accepted_depth', '0.0')})",
                    "more than 3 drafts": share("sglang:spec_accepted_depth", "3.0"),
                },
            ),
        ],
    ),
    (
        "The service",
        [
            (
                "Tokens a second",
                "short",
                "What a change of the budget must raise.",
                {
                    "generated": rate("sglang:generation_tokens_total"),
                    "prompt": rate("sglang:prompt_tokens_total"),
                },
            ),
            (
                "Requests",
                "short",
                "Running, and waiting for a place.",
                {
                    "running": gauge("sglang:num_running_reqs"),
                    "waiting": gauge("sglang:num_queue_reqs"),
                },
            ),
            (
                "Time to the first token",
                "s",
                "",
                {
                    "median": quantile(0.5, "sglang:time_to_first_token_seconds"),
                    "95 %": quantile(0.95, "sglang:time_to_first_token_seconds"),
                },
            ),
            (
                "Time between chunks",
                "s",
                "A step's time: a step sends one chunk whatever it accepts.",
                {
                    "median": quantile(0.5, "sglang:inter_token_latency_seconds"),
                    "95 %": quantile(0.95, "sglang:inter_token_latency_seconds"),
                },
            ),
            (
                "KV cache in use",
                "percentunit",
                "Near 1, requests are retracted and computed again.",
                {"{{instance}}": gauge("sglang:token_usage")},
            ),
            (
                "Prompt tokens found in the cache",
                "percentunit",
                "",
                {"{{instance}}": gauge("sglang:cache_hit_rate")},
            ),
        ],
    ),
]


def panel(number: int, x: int, y: int, spec: tuple[str, str, str, dict[str, str]]) -> dict[str, Any]:
    """A time series."""
    title, unit, description, queries = spec
    return {
        "id": number,
        "type": "timeseries",
        "title": title,
        "description": description,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"h": 8, "w": 6, "x": x, "y": y},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + n), "expr": query, "legendFormat": legend}
            for n, (legend, query) in enumerate(queries.items())
        ],
    }


def variable(name: str, query: str) -> dict[str, Any]:
    """A choice at the top of the page."""
    return {
        "name": name,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": query,
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def dashboard() -> dict[str, Any]:
    """The whole of it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, specs in ROWS:
        panels.append(
            {"id": len(panels) + 1, "type": "row", "title": title, "gridPos": {"h": 1, "w": 24, "x": 0, "y": y}}
        )
        y += 1
        for n, spec in enumerate(specs):
            panels.append(panel(len(panels) + 1, 6 * (n % 4), y + 8 * (n // 4), spec))
        y += 8 * ((len(specs) + 3) // 4)
    return {
        "title": "sglang-ddtree",
        "uid": "sglang-ddtree",
        "tags": ["sglang"],
        "schemaVersion": 39,
        "editable": True,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "10s",
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                variable("instance", "label_values(sglang:num_running_reqs, instance)"),
                variable("model", "label_values(sglang:num_running_reqs, model_name)"),
            ]
        },
        "panels": panels,
    }


def text() -> str:
    """The file's content."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text())
