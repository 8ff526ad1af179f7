# SPDX-License-Identifier: Apache-2.0
"""The mode in force in one scheduler process, and what ``validate`` has seen."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from sglang.srt.layers.attention.ddtree_sm120.verify_mode.mode import (
    FLAG,
    MODES_FLAG,
    Requested,
    VerifyMode,
)
from sglang.srt.layers.attention.ddtree_sm120.verify_mode.ulp import UlpTotals
from sglang.srt.model_executor.runner_utils.capture_mode import get_capture_attention_variant
from sglang.srt.runtime_context import get_context, get_exec, get_serving

if TYPE_CHECKING:
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.mem_cache.memory_pool import KVCache
    from sglang.srt.model_executor.model_runner import ModelRunner

logger = logging.getLogger(__name__)

# Every rank runs the same steps, so a count of steps tells all of them to report at the same one; a clock would not.
REPORT_EVERY_STEPS = 64


class UnpreparedMode(ValueError):
    """The mode exists but was not prepared at the start. The message names the remedy."""


class VerifySwitch:
    """Shared by the attention backends of one model runner.

    Args:
        mode: at the start.
        modes: that can be switched to, ``mode`` included.
        kernels: name of the kernel of OFF and of ON, where there is one.
        totals: statistics of ``validate``; needed if it is among ``modes``.
        remark: why a kernel is missing.
    """

    def __init__(
        self,
        mode: VerifyMode,
        modes: tuple[VerifyMode, ...],
        kernels: Mapping[VerifyMode, str],
        totals: UlpTotals | None = None,
        remark: str | None = None,
    ):
        self.modes = modes
        self.kernels = dict(kernels)
        self.totals = totals
        self.remark = remark
        self.graph_bytes: dict[VerifyMode, int] = {}
        self.delegate_buffer_bytes = 0
        self.switches = 0
        self.since: float | None = None
        self.on_report: Callable[[], None] | None = None
        self._steps = 0
        self._reset_due = False
        self._prepared = False
        self._mode = mode
        if mode is VerifyMode.VALIDATE:
            self.restart_count()

    @property
    def mode(self) -> VerifyMode:
        """In force for the next step."""
        return self._mode

    @property
    def running(self) -> VerifyMode:
        """Of the forward that is prepared, run or captured now: graphs of every mode are captured at the start."""
        captured = get_capture_attention_variant()
        return self._mode if captured is None else VerifyMode(captured)

    @property
    def steps(self) -> int:
        """Forwards compared since ``validate`` was entered."""
        return 0 if self._reset_due else self._steps

    @property
    def needs_delegate(self) -> bool:
        return any(mode.runs_delegate for mode in self.modes)

    def set(self, mode: VerifyMode) -> VerifyMode:
        """Serve from the next step on by ``mode``; returns the mode until now. Entering ``validate`` counts anew.

        Raises:
            UnpreparedMode: it is not among ``modes``.
        """
        if mode not in self.modes:
            raise UnpreparedMode(self._why_unprepared(mode))
        previous, self._mode = self._mode, mode
        if mode is VerifyMode.VALIDATE:
            self.restart_count()
        if mode is not previous:
            self.switches += 1
            logger.info("ddtree verify: switched from %s to %s", previous.value, mode.value)
        return previous

    def _why_unprepared(self, mode: VerifyMode) -> str:
        needed = {VerifyMode.OFF: mode.runs_delegate, VerifyMode.ON: mode.runs_ours}
        lacking = [m.value for m, needs in needed.items() if needs and m not in self.kernels]
        if lacking:
            return (
                f"mode {mode.value!r} is not possible: this model on this device has no kernel for "
                f"{' and '.join(repr(m) for m in lacking)} ({self.remark or 'none is built in'})"
            )
        wanted = ",".join(m.value for m in VerifyMode if m in (*self.modes, mode))
        return (
            f"mode {mode.value!r} was not prepared at the start (prepared: {', '.join(m.value for m in self.modes)}); "
            f"restart with {MODES_FLAG} {wanted}"
        )

    def restart_count(self) -> None:
        # The device's part is done by the next step, on the stream that the steps run on.
        self._reset_due = True
        self.since = time.time()

    def begin_step(self, *, eager: bool) -> None:
        """A decode or verify forward of the target is being prepared (not: to be captured).

        Args:
            eager: layers will be served one by one; then the first of them counts the step, because SGLang may prepare
                such a forward twice. A replay serves none, and counts here.
        """
        if eager:
            self._prepared = True
        else:
            self._count_step()

    def _count_step(self) -> None:
        if self._mode is not VerifyMode.VALIDATE:
            return
        if self._reset_due:
            self.totals.reset()
            self._reset_due = False
            self._steps = 0
        self._steps += 1
        if self._steps % REPORT_EVERY_STEPS == 0 and self.on_report is not None:
            self.on_report()

    @torch.compiler.disable
    def serve(
        self,
        layer: RadixAttention,
        prefix_lens: torch.Tensor,
        *,
        ours: Callable[[], torch.Tensor],
        delegate: Callable[[], torch.Tensor],
    ) -> torch.Tensor:
        """The output of one layer by the mode that is running; may be captured in a CUDA graph.

        Args:
            layer: its id, heads and value size are read.
            prefix_lens: ``[B]`` int32; negative for padded requests, whose rows are not compared.
            ours, delegate: compute ``[T, H * Dv]``, or the same numbers in another shape.
        """
        if self._prepared and get_capture_attention_variant() is None:
            self._prepared = False
            self._count_step()
        mode = self.running
        if mode is VerifyMode.ON:
            return ours()
        served = delegate()
        if mode is VerifyMode.VALIDATE:
            shape = (-1, layer.tp_q_head_num, layer.v_head_dim)
            self.totals.add(layer.layer_id, served.view(shape), ours().view(shape), prefix_lens)
        return served


def open_switch(
    runner: ModelRunner,
    *,
    delegate: str | None,
    ours: str | None,
    default: VerifyMode,
    remark: str | None = None,
) -> VerifySwitch:
    """The switch of the runner's backends, made by the first of them.

    A draft runner gets one that cannot be switched: it attends by the delegate where there is one.

    Args:
        runner: keeps the switch as ``verify_switch``.
        delegate, ours: name of each kernel; None where there is none for this model and device.
        default: where nothing was asked for.
        remark: why a kernel is missing.

    Raises:
        ValueError: what was asked for cannot be had; the message names the flag.
    """
    names = {VerifyMode.OFF: delegate, VerifyMode.ON: ours}
    kernels = {mode: name for mode, name in names.items() if name is not None}
    if getattr(runner, "is_draft_worker", False):
        fixed = VerifyMode.OFF if delegate is not None else VerifyMode.ON
        return VerifySwitch(fixed, (fixed,), kernels)
    switch = getattr(runner, "verify_switch", None)
    if switch is not None:
        return switch

    possible = frozenset(kernels) | (frozenset((VerifyMode.VALIDATE,)) if len(kernels) == 2 else frozenset())
    requested = _requested()
    for mode in (requested.modes or frozenset()) | ({requested.mode} - {None}):
        if mode not in possible:
            raise ValueError(
                f"{FLAG}: mode {mode.value!r} is not possible with this model on device {runner.device!r} "
                f"({remark or 'a kernel is missing'}); choose {', '.join(m.value for m in VerifyMode if m in possible)}"
            )
    mode, modes = requested.resolve(default, possible)
    totals = None
    if VerifyMode.VALIDATE in modes:
        totals = UlpTotals(*_layers_of(runner.token_to_kv_pool), runner.device)
    switch = VerifySwitch(mode, modes, kernels, totals, remark)
    runner.verify_switch = switch
    logger.info(
        "ddtree verify: %s (off: %s; on: %s); can be switched to: %s",
        mode.value,
        delegate or f"none ({remark})",
        ours or f"none ({remark})",
        ", ".join(m.value for m in modes if m is not mode) or "nothing else",
    )
    return switch


def _layers_of(pool: KVCache) -> tuple[int, int]:
    """Number of layers from the first to the last that the pool has rows of, and the id of the first."""
    # Beside recurrent layers, whose ids lie between.
    attending = getattr(pool, "full_attention_layer_id_mapping", None)
    if attending is None:
        return pool.layer_num, pool.start_layer
    return max(attending) - min(attending) + 1, min(attending)


def _requested() -> Requested:
    """What the launch asked for; nothing where a backend is made without a server, as in unit tests."""
    context = get_context()
    if not context.is_config_namespace_published("exec"):
        return Requested()
    kernel = get_exec().kernel
    return Requested.from_values(kernel.ddtree_verify, kernel.ddtree_verify_modes, get_serving().admin_api_key)
