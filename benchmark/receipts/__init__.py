# SPDX-License-Identifier: Apache-2.0
"""The receipts in ``benchmark/results``, checked; and the figures in the documentation, made from them.

A page says where a figure goes, and everything between the two marks is made:

    It takes <!-- figure kernel.n8 -->55.7<!-- /figure --> µs.

    <!-- figure kernel.rivals -->

    | batch | ...

    <!-- /figure -->

``python -m benchmark.receipts`` checks, and fails when a page differs from its receipts; ``--write`` mends the pages.
A new figure is a function in :mod:`figures`.
"""
