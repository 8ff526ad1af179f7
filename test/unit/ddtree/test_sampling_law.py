# SPDX-License-Identifier: Apache-2.0
"""The law of sampled output: 20,000 sequences through tree, draw and walk, against the exact one.

The target is a table of conditional distributions over a small vocabulary, the
draft's marginals are others, and the sampler is the server's own.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from sglang.kernels.ops.ddtree.tree_accept import AcceptedPath, tree_accept
from sglang.kernels.ops.ddtree.tree_build import DraftTree, tree_build
from sglang.srt.layers import sampler as sampler_module
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.speculative.ddtree.accept import choose_per_node

VOCAB, DEPTH, NODES, DRAWS, LENGTH = 6, 2, 8, 20_000, 3
# Upper 1e-8 quantile of chi-square with VOCAB - 1 degrees of freedom: torch draws other numbers from a seed on another
# maker's processor, and no processor may fail by chance. A temperature of 0.8 in place of 0.7 gives 290.
CRITICAL = 45.79


@pytest.fixture
def sampler(monkeypatch):
    """The server's sampler, without the process groups that its constructor wants."""
    context = SimpleNamespace(
        kernel=SimpleNamespace(sampling_backend="pytorch"),
        deterministic=SimpleNamespace(
            rl_on_policy_target=None, enable_deterministic_inference=False
        ),
        features=SimpleNamespace(sampling_mask_max_tokens=1),
    )
    monkeypatch.setattr(sampler_module, "get_exec", lambda: context)
    group = SimpleNamespace(device_group=None)
    monkeypatch.setattr(
        sampler_module, "get_parallel", lambda: SimpleNamespace(tp_group=group)
    )
    monkeypatch.setattr(sampler_module, "is_dp_attention_enabled", lambda: False)
    monkeypatch.setattr(sampler_module, "OutputLogprobProcessor", lambda: None)
    return sampler_module.Sampler()


def target_tables(seed: int) -> list[torch.Tensor]:
    """Logits [VOCAB ** t, VOCAB] after each prefix of t tokens, t below LENGTH + DEPTH."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(VOCAB**length, VOCAB, generator=generator) * 1.5
        for length in range(LENGTH + DEPTH)
    ]


def law(logits: torch.Tensor, temperature: float, top_p: float, top_k: int):
    """Exact probabilities that plain sampling draws from."""
    probs = (logits.double() / temperature).softmax(-1)
    ordered, index = probs.sort(-1, descending=True)
    keep = ordered.cumsum(-1) - ordered <= top_p
    keep[..., top_k:] = False
    ordered = ordered * keep
    probs = torch.zeros_like(probs).scatter(-1, index, ordered)
    return probs / probs.sum(-1, keepdim=True)


def marginals(tables, temperature: float, top_p: float, top_k: int):
    """Exact law of the first and of the third token."""
    first = law(tables[0][0], temperature, top_p, top_k)
    second = first.unsqueeze(1) * law(tables[1], temperature, top_p, top_k)
    third = second.reshape(-1, 1) * law(tables[2], temperature, top_p, top_k)
    return first, third.sum(0)


def sampling_info(temperature: float, top_p: float, top_k: int) -> SamplingBatchInfo:
    return SamplingBatchInfo(
        temperatures=torch.full((DRAWS, 1), temperature),
        top_ps=torch.full((DRAWS,), top_p),
        top_ks=torch.full((DRAWS,), top_k, dtype=torch.int32),
        min_ps=torch.zeros(DRAWS),
        is_all_greedy=False,
        is_any_greedy=False,
        need_top_p_sampling=top_p < 1,
        need_top_k_sampling=top_k < VOCAB,
        need_min_p_sampling=False,
        vocab_size=VOCAB,
        device="cpu",
    )


def generate(tables, info: SamplingBatchInfo, sampler, seed: int):
    """DRAWS sequences of at least LENGTH tokens, and how many steps took several."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    history = torch.zeros(DRAWS, LENGTH + DEPTH + 1, dtype=torch.int64)
    lengths = torch.zeros(DRAWS, dtype=torch.int64)
    rows = torch.arange(DRAWS)
    longest = 0
    while bool((lengths < LENGTH).any()):
        # Candidates of another law than the target's, and another at every step.
        marginal = torch.randn(DRAWS, DEPTH, VOCAB, generator=generator).log_softmax(-1)
        values, ids = marginal.topk(4, dim=-1)
        tree = DraftTree.empty(DRAWS, NODES, "cpu")
        root = history[rows, (lengths - 1).clamp(min=0)]
        tree_build(ids, values, root, lengths, tree)

        # The prefix of each node as a number in base VOCAB, and so its logits.
        base = torch.zeros(DRAWS, dtype=torch.int64)
        for t in range(LENGTH):
            base = torch.where(t < lengths, base * VOCAB + history[:, t], base)
        code = torch.zeros(DRAWS, NODES, dtype=torch.int64)
        code[:, 0] = base
        for node in range(1, NODES):
            parent = tree.parents[:, node].clamp(min=0).long()
            code[:, node] = code[rows, parent] * VOCAB + tree.tokens[:, node]
        logits = torch.zeros(DRAWS, NODES, VOCAB)
        for t, table in enumerate(tables):
            here = tree.positions == t
            logits[here] = table[code[here]]

        chosen = choose_per_node(
            logits.view(-1, VOCAB),
            info,
            tree.positions.reshape(-1),
            NODES,
            sampler,
            keep_logits=False,
        ).view(DRAWS, NODES)
        path = AcceptedPath.empty(DRAWS, DEPTH + 1, "cpu")
        tree_accept(tree, chosen, lengths, path)
        longest += int((path.commit_lens > 1).sum())
        live = lengths < LENGTH
        for step in range(DEPTH + 1):
            write = live & (step < path.commit_lens)
            history[rows[write], (lengths + step)[write]] = path.tokens[write, step]
        lengths = torch.where(live, path.new_seq_lens, lengths)
    return history, longest


