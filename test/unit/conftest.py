# SPDX-License-Identifier: Apache-2.0
"""Unit tests run on the CPU engine, whatever the machine has; those that need a GPU are in ``sgl-kernel/tests``."""

import os

os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
