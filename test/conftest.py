# SPDX-License-Identifier: Apache-2.0
"""What `make test` leaves to `make test-long`, so that it stays under a quarter of an hour on two cores."""

import pytest

# Of DDTREE's servers these two, an MLA and a GQA one, are in every run.
QUICK = ("random-mla-DDTREE-page16-budget8", "random-gqa-DDTREE-page64-budget1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "test/server/" not in item.nodeid:
            continue
        of_a_tree = "DDTREE" in item.nodeid or "test_ddtree.py" in item.nodeid
        if of_a_tree and "wrong_use" not in item.nodeid and not any(config in item.nodeid for config in QUICK):
            item.add_marker(pytest.mark.long)
