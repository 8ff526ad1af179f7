# SPDX-License-Identifier: Apache-2.0
"""``sglang-ddtree``: puts the tree-verify kernel of a running service in and out of use, and goes back if it must.

Needs no SGLang at run time: it talks to the server over HTTP, so it also works from another machine.
"""
