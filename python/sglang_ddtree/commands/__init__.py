# SPDX-License-Identifier: Apache-2.0
"""The commands: each turns arguments into calls and their outcome into text and an exit status."""
