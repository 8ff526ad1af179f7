# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from sgl_kernel import top_k_renorm_prob, top_p_renorm_prob, tree_speculative_sampling_target_only
from trees import links_of, random_parents


def _reference(parents, tokens, probs, coins, final_coin, width, threshold_single, threshold_acc):
    """The walk of one request from its definition: children lists, float64, the leftover distribution built afresh.

    Returns the accepted nodes (root first) and the token behind each.
    """
    probs = probs.double().numpy()
    path, emitted = [0], []
    while True:
        node = path[-1]
        children = [c for c in range(len(parents)) if parents[c] == node]
        rejected = []
        accepted = None
        if len(path) < width:
            for child in children:
                seen = sum(probs[node, tokens[c]] for c in [*rejected, child])
                probability = probs[node, tokens[child]]
                if probability > 0 and (coins[node] < seen / threshold_acc or probability >= threshold_single):
                    accepted = child
                    break
                rejected.append(child)
        if accepted is None:
            break
        emitted.append(tokens[accepted])
        path.append(accepted)
    left = probs[path[-1]].copy()
    left[[tokens[c] for c in rejected]] = 0
    cumulative = np.cumsum(left)
    drawn = int(np.searchsorted(cumulative, final_coin * cumulative[-1], side="right"))
    return path, [*emitted, min(drawn, int(np.flatnonzero(left)[-1]))]


def _sample(parents, tokens, probs, coins, final_coins, width, **thresholds):
    """Run the kernel; returns predicts ``[B, N]``, accept_index ``[B, width]`` and counts as lists."""
    batch, num_nodes = tokens.shape
    predicts = torch.full((batch * num_nodes,), -5, dtype=torch.int32)
    index = torch.full((batch, width), -1, dtype=torch.int32)
    count = torch.full((batch,), -5, dtype=torch.int32)
    tree_speculative_sampling_target_only(
        predicts,
        index,
        count,
        tokens,
        *links_of(parents),
        coins,
        final_coins,
        probs,
        torch.zeros_like(probs),
        **thresholds,
    )
    return predicts.view(batch, num_nodes).tolist(), index.tolist(), count.tolist()


@pytest.mark.parametrize("threshold_single,threshold_acc", [(1.0, 1.0), (0.3, 1.0), (1.0, 0.5), (0.0, 0.0)])
@pytest.mark.parametrize("num_nodes,width", [(1, 1), (1, 4), (8, 8), (33, 6), (65, 17), (20, 2)])
def test_against_the_definition(num_nodes, width, threshold_single, threshold_acc):
    rng, generator, batch, vocabulary = random.Random(num_nodes), torch.Generator().manual_seed(width), 6, 24
    parents = [random_parents(rng, num_nodes) for _ in range(batch)]
    # Siblings carry different tokens, as every drafter makes them; half of the tokens have no probability at all.
    tokens = torch.stack(
        [torch.randperm(vocabulary * 4, generator=generator)[:num_nodes] % vocabulary for _ in range(batch)]
    )
    for b, tree in enumerate(parents):
        for node in range(num_nodes):
            children = [c for c in range(num_nodes) if tree[c] == node][:vocabulary]
            tokens[b, children] = torch.randperm(vocabulary, generator=generator)[: len(children)]
    logits = torch.randn(batch, num_nodes, vocabulary, generator=generator) * 2
    logits[..., ::2] = -torch.inf
    probs = logits.softmax(-1)
    coins = torch.rand(batch, num_nodes, generator=generator)
    final_coins = torch.rand(batch, generator=generator)
    predicts, index, count = _sample(
        parents,
        tokens,
        probs,
        coins,
        final_coins,
        width,
        threshold_single=threshold_single,
        threshold_acc=threshold_acc,
    )
    for b in range(batch):
        path, emitted = _reference(
            parents[b],
            tokens[b].tolist(),
            probs[b],
            coins[b].tolist(),
            float(final_coins[b]),
            width,
            threshold_single,
            max(threshold_acc, 1e-9),
        )
        assert index[b][: len(path)] == [b * num_nodes + node for node in path]
        assert index[b][len(path) :] == [-1] * (width - len(path))
        assert count[b] == len(path) - 1
        assert [predicts[b][node] for node in path] == emitted


