# SPDX-License-Identifier: Apache-2.0
"""Several speculative steps a turn of the scheduler, for the DFLASH family."""
