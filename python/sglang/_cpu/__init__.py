# SPDX-License-Identifier: Apache-2.0
"""What SGLang needs from the process to run without an accelerator.

``sglang/__init__.py`` calls :func:`activate` before anything imports torch, so that a user types
``sglang serve --device cpu`` and nothing else.
"""

from sglang._cpu.environment import prepare_environment, uses_cpu_engine
from sglang._cpu.import_hooks import provide_sgl_kernel, tolerate_foreign_torchvision

__all__ = ["activate"]


def activate() -> None:
    """Set the environment and import hooks of the CPU engine; change nothing when an accelerator is to be used."""
    prepare_environment()
    tolerate_foreign_torchvision()
    if uses_cpu_engine():
        provide_sgl_kernel()