def test_tokens_follow_the_target_distribution():
    """Lossless: the first token is distributed as plain sampling, and the second given the first too.

    Chi-square against the exact joint distribution of two tokens, 20000 draws. With 15 degrees of freedom 99.99 % lie
    below 44.3.
    """
    generator, draws, vocabulary = torch.Generator().manual_seed(11), 20_000, 4
    tree = [-1, 0, 0, 1, 1, 2]
    tokens = torch.tensor([0, 1, 3, 0, 2, 3])
    root = torch.tensor([0.4, 0.3, 0.1, 0.2])
    # The second token's distribution hangs on the first only, so that paths outside the tree have a definite one.
    second = torch.rand(vocabulary, vocabulary, generator=generator).softmax(-1)
    probs = torch.stack([root, second[1], second[3], second[0], second[0], second[0]])
    predicts, index, count = _sample(
        [tree] * draws,
        tokens.expand(draws, -1),
        probs.expand(draws, -1, -1).contiguous(),
        torch.rand(draws, 6, generator=generator),
        torch.rand(draws, generator=generator),
        3,
    )
    observed = torch.zeros(vocabulary, vocabulary, dtype=torch.float64)
    plain = torch.multinomial(second, draws, replacement=True, generator=generator)
    for b in range(draws):
        first = predicts[b][0]
        # Where the draft ended after one token the server samples the next one plainly; so does the test.
        follower = predicts[b][index[b][1] % 6] if count[b] > 0 else int(plain[first, b])
        observed[first, follower] += 1
    expected = draws * root.double()[:, None] * second.double()
    assert float(((observed - expected) ** 2 / expected).sum()) < 44.3


@pytest.mark.parametrize("final_coin", [0.0, 0.5, 1.0 - 2**-24])
def test_last_token_has_probability(final_coin):
    """Coins at both ends, and probabilities whose float32 sum is not 1."""
    probs = torch.zeros(1, 1, 1000)
    probs[..., 100:900] = 1 / 800
    predicts, _, count = _sample(
        [[-1]], torch.zeros(1, 1, dtype=torch.int64), probs, torch.rand(1, 1), torch.tensor([final_coin]), 1
    )
    assert count == [0]
    assert 100 <= predicts[0][0] < 900


def test_no_requests():
    none = torch.empty(0, 4, dtype=torch.int64)
    probs = torch.empty(0, 4, 9)
    tree_speculative_sampling_target_only(
        none.view(0), none, none[:, 0], none, none, none, none, none.float(), none[:, 0].float(), probs, probs.clone()
    )


@pytest.mark.parametrize("vocabulary", [1, 2, 50])
def test_top_k(vocabulary):
    probs = torch.randn(4, vocabulary, generator=torch.Generator().manual_seed(1)).softmax(-1)
    limits = torch.tensor([1, 3, vocabulary, 1 << 30])
    result = top_k_renorm_prob(probs, limits)
    for row, k, out in zip(probs.double().numpy(), limits.tolist(), result.numpy(), strict=True):
        kept = np.argsort(-row)[:k]
        expected = np.zeros_like(row)
        expected[kept] = row[kept] / row[kept].sum()
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-7)


def test_top_k_of_equal_probabilities_keeps_k():
    assert top_k_renorm_prob(torch.full((1, 4), 0.25), torch.tensor([2])).tolist() == [[0.5, 0.5, 0.0, 0.0]]


@pytest.mark.parametrize("top_p", [1e-6, 0.3, 0.9, 1.0])
def test_top_p(top_p):
    probs = torch.randn(5, 40, generator=torch.Generator().manual_seed(2)).mul(2).softmax(-1)
    result = top_p_renorm_prob(probs, torch.full((5,), top_p))
    for row, out in zip(probs.double().numpy(), result.numpy(), strict=True):
        order = np.argsort(-row)
        needed = int(np.searchsorted(np.cumsum(row[order]), min(top_p, row.sum() - 1e-9))) + 1
        expected = np.zeros_like(row)
        expected[order[:needed]] = row[order[:needed]] / row[order[:needed]].sum()
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-7)


def test_filters_take_no_rows():
    empty = torch.empty(0, 8)
    assert top_k_renorm_prob(empty, torch.empty(0, dtype=torch.int64)).shape == (0, 8)
    assert top_p_renorm_prob(empty, torch.empty(0)).shape == (0, 8)
