# SPDX-License-Identifier: Apache-2.0
"""Carries a set of small, symbol-anchored edits and added files over an upstream wheel.

The tool knows nothing of what the edits are about: ``upstream.toml`` names the release and the folders of added files,
``patches/`` holds the edits.
"""