def chi_square(tokens: torch.Tensor, expected: torch.Tensor) -> float:
    counts = torch.bincount(tokens, minlength=VOCAB).double()
    possible = expected > 0
    assert counts[~possible].sum() == 0
    wanted = expected[possible] * DRAWS
    return float(((counts[possible] - wanted) ** 2 / wanted).sum())


@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize("top_p,top_k", [(1.0, VOCAB), (0.8, VOCAB), (1.0, 3)])
def test_sampled_tokens_follow_the_target(sampler, temperature, top_p, top_k):
    tables = target_tables(seed=5)
    info = sampling_info(temperature, top_p, top_k)
    history, accepted = generate(tables, info, sampler, seed=11)
    first, third = marginals(tables, temperature, top_p, top_k)
    assert accepted > DRAWS // 4  # drafts are really accepted
    assert chi_square(history[:, 0], first) < CRITICAL
    assert chi_square(history[:, 2], third) < CRITICAL


def test_the_statistic_tells_laws_apart(sampler):
    tables = target_tables(seed=5)
    history, _ = generate(tables, sampling_info(0.7, 1.0, VOCAB), sampler, seed=11)
    first, third = marginals(tables, 0.8, 1.0, VOCAB)
    assert chi_square(history[:, 0], first) > CRITICAL
    assert chi_square(history[:, 2], third) > CRITICAL


def test_greedy_requests_of_a_mixed_batch_get_the_argmax(sampler):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2 * NODES, VOCAB, generator=generator)
    info = sampling_info(1.0, 1.0, VOCAB)
    for name in ("temperatures", "top_ps", "top_ks", "min_ps"):
        setattr(info, name, getattr(info, name)[:2])
    info.top_ks[0] = 1
    info.need_top_k_sampling = True
    positions = torch.arange(2 * NODES)
    wanted = logits[:NODES].argmax(-1)
    for _ in range(20):
        chosen = choose_per_node(
            logits, info, positions, NODES, sampler, keep_logits=True
        )
        assert torch.equal(chosen[:NODES], wanted)


def test_a_seeded_node_draws_what_plain_decoding_would(sampler):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3 * NODES, VOCAB, generator=generator)
    info = sampling_info(1.0, 1.0, VOCAB)
    for name in ("temperatures", "top_ps", "top_ks", "min_ps"):
        setattr(info, name, getattr(info, name)[:3])
    info.sampling_seed = torch.tensor([7, 8, 9])
    positions = torch.arange(3 * NODES) % 5 + 100
    chosen = choose_per_node(logits, info, positions, NODES, sampler, keep_logits=True)
    for row in range(3 * NODES):
        request = row // NODES
        alone = sampler_module.sampling_from_probs_torch(
            logits[row : row + 1].softmax(-1),
            sampling_seed=info.sampling_seed[request : request + 1],
            positions=positions[row : row + 1],
        )
        assert int(chosen[row]) == int(alone)
