# SPDX-License-Identifier: Apache-2.0
"""What `make test` leaves to `make test-long`, and what it runs side by side.

Starting a server costs more than most of its tests, so every run has few of them: each
model with each algorithm, each page size with both. `make test-long` has all others.
"""

import pytest

# Servers of every run, by name.
EVERY_RUN = {
    "random-mla-NGRAM-page1",
    "random-gqa-NGRAM-page16",
    "random-mla-DFLASH-page16",
    "random-gqa-DFLASH-page1",
    "cycle-mla-DFLASH-page1",
    "cycle-gqa-DFLASH-page16",
    "random-mla-DDTREE-page16-budget8",
    "random-gqa-DDTREE-page64-budget1",
}
COMPARED = ("test_server_lossless.py", "test_ddtree.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name in COMPARED and _server(item) not in EVERY_RUN:
            item.add_marker(pytest.mark.long)
        item.add_marker(pytest.mark.xdist_group(_group(item)))


def _server(item: pytest.Item) -> str | None:
    """Name of the server that a test is parametrised with."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return str(params["server"]) if "server" in params else None


def _group(item: pytest.Item) -> str:
    """Tests that share servers or a built wheel run in one process, and those of one file do."""
    folder = item.path.parent.name
    return folder if folder in ("server", "fork") else item.path.stem
