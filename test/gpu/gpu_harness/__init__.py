# SPDX-License-Identifier: Apache-2.0
"""What the tests of servers on a GPU stand on, beside ``test/server/harness``."""
