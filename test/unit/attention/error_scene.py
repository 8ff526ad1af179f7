# SPDX-License-Identifier: Apache-2.0
"""The plugin of ``test/gpu/test_server_error.py`` beside a backend on CPU tensors."""

from __future__ import annotations

import functools
import pkgutil
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[2] / "gpu" / "error_plugin"))

import torch

NODES = 9


def start() -> None:
    """Process initializer, for Triton's interpreter; must run before anything imports Triton."""
    import interpreted

    interpreted.start()


def hook(set_attribute: Callable) -> None:
    """Put the plugin's hooks in place, as SGLang does for a plugin."""
    import ddtree_error_plugin

    ddtree_error_plugin.comparison = ddtree_error_plugin.Comparison()
    for target, around in ddtree_error_plugin.HOOKS.items():
        owner, name = target.rsplit(".", 1)
        owner = pkgutil.resolve_name(owner)
        original = getattr(owner, name)

        def wrapper(*args, around=around, original=original, **kwargs):
            return around(original, *args, **kwargs)

        set_attribute(owner, name, functools.wraps(original)(wrapper))


def mla_scene(prefix: list[int], page_size: int = 1, dtype: torch.dtype = torch.bfloat16, seed: int = 0):
    """A verify of random trees, and its spec_info."""
    import random

    from scene import MLA, Scene, mask_words, random_tree
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    rng = random.Random(seed)
    trees = [random_tree(rng, NODES) for _ in prefix]
    verify = ForwardMode.TARGET_VERIFY
    scene = Scene(MLA, dtype, page_size, verify, prefix, [NODES] * len(prefix), trees, seed=seed)
    return scene, SimpleNamespace(draft_token_num=NODES, custom_mask=None, mask_words=mask_words(trees))


def validating_switch():
    from sglang.srt.layers.attention.ddtree_sm120.verify_mode.mode import VerifyMode
    from sglang.srt.layers.attention.ddtree_sm120.verify_mode.switch import VerifySwitch
    from sglang.srt.layers.attention.ddtree_sm120.verify_mode.ulp import UlpTotals

    kernels = {VerifyMode.OFF: "theirs", VerifyMode.ON: "ours"}
    switch = VerifySwitch(VerifyMode.VALIDATE, (VerifyMode.VALIDATE,), kernels, UlpTotals(1, 0, "cpu"))
    switch.restart_count()
    return switch


def report(switch) -> dict:
    """What ``/server_info`` would show."""
    from sglang.srt.layers.attention.ddtree_sm120.verify_mode.control import VerifyControl

    control = VerifyControl.__new__(VerifyControl)
    control._switch, control._group = switch, None
    return control._validation()


class Delegate:
    """In place of ``TritonDelegate``: the right output, off by a factor."""

    name = "triton"
    factor = 1.01
    graph_buffer_bytes = 0
    expected: torch.Tensor

    def __init__(self, runner):
        pass

    def init_cuda_graph_state(self, max_bs):
        pass

    def prepare_eager(self, *arguments):
        pass

    prepare_graph = prepare_eager

    def attend(self, q, *arguments):
        out = torch.zeros(q.shape[0], *self.expected.shape[1:])
        out[: len(self.expected)] = self.expected
        return (self.factor * out).to(q.dtype).flatten(1)


def by_gpu_backend(batches: list[list[int]], graph_size: int | None, page_size: int) -> tuple[dict, dict]:
    """Steps of the GPU backend's class, one after the other, each with the pool of its own scene.

    Args:
        batches: committed tokens of each request of a step.
        graph_size: None for the eager way; else what is captured, once, and each batch is padded to.

    Returns:
        What ``/server_info`` would show after warm-up and capture, and at the end.
    """
    import gpu_stub
    from interpreted import _forward
    from sglang.srt.layers.attention.ddtree_sm120 import cuda_backend

    hook(setattr)
    cuda_backend.TritonDelegate = Delegate
    switch, backend, early = validating_switch(), None, {}
    runner_of = gpu_stub.gpu_runner

    def gpu_runner(*arguments, **changes):
        runner = runner_of(*arguments, **changes)
        runner.verify_switch = switch
        return runner

    gpu_stub.gpu_runner = gpu_runner
    for seed, prefix in enumerate(batches):
        scene, info = mla_scene(prefix, page_size, seed=seed)
        Delegate.expected = scene.expected()
        batch = scene.batch(info)
        batch.batch_size = real = len(prefix)
        fresh = gpu_stub.gpu_backend(scene)
        if backend is None:
            backend = fresh
        else:
            # The same backend, whose graph buffers must stay, over this scene's tables.
            backend.req_to_token_pool, backend.token_to_kv_pool = scene.req_to_token_pool, scene.pool
            backend._layers = fresh._layers
        if graph_size is None:
            backend.init_forward_metadata(batch)
            _forward(scene, backend, batch)
            continue
        fields = vars(batch) | {"batch_size": graph_size}
        for name, fill in (("seq_lens", 1), ("req_pool_indices", 0)):
            fields[name] = torch.full((graph_size,), fill)
        padding = (graph_size - real) * NODES
        if not early:
            backend.init_cuda_graph_state(graph_size, graph_size * NODES)
            # What a capture reads: row 0 of the table and the first page of the pool.
            scene.table[0], scene.pool.kv_buffer[0][:page_size] = 0, 0
            dummy = SimpleNamespace(draft_token_num=NODES, custom_mask=None, mask_words=None)
            view = SimpleNamespace(**fields | {"spec_info": dummy})
            backend.init_forward_metadata_out_graph(view, in_capture=True)
            _forward(scene, backend, view, padding)
            early = {"raw": _comparison().totals.report(), "shown": report(switch)}
        for name in ("seq_lens", "req_pool_indices"):
            fields[name][:real] = getattr(batch, name)
        view = SimpleNamespace(**fields, num_padding=graph_size - real)
        backend.init_forward_metadata_out_graph(view)
        # A graph reads nothing of the scheduler's tables any more.
        scene.table.fill_(2**31 - 1)
        _forward(scene, backend, view, padding)
    return early, report(switch)


def _comparison():
    import ddtree_error_plugin

    return ddtree_error_plugin.comparison


def in_interpreter(name: str, *arguments):
    """A function of this file in a process whose Triton interprets."""
    import multiprocessing

    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=spawn, initializer=start) as pool:
        return pool.submit(globals()[name], *arguments).result(timeout=300)
