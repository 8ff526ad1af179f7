# SPDX-License-Identifier: Apache-2.0
"""The pinned wheel, the one before it, and the fork's own wheel, each made once."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fork import config as configuration
from fork import upstream, wheel


@pytest.fixture(scope="session")
def config():
    return configuration.load()


@pytest.fixture(scope="session", params=["0.5.23", "0.5.22"])
def release(request, config):
    """Upstream's wheel of each release that the anchors are kept for."""
    return upstream.fetch(config, request.param)


@pytest.fixture(scope="session")
def pinned(config):
    return upstream.fetch(config)


@pytest.fixture(scope="session")
def tree(config, pinned):
    return wheel.make_tree(config, pinned)


@pytest.fixture(scope="session")
def built(config, pinned, tree, tmp_path_factory):
    """The fork's wheel."""
    return wheel.build(config, pinned, tree, tmp_path_factory.mktemp("wheel"))
