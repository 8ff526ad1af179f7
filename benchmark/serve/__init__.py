# SPDX-License-Identifier: Apache-2.0
"""``make bench-serve``: what a verify step of a real server costs, backend against backend."""
