# SPDX-License-Identifier: Apache-2.0
"""The KV pool as rows that can be moved one by one."""

from __future__ import annotations

from sglang.kernels.ops.ddtree.kv_commit import KVRows
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool


def kv_rows_of(pool: object) -> KVRows:
    """All layers' buffers of ``pool``.

    Raises:
        ValueError: a pool whose tokens own more than one row a buffer, for
            example quantisation scales or a head-major page layout.
    """
    # By exact type: a subclass may keep more of a token's state, such as scales.
    if type(pool) is MLATokenToKVPool:
        return KVRows.of(pool.kv_buffer)
    if (
        type(pool) is MHATokenToKVPool
        and not pool.use_hnd
        and getattr(pool, "k_scale_buffer", None) is None
    ):
        return KVRows.of([*pool.k_buffer, *pool.v_buffer])
    raise ValueError(
        f"DDTREE cannot commit rows of KV pool {type(pool).__name__}: a token's "
        "state is not one dense row a buffer. Use --kv-cache-dtype auto or fp8_e4m3 "
        "and the default KV layout."
    )
