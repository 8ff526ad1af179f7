# SPDX-License-Identifier: Apache-2.0
"""What ``make serve`` runs: a server with speculative decoding, and a ``curl`` to try it."""
