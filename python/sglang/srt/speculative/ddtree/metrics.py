# SPDX-License-Identifier: Apache-2.0
"""What a tree adds to the speculative metrics.

``spec_accept_rate`` is accepted drafts over drafted positions, D a step: the
share of the longest possible path. Over nodes it would fall with every branch
that is added, since at most one node a depth can be accepted.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from sglang.srt.runtime_context import get_spec

if TYPE_CHECKING:
    from sglang.srt.managers.utils import GenerationBatchResult
    from sglang.srt.observability.metrics_collector import SchedulerMetricsCollector


def drafted_positions(chain_length: int) -> int:
    """Drafts that one step can accept; ``chain_length`` for other algorithms."""
    spec = get_spec()
    if spec.speculative_algorithm != "DDTREE":
        return chain_length
    return min(spec.speculative_dflash_block_size - 1, spec.speculative_ddtree_budget)


def add_tree_meta_info(meta_info: dict[str, Any], output: Any, index: int) -> None:
    """``spec_tree_budget`` and ``spec_tree_nodes``, the nodes used a step, root aside."""
    spec = get_spec()
    if spec.speculative_algorithm != "DDTREE":
        return
    steps = output.spec_verify_ct[index]
    meta_info["spec_tree_budget"] = spec.speculative_ddtree_budget
    meta_info["spec_tree_nodes"] = output.spec_num_cap_tokens[index] / steps - 1


@functools.cache
def _instruments(label_names: tuple[str, ...]) -> tuple[Any, Any]:
    from prometheus_client import Gauge, Histogram

    spec = get_spec()
    depth = Histogram(
        name="sglang:spec_accepted_depth",
        documentation="Depth of the accepted path of each verified draft tree (accepted drafts, bonus token excluded).",
        labelnames=label_names,
        buckets=list(range(spec.speculative_dflash_block_size)),
    )
    nodes = Gauge(
        name="sglang:spec_tree_nodes",
        documentation="Mean nodes of the draft trees of the last decode step (root excluded).",
        labelnames=label_names,
        multiprocess_mode="mostrecent",
    )
    return depth, nodes


def observe_tree_step(
    collector: SchedulerMetricsCollector, result: GenerationBatchResult
) -> None:
    """Record a turn's steps, whose counts are on the host."""
    # Here, because the tokenizer's process imports this module too.
    from sglang.srt.speculative.chained.result import depths_of

    depths = depths_of(result)
    if not depths:
        return
    depth, nodes = _instruments(tuple(collector.labels))
    depth = depth.labels(**collector.labels)
    for value in depths:
        depth.observe(value)
    mean_nodes = result.num_cap_tokens / len(depths) - 1
    nodes.labels(**collector.labels).set(mean_nodes)
