# SPDX-License-Identifier: Apache-2.0
"""Start-up check that the target's verify applies a tree mask.

A backend that ignores the mask is not seen in its output: it verifies a chain,
and the tokens are wrong. So, before the first request, a tree of three nodes is
verified behind a short prefix, through the very path that serves requests,
captured graph included, and compared with the plain chain that it stands for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from sglang.kernels.ops.ddtree.tree_build import DraftTree, pack_mask
from sglang.srt.speculative.ddtree.verify_input import tree_verify_input, verify_batch_of

if TYPE_CHECKING:
    from sglang.srt.model_executor.model_runner import ModelRunner

logger = logging.getLogger(__name__)

# A mask that works leaves rounding; one that is ignored, all of the difference.
TOLERANCE = 0.25

PREFIX = (5, 7, 13, 17)
ROOT, FIRST, SECOND = 11, 23, 37


@dataclass(frozen=True)
class SelfTestResult:
    """Distances between logits of the second child.

    Attributes:
        error: between the tree and the chain of prefix, root and second child.
        contrast: the same if the mask is read as a chain's.
    """

    error: float
    contrast: float

    @property
    def passed(self) -> bool:
        return self.error <= TOLERANCE * self.contrast and self.contrast > 0


def small_tree(
    tokens: Sequence[int],
    parents: Sequence[int],
    num_nodes: int,
    device,
    prefix_len: int = 0,
) -> DraftTree:
    """One request's tree of given nodes, padded to ``num_nodes``."""
    tree = DraftTree.empty(1, num_nodes, device)
    sees = torch.eye(num_nodes, dtype=torch.bool)
    sees[:, 0] = True
    depths = [0] * num_nodes
    for node in range(1, len(tokens)):
        sees[node] |= sees[parents[node]]
        depths[node] = depths[parents[node]] + 1
    padding = [0] * (num_nodes - len(tokens))
    tree.tokens.copy_(torch.tensor([[*tokens, *padding]]))
    tree.parents.copy_(torch.tensor([[*parents, *(-1 for _ in padding)]]))
    tree.depths.copy_(torch.tensor([depths]))
    tree.positions.copy_(tree.depths + prefix_len)
    tree.mask_words.copy_(pack_mask(sees.unsqueeze(0)))
    tree.first_child.fill_(-1)
    tree.next_sibling.fill_(-1)
    tree.num_nodes.fill_(len(tokens))
    return tree


def run_self_test(
    verify: Callable[[DraftTree, int], torch.Tensor],
    *,
    num_nodes: int,
    vocab_size: int,
    device,
) -> SelfTestResult:
    """Compare a two-branch tree behind a prefix with the chain that it stands for.

    Args:
        verify: logits [N, V] of a tree behind that many tokens, whose KV rows are
            those of the first nodes that it was last given behind none.
        num_nodes: N, at least 3; a smaller tree is a chain.
    """
    prefix = [token % vocab_size for token in PREFIX[: num_nodes - 2]]
    root, first, second = (token % vocab_size for token in (ROOT, FIRST, SECOND))
    behind = len(prefix)

    line = [*prefix, root, second]
    chain = small_tree(line, range(-1, behind + 1), num_nodes, device)
    alone = verify(chain, 0)[behind + 1].float()

    tokens = [root, first, second]
    branches = small_tree(tokens, [-1, 0, 0], num_nodes, device, behind)
    in_tree = verify(branches, behind)[2].float()

    # The ignored-mask reading keeps the positions of the tree.
    misread = small_tree(tokens, [-1, 0, 1], num_nodes, device, behind)
    misread.depths[0, 2] = 1
    misread.positions[0, 2] = behind + 1
    in_chain = verify(misread, behind)[2].float()
    return SelfTestResult(
        error=float((in_tree - alone).norm()),
        contrast=float((in_chain - alone).norm()),
    )


def verify_alone(runner: ModelRunner, tree: DraftTree, prefix_len: int) -> torch.Tensor:
    """Logits [N, V] of one tree behind ``prefix_len`` tokens, before any request.

    It uses what no request owns yet: the table's padding row and the last slots
    of the pool.
    """
    nodes = tree.tokens.shape[1]
    device = tree.tokens.device
    table = runner.req_to_token_pool.req_to_token
    allocator = runner.token_to_kv_pool_allocator
    page = allocator.page_size
    keys = prefix_len + nodes
    first = (allocator.size + page - len(PREFIX) - nodes) // page * page
    slots = torch.arange(first, first + keys, device=device)
    row = torch.zeros(1, dtype=torch.int64, device=device)
    prefix_lens = torch.full((1,), prefix_len, dtype=torch.int64, device=device)
    host_lens = torch.full((1,), keys, dtype=torch.int64)
    table[0, :keys] = slots.to(table.dtype)
    plan = runner.kv_index_translator.plan(
        req_pool_indices=row,
        seq_lens=prefix_lens,
        seq_lens_cpu=host_lens,
        write_virtual=slots[prefix_len:],
        read_extent=nodes,
    )
    verify_input = tree_verify_input(runner, tree, prefix_lens, keys, plan)
    forward_batch = verify_batch_of(
        runner,
        verify_input,
        req_pool_indices=row,
        prefix_lens=prefix_lens,
        host_lens=host_lens,
        host_sum=keys,
    )
    logits = runner.forward(forward_batch).logits_output.next_token_logits.clone()
    table[0, :keys] = 0
    return logits


def require_pass(result: SelfTestResult, backend: str, *, dummy_weights: bool) -> None:
    """Stop the server unless the mask was applied.

    Raises:
        RuntimeError: the backend did not apply the mask, or the target's output
            does not depend on its context and nothing can be told.
    """
    if result.passed:
        logger.info(
            "DDTREE self-test on %s: passed (error %.3g, an ignored mask gives %.3g)",
            backend,
            result.error,
            result.contrast,
        )
        return
    if dummy_weights and result.contrast == 0:
        logger.warning(
            "DDTREE self-test on %s: nothing can be told, since with --load-format "
            "dummy the output does not depend on the context.",
            backend,
        )
        return
    raise RuntimeError(
        f"DDTREE self-test: attention backend {backend!r} does not apply a tree mask "
        f"(error {result.error:.3g}, an ignored mask gives {result.contrast:.3g}), so "
        "its output would be wrong. Set --attention-backend ddtree_sm120."
    )
