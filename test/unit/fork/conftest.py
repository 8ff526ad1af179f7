# SPDX-License-Identifier: Apache-2.0
"""The pinned wheel, the one before it, and the fork's own wheel, each made once."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fork import config as configuration
from fork import patches, upstream, wheel
from fork.rebase import report


@pytest.fixture(scope="session")
def config():
    return configuration.load()


@pytest.fixture(scope="session", params=configuration.load().supported)
def release(request, config):
    """Upstream's wheel of each release that the anchors are kept for."""
    return upstream.fetch(config, request.param)


@pytest.fixture(scope="session")
def pinned(config):
    return upstream.fetch(config)


@pytest.fixture(scope="session")
def carried(config):
    """The fork applied to that release, in memory."""
    return report.Carried(config, config.version, patches.load_series(config.patches))


@pytest.fixture(scope="session")
def tree(carried):
    assert [str(error) for error in carried.tree.errors] == []
    carried.tree.added = carried.added
    return carried.tree


@pytest.fixture(scope="session")
def built(config, pinned, tree, tmp_path_factory):
    """The fork's wheel."""
    return wheel.build(config, pinned, tree, tmp_path_factory.mktemp("wheel"))
