# SPDX-License-Identifier: Apache-2.0
"""The part of upstream that ours relies on: which symbols, where they are, and whether a release still has them."""
