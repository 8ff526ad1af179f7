# SPDX-License-Identifier: Apache-2.0
"""Builds the ``cpu`` image without a container engine: buildah, chroot isolation, a base made by debootstrap."""

from __future__ import annotations

import os
import shutil

import pytest
from engine import BUILD, Buildah


@pytest.fixture(scope="session")
def buildah() -> Buildah:
    """buildah with a storage of its own below ``build/``."""
    missing = [tool for tool in ("buildah", "debootstrap") if shutil.which(tool) is None]
    if missing:
        pytest.fail(
            f"{' and '.join(missing)} not found; as root: apt-get install --no-install-recommends buildah debootstrap"
        )
    return Buildah(BUILD)


@pytest.fixture(scope="session")
def image(buildah: Buildah) -> str:
    """Name of the built image; IMAGE_TEST_IMAGE names one that the storage below ``build/`` has already."""
    return os.environ.get("IMAGE_TEST_IMAGE") or buildah.build("cpu")
