# SPDX-License-Identifier: Apache-2.0
"""The hash of seeded sampling against MurmurHash3 as it is published, over bytes."""

from __future__ import annotations

import struct

import pytest
import torch
from sgl_kernel import murmur_hash32_cpu


def murmur3_32(data: bytes) -> int:
    """MurmurHash3_x86_32 with seed 0 of a multiple of four bytes."""
    word, state = 0xFFFFFFFF, 0
    for (block,) in struct.iter_unpack("<I", data):
        mixed = block * 0xCC9E2D51 & word
        mixed = (mixed << 15 | mixed >> 17) & word
        state ^= mixed * 0x1B873593 & word
        state = (state << 13 | state >> 19) & word
        state = (state * 5 + 0xE6546B64) & word
    state ^= len(data)
    state = (state ^ state >> 16) * 0x85EBCA6B & word
    state = (state ^ state >> 13) * 0xC2B2AE35 & word
    return state ^ state >> 16


def test_the_reference_has_the_published_value():
    assert murmur3_32(b"test") == 0xBA6BD213


@pytest.mark.parametrize("seed", [0, 1, 42, 2**31, 2**40 + 7, 2**63 - 1, -1])
def test_every_row_and_index(seed):
    positions, indices = [0, 1, 77, 131071], [0, 1, 5, 151935]
    seeds = torch.full((4,), seed, dtype=torch.int64)
    got = murmur_hash32_cpu(seeds, torch.tensor(positions), torch.tensor(indices))
    assert got.dtype == torch.uint32
    wanted = [
        [murmur3_32(struct.pack("<QII", seed & 0xFFFFFFFFFFFFFFFF, position, index)) for index in indices]
        for position in positions
    ]
    assert got.tolist() == wanted
