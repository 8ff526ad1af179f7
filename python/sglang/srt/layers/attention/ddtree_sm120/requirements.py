# SPDX-License-Identifier: Apache-2.0
"""What ``ddtree_sm120`` asks of a model and a server on a GPU, and how it refuses the rest."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import torch
from sglang.kernels.ops.ddtree.gqa_tree_verify import HEAD_DIMS, MAX_GROUP

LATENT_DIM = 512
ROPE_DIM = 64
MAX_NODES = 257
MAX_HEADS = 128
MAX_PAGE_SIZE = 64
_SIXTEEN_BIT_KV = ("auto", "bf16", "bfloat16", torch.bfloat16)
_FP8_KV = ("fp8_e4m3", torch.float8_e4m3fn)


@dataclass(frozen=True)
class Demands:
    """What a launch asks of the backend.

    Attributes:
        is_mla: the model has latent attention.
        latent_dim, rope_dim: of its KV rows; None when it is no MLA model.
        model_dtype: of weights and activations.
        kv_cache_dtype: as ``--kv-cache-dtype`` names it, or a torch dtype; what ``auto`` stands for where known.
        heads: query heads of one rank.
        nodes: tokens a request in one verify; 1 without speculation.
        page_size: tokens a page.
        dcp_size: ranks over which the context is spread.
        unified_memory: KV slots have virtual ids.
        drafts: the backend would serve a draft model.
        drafts_blocks: that model drafts a block at once, as DFLASH's do.
        kv_heads: KV heads of one rank; None for an MLA model.
        head_dims: of keys and of values; None for an MLA model.
        sinks: the layers are known to have attention sinks.
        sparse: the layers attend to keys that an indexer chooses (DSA).
    """

    is_mla: bool
    latent_dim: int | None
    rope_dim: int | None
    model_dtype: torch.dtype
    kv_cache_dtype: str | torch.dtype
    heads: int
    nodes: int
    page_size: int
    dcp_size: int = 1
    unified_memory: bool = False
    drafts: bool = False
    drafts_blocks: bool = False
    kv_heads: int | None = None
    head_dims: tuple[int, int] | None = None
    sinks: bool = False
    sparse: bool = False


def package_is_installed() -> bool:
    return importlib.util.find_spec("sgl_kernel_ddtree") is not None


def unmet(demands: Demands) -> str | None:
    """The first demand that the backend cannot meet, as a clause with the flag and the remedy; None if it meets all."""
    return next(_unmet(demands), None)


def _unmet(d: Demands):
    if not package_is_installed():
        yield (
            "it needs the package sglang-kernel-ddtree, which is not installed: run `make kernel-install` in a "
            "checkout or install the wheel of this release"
        )
    if d.drafts and (d.is_mla or not d.drafts_blocks):
        yield (
            "on a GPU it drafts for DFLASH and DDTREE only, with GQA drafts: leave "
            "--speculative-draft-attention-backend out, or set it to flashinfer or triton"
        )
    if not d.is_mla:
        yield from _unmet_gqa(d)
    elif (d.latent_dim, d.rope_dim) != (LATENT_DIM, ROPE_DIM):
        yield (
            f"it reads KV rows of {LATENT_DIM} + {ROPE_DIM} numbers, the model has {d.latent_dim} + {d.rope_dim}; "
            "choose --attention-backend triton"
        )
    if d.sinks:
        yield "it has no attention sinks; choose another backend that has them, such as triton"
    if d.sparse:
        yield (
            "it attends to all keys, the model's layers to those that an indexer chooses; choose --attention-backend "
            "dsa"
        )
    if d.model_dtype != torch.bfloat16:
        yield f"it computes in bfloat16, the model runs in {d.model_dtype}; set --dtype bfloat16"
    if d.is_mla and d.kv_cache_dtype not in _SIXTEEN_BIT_KV:
        yield f"it reads bfloat16 KV of MLA models, not {_named(d.kv_cache_dtype)}; set --kv-cache-dtype bf16"
    if d.kv_cache_dtype not in (*_SIXTEEN_BIT_KV, *_FP8_KV):
        yield f"it reads bfloat16 and fp8_e4m3 KV, not {d.kv_cache_dtype}; set --kv-cache-dtype bf16 or fp8_e4m3"
    if not 1 <= d.heads <= MAX_HEADS:
        yield f"it takes 1 to {MAX_HEADS} heads a rank, this is {d.heads}; raise --tp-size"
    if not 1 <= d.nodes <= MAX_NODES:
        yield (
            f"it verifies 1 to {MAX_NODES} tokens a request, this is {d.nodes}; lower --speculative-num-draft-tokens "
            "(DDTREE: --speculative-ddtree-budget)"
        )
    if not (1 <= d.page_size <= MAX_PAGE_SIZE and d.page_size & (d.page_size - 1) == 0):
        yield f"--page-size must be a power of two up to {MAX_PAGE_SIZE}, this is {d.page_size}"
    if d.dcp_size > 1:
        yield f"it reads a whole context on each rank; --dcp-size must be 1, this is {d.dcp_size}"
    if d.unified_memory:
        yield "it reads KV slots by their physical ids; leave out --enable-unified-memory"


def _named(kv_cache_dtype: str | torch.dtype) -> str:
    """With how it may come about: nobody who left the flag at auto asked for it."""
    eight_bits = kv_cache_dtype in _FP8_KV
    return f"{kv_cache_dtype} (auto is that for a checkpoint that asks for it)" if eight_bits else f"{kv_cache_dtype}"


def _unmet_gqa(d: Demands):
    keys, values = d.head_dims
    if keys != values or keys not in HEAD_DIMS:
        yield (
            f"it reads heads of {', '.join(map(str, HEAD_DIMS))} numbers, the model has {keys} for keys and {values} "
            "for values; choose --attention-backend triton"
        )
    if d.heads % d.kv_heads or d.heads // d.kv_heads > MAX_GROUP:
        yield (
            f"it takes 1 to {MAX_GROUP} query heads a KV head, this is {d.heads} and {d.kv_heads}; choose "
            "--attention-backend triton"
        )
