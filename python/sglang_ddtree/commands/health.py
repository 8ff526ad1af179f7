# SPDX-License-Identifier: Apache-2.0
"""``sglang-ddtree health``."""

from __future__ import annotations

import argparse

from sglang_ddtree.commands import common


def run(arguments: argparse.Namespace) -> int:
    """Exit status 0 if ``/health`` answers 200, else 1."""
    trouble = common.server(arguments).unhealthy()
    print(trouble or "healthy")
    return 1 if trouble else 0
