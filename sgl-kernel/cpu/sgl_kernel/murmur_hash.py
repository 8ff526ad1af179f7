# SPDX-License-Identifier: Apache-2.0
"""The hash behind seeded sampling: MurmurHash3 (x86, 32 bit) of a seed, a position and a vocabulary index."""

from __future__ import annotations

import torch

_WORD = 0xFFFFFFFF


@torch.library.custom_op("sgl_kernel::murmur_hash32_cpu", mutates_args=(), device_types="cpu")
def murmur_hash32_cpu(seed: torch.Tensor, positions: torch.Tensor, col_indices: torch.Tensor) -> torch.Tensor:
    """Hash of the 16 bytes (seed low, seed high, position, index) for every row and every index.

    Args:
        seed: ``[n]`` int64.
        positions: ``[n]`` integer.
        col_indices: ``[m]`` integer.

    Returns:
        ``[n, m]`` uint32, as the GPU kernel gives it.
    """
    seed = seed.long().unsqueeze(1)
    hashed = torch.zeros_like(seed)
    for block in (seed & _WORD, (seed >> 32) & _WORD, positions.long().unsqueeze(1) & _WORD, col_indices.long() & _WORD):
        # int64 products wrap; their lower halves are the unsigned products of the algorithm.
        word = _rotate((block * 0xCC9E2D51) & _WORD, 15)
        word = (word * 0x1B873593) & _WORD
        hashed = (_rotate(hashed ^ word, 13) * 5 + 0xE6546B64) & _WORD
    hashed = hashed ^ 16
    hashed = ((hashed ^ (hashed >> 16)) * 0x85EBCA6B) & _WORD
    hashed = ((hashed ^ (hashed >> 13)) * 0xC2B2AE35) & _WORD
    return (hashed ^ (hashed >> 16)).to(torch.uint32)


@murmur_hash32_cpu.register_fake
def _(seed: torch.Tensor, positions: torch.Tensor, col_indices: torch.Tensor) -> torch.Tensor:
    return seed.new_empty((seed.shape[0], col_indices.shape[0]), dtype=torch.uint32)


def _rotate(word: torch.Tensor, bits: int) -> torch.Tensor:
    return ((word << bits) | (word >> (32 - bits))) & _WORD
