# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of a step without a model."""

from stand_in_worker import device, worker

__all__ = ["device", "worker"]
