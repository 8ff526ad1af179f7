# SPDX-License-Identifier: Apache-2.0
"""The part of the fork tool that goes into the wheel, as ``sglang._fork``. Needs the standard library only.

A server compares, when it starts, what the fork relies on with what is installed: see :mod:`intact`.
"""
