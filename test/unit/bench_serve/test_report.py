# SPDX-License-Identifier: Apache-2.0
"""The tables of a comparison."""

from benchmark.serve.report import profile_table, step_table


def result(backend: str, context: int, ms: float) -> dict:
    return {
        "algorithm": "DFLASH",
        "width": 8,
        "backend": backend,
        "draft_backend": "triton",
        "context": context,
        "median_ms": ms,
        "accept_length": 1.5,
        "tokens_per_second": 1500 / ms,
    }


def test_a_step_is_compared_with_triton():
    table = step_table([result("ddtree_sm120", 5700, 1.25), result("triton", 5700, 5.0)])
    assert "| 1.25 (4.0x) |" in table
    assert "| 5.00 |" in table


def test_answers_in_one_piece_stand_beside():
    assert "| 1.25 / 1.00 |" in step_table([result("ddtree_sm120", 5700, 1.25) | {"whole_median_ms": 1.0}])


def test_a_failed_server_has_a_row():
    failed = result("triton", 5700, 1.0)
    del failed["median_ms"]
    table = step_table([failed | {"error": "ServerDied: exit status 1"}, result("ddtree_sm120", 5700, 1.25)])
    assert "failed: ServerDied: exit status 1 |" in table
    assert "1.25 |" in table


def test_a_failed_server_says_why_once():
    why = "ServerDied: ImportError: cannot import name 'x' | y from 'a.long.module' (unknown location)\nmore"
    failed = [result("triton", context, 1.0) for context in (5700, 23000, 90000)]
    for row, error in zip(failed, (why, why, "TimeoutError"), strict=True):
        del row["median_ms"]
        row["error"] = error
    row = step_table(failed).splitlines()[2]
    assert " | failed: ServerDied: ImportError: cannot import name 'x' \\| y from 'a…" in row
    assert "… | failed likewise | failed: TimeoutError |" in row
    assert "unknown location" not in row and "more" not in row
    assert row.replace("\\|", "").count("|") == 7


def test_a_profile_has_a_row_a_kind():
    profiled = result("triton", 5700, 1.0) | {"profile": {"kinds": {"target attention": 900.0}, "total": 1000.0}}
    table = profile_table([profiled, result("triton", 23000, 4.0)])
    assert "| target attention | 900 |" in table
    assert "| 1000 |" in table
