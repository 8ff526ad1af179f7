# SPDX-License-Identifier: Apache-2.0
"""``python -m sglang_ddtree``."""

import sys

from sglang_ddtree.cli import main

sys.exit(main())
