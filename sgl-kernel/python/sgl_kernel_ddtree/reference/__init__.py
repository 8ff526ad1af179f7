# SPDX-License-Identifier: Apache-2.0
"""Readable torch definitions of the operators: what the tests compare against, not what serves."""
