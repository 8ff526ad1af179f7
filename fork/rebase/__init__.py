# SPDX-License-Identifier: Apache-2.0
"""Moves the fork to another release, and says beforehand what that breaks."""
