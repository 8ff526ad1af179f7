# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import random

import pytest
import torch
from sgl_kernel import build_tree_kernel_efficient_cpu, verify_tree_greedy_cpu
from sgl_kernel.speculative import reconstruct_indices_from_tree_mask
from trees import links_of, mask_of, random_eagle_selection, random_parents

FULL_MASK, QLEN_ONLY, BIT_PACKED = 0, 1, 2
# (batch, topk, depth, nodes): a chain, a bush, a single root, a wide and a deep tree.
SHAPES = [(1, 1, 4, 4), (3, 3, 4, 8), (2, 4, 1, 5), (2, 2, 3, 1), (2, 8, 3, 33), (1, 2, 9, 17)]


def _outputs(batch: int, num_nodes: int, seq_lens: torch.Tensor, mode: int) -> list[torch.Tensor]:
    cells = int((seq_lens + num_nodes).sum()) * num_nodes if mode == FULL_MASK else batch * num_nodes**2
    links = [torch.full((batch, num_nodes), -1) for _ in range(3)]
    return [torch.ones(cells, dtype=torch.bool), torch.zeros(batch * num_nodes, dtype=torch.int64), *links]


@pytest.mark.parametrize("mode", [FULL_MASK, QLEN_ONLY])
@pytest.mark.parametrize("shape", SHAPES)
def test_build_tree(oracle, shape, mode):
    batch, topk, depth, num_nodes = shape
    selection = random_eagle_selection(random.Random(num_nodes), batch, topk, depth, num_nodes)
    seq_lens = torch.tensor([5, 0, 19])[:batch]
    arguments = selection.parent_list, selection.selected_index, seq_lens
    expected = oracle(
        "build_tree",
        parent_list=arguments[0],
        selected_index=arguments[1],
        seq_lens=seq_lens,
        outputs=_outputs(batch, num_nodes, seq_lens, mode),
        topk=topk,
        depth=depth,
        num_nodes=num_nodes,
        mode=mode,
    )
    outputs = _outputs(batch, num_nodes, seq_lens, mode)
    build_tree_kernel_efficient_cpu(*arguments, *outputs, topk, depth, num_nodes, mode)
    for name, mine, theirs in zip(("mask", "positions", "index", "child", "sibling"), outputs, expected, strict=True):
        assert torch.equal(mine, theirs), name


def test_build_tree_agrees_with_the_parents():
    """Not against the Triton kernel but against the tree that was meant."""
    selection = random_eagle_selection(random.Random(5), 3, 3, 5, 14)
    seq_lens = torch.tensor([4, 1, 0])
    outputs = _outputs(3, 14, seq_lens, QLEN_ONLY)
    build_tree_kernel_efficient_cpu(
        selection.parent_list, selection.selected_index, seq_lens, *outputs, 3, 5, 14, QLEN_ONLY
    )
    assert torch.equal(outputs[0].view(3, 14, 14), torch.stack([mask_of(p) for p in selection.parents]))
    for mine, meant in zip(outputs[2:], links_of(selection.parents), strict=True):
        assert torch.equal(mine, meant)


def test_build_tree_refuses_the_packed_mask():
    outputs = _outputs(1, 1, torch.tensor([3]), QLEN_ONLY)
    with pytest.raises(NotImplementedError, match="QLEN_ONLY"):
        build_tree_kernel_efficient_cpu(
            torch.zeros(1, 1), torch.zeros(1, 0), torch.tensor([3]), *outputs, 1, 1, 1, BIT_PACKED
        )


def test_build_tree_of_no_requests():
    none = torch.empty(0, dtype=torch.int64)
    build_tree_kernel_efficient_cpu(
        none.view(0, 4), none.view(0, 3), none, none, none, none, none, none, 1, 2, 4, FULL_MASK
    )


@pytest.mark.parametrize("num_nodes,width", [(1, 1), (1, 4), (2, 2), (8, 5), (33, 33), (65, 16), (65, 3)])
@pytest.mark.parametrize("vocabulary", [1, 3, 1000])
def test_verify_greedy(oracle, num_nodes, width, vocabulary):
    """Vocabulary 1: everything is accepted; 3: some; 1000: next to nothing. Width 3 cuts paths short."""
    rng, generator, batch = random.Random(num_nodes), torch.Generator().manual_seed(width), 4
    links = links_of([random_parents(rng, num_nodes) for _ in range(batch)])
    candidates = torch.randint(vocabulary, (batch, num_nodes), generator=generator)
    target = torch.randint(vocabulary, (batch, num_nodes), generator=generator)
    predicts = torch.full((batch * num_nodes,), -5, dtype=torch.int32)
    index = torch.full((batch, width), -1, dtype=torch.int32)
    count = torch.full((batch,), -5, dtype=torch.int32)
    expected = oracle(
        "verify_greedy",
        predicts=predicts,
        accept_index=index,
        accept_num=count,
        candidates=candidates,
        links=links,
        target=target,
    )
    verify_tree_greedy_cpu(
        predicts=predicts,
        accept_index=index,
        accept_token_num=count,
        candidates=candidates,
        retrive_index=links[0],
        retrive_next_token=links[1],
        retrive_next_sibling=links[2],
        target_predict=target,
    )
    for name, mine, theirs in zip(
        ("predicts", "accept_index", "accept_token_num"), (predicts, index, count), expected, strict=True
    ):
        assert torch.equal(mine, theirs), name


def test_verify_greedy_of_no_requests():
    none = torch.empty(0, 4, dtype=torch.int64)
    verify_tree_greedy_cpu(
        predicts=none.view(0),
        accept_index=none,
        accept_token_num=none[:, 0],
        candidates=none,
        retrive_index=none,
        retrive_next_token=none,
        retrive_next_sibling=none,
        target_predict=none,
    )


@pytest.mark.parametrize("num_nodes", [1, 2, 8, 33, 65])
@pytest.mark.parametrize("batch", [1, 3])
def test_reconstruct(oracle, batch, num_nodes):
    rng = random.Random(num_nodes)
    parents = [random_parents(rng, num_nodes) for _ in range(batch)]
    mask = torch.stack([mask_of(p) for p in parents]).view(-1)
    seq_lens = torch.tensor([7, 0, 300])[:batch]
    outputs = [torch.full((batch * num_nodes,), -9) for _ in range(4)]
    expected = oracle("reconstruct", mask=mask, seq_lens=seq_lens, outputs=outputs, batch=batch, num_nodes=num_nodes)
    reconstruct_indices_from_tree_mask(mask, seq_lens, *outputs, batch, num_nodes)
    for name, mine, theirs in zip(("positions", "index", "child", "sibling"), outputs, expected, strict=True):
        assert torch.equal(mine, theirs), name
    for mine, meant in zip(outputs[1:], links_of(parents), strict=True):
        assert torch.equal(mine.view(batch, num_nodes), meant)


def test_reconstruct_of_a_padded_node(oracle):
    """NGRAM pads a short tree with nodes that see only themselves."""
    mask = torch.eye(5, dtype=torch.bool)
    mask[1, 0] = mask[2, 0] = mask[2, 1] = True
    outputs = [torch.full((5,), -9) for _ in range(4)]
    expected = oracle(
        "reconstruct", mask=mask.view(-1), seq_lens=torch.tensor([3]), outputs=outputs, batch=1, num_nodes=5
    )
    reconstruct_indices_from_tree_mask(mask.view(-1), torch.tensor([3]), *outputs, 1, 5)
    for mine, theirs in zip(outputs, expected, strict=True):
        assert torch.equal(mine, theirs)
