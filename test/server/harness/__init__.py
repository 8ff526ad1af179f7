# SPDX-License-Identifier: Apache-2.0
"""What the server tests stand on: configurations, processes, prompts, reference outputs."""
