# SPDX-License-Identifier: Apache-2.0
"""Builds an image without a container engine: buildah, chroot isolation, a base made by debootstrap."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from engine import BUILD, Buildah, Container


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
def flavour() -> str:
    """The target that is built, as IMAGE_TEST_FLAVOUR says."""
    return os.environ.get("IMAGE_TEST_FLAVOUR", "cpu")


@pytest.fixture(scope="session")
def image(buildah: Buildah, flavour: str) -> str:
    """Name of the built image; IMAGE_TEST_IMAGE names one that the storage below ``build/`` has already."""
    return os.environ.get("IMAGE_TEST_IMAGE") or buildah.build(flavour)


@pytest.fixture(scope="module")
def config(buildah: Buildah, image: str) -> dict[str, Any]:
    return buildah.config(image)


@pytest.fixture(scope="module")
def container(buildah: Buildah, image: str) -> Iterator[Container]:
    container = Container(buildah, image)
    yield container
    container.remove()
