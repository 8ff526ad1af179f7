# SPDX-License-Identifier: Apache-2.0
"""What `make test` leaves to `make test-long`, and what it runs side by side.

Starting a server costs more than most of its tests, so every run has few of them: each
model with each algorithm, each page size with both. `make test-long` has all others.
"""

from pathlib import PurePosixPath

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
# These start what they need themselves.
ALONE = {"test_serve_launcher.py", "test_server_wrong_use.py"}
COMPARED = ("test_server_lossless.py", "test_ddtree.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name in COMPARED and _server(item) not in EVERY_RUN:
            item.add_marker(pytest.mark.long)


def _server(item: pytest.Item) -> str | None:
    """Name of the server that a test is parametrised with."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return str(params["server"]) if "server" in params else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log):
    """Tests of one file stay in one process; so do those that share servers, or a built wheel."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFolder(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = PurePosixPath(nodeid.split("::", maxsplit=1)[0])
            shares = file.parent.name in ("server", "fork") and file.name not in ALONE
            return file.parent.name if shares else str(file)

    # In the order of collection, servers first, and not the folders of most tests.
    config.option.loadscopereorder = False
    return ByFolder(config, log)
