# SPDX-License-Identifier: Apache-2.0
"""The scheduler's side of the switch: requests of the endpoint, ``/server_info``, metrics and the log.

A control request reaches every rank of a scheduler between two steps, in the same order, so all of them switch at the
same step and may meet in a collective.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.layers.attention.ddtree_sm120.verify_mode.mode import FLAG, VerifyMode, parse_mode
from sglang.srt.layers.attention.ddtree_sm120.verify_mode.report import ReportLog, publish_mode, publish_report
from sglang.srt.layers.attention.ddtree_sm120.verify_mode.ulp import UlpReport
from sglang.srt.managers.io_struct import DDTreeVerifyReqInput, DDTreeVerifyReqOutput
from sglang.srt.runtime_context import get_parallel
from sglang.utils import TypeBasedDispatcher

if TYPE_CHECKING:
    from sglang.srt.layers.attention.ddtree_sm120.verify_mode.switch import VerifySwitch
    from sglang.srt.managers.scheduler import Scheduler


class VerifyControl:
    """One a scheduler.

    Args:
        switch: of the target's model runner; None with another attention backend.
        labels: of the scheduler's metrics; None on a rank that publishes none.
        group: process group on the host of the ranks that share the heads; None for one rank.
        leads: whether this rank logs.
    """

    def __init__(
        self,
        switch: VerifySwitch | None,
        labels: dict[str, Any] | None,
        group: torch.distributed.ProcessGroup | None,
        leads: bool,
    ):
        self._switch = switch
        self._labels = labels
        self._group = group
        self._leads = leads
        self._log = ReportLog()
        if switch is None:
            return
        self._copy = None if switch.totals is None else _HostCopy(switch.totals.values)
        switch.on_report = self._report
        if switch.mode is VerifyMode.VALIDATE:
            # Warm-up, captures and self-tests are not service.
            switch.restart_count()
        if labels is not None:
            publish_mode(labels, switch.mode)

    @classmethod
    def attach(cls, scheduler: Scheduler) -> VerifyControl:
        """Made when the scheduler's model runner, graphs and dispatcher are there."""
        parallel = get_parallel()
        collector = scheduler.metrics_collector_context
        control = cls(
            getattr(scheduler.tp_worker.model_runner, "verify_switch", None),
            collector.collector.labels if collector.current_scheduler_metrics_enabled else None,
            parallel.attn_tp_group.cpu_group if parallel.attn_tp_size > 1 else None,
            collector.is_stats_logging_rank,
        )
        scheduler._request_dispatcher += TypeBasedDispatcher([(DDTreeVerifyReqInput, control.handle)])
        return control

    def handle(self, request: DDTreeVerifyReqInput) -> DDTreeVerifyReqOutput:
        """Switch, or only report with ``mode`` None. Runs on every rank."""
        switch = self._switch
        if switch is None:
            return DDTreeVerifyReqOutput(
                success=False, message=f"this server does not run --attention-backend ddtree_sm120, so it has no {FLAG}"
            )
        previous, message, success = switch.mode, "", True
        if request.mode is not None:
            try:
                mode = parse_mode(request.mode, "mode")
                if switch.mode is VerifyMode.VALIDATE and mode is not VerifyMode.VALIDATE and mode in switch.modes:
                    self._publish(self._gather(self._counted()), now=True)
                switch.set(mode)
                if self._copy is not None:
                    self._copy.drop()
            except ValueError as error:
                success, message = False, str(error)
            if self._labels is not None:
                publish_mode(self._labels, switch.mode)
        return DDTreeVerifyReqOutput(success=success, message=message, previous=previous.value, state=self.state())

    def add_state(self, state: dict[str, Any]) -> None:
        """Add ``ddtree_verify`` to what ``/server_info`` shows of a scheduler. Runs on every rank."""
        if self._switch is not None:
            state["ddtree_verify"] = self.state()

    def state(self) -> dict[str, Any]:
        """As documented in docs/verify-switch.md. Waits for the device, and meets the other ranks."""
        switch = self._switch
        return {
            "mode": switch.mode.value,
            "modes": [mode.value for mode in switch.modes],
            "kernels": {mode.value: name for mode, name in switch.kernels.items()},
            "remark": switch.remark,
            "switches": switch.switches,
            "memory_bytes": {
                "graphs": {mode.value: size for mode, size in switch.graph_bytes.items()},
                "delegate_buffers": switch.delegate_buffer_bytes,
            },
            "validation": self._validation(),
        }

    def _validation(self) -> dict[str, Any] | None:
        switch = self._switch
        if switch.since is None:
            return None
        return {"since": switch.since, "steps": switch.steps, **vars(self._gather(self._counted()))}

    def _counted(self) -> torch.Tensor:
        """The totals on the host after every step that was launched; zeros before the first, which empties them."""
        values = self._switch.totals.values
        if values.is_cuda:
            # The steps have a stream of their own, which a copy on this one would not wait for.
            torch.cuda.synchronize(values.device)
        totals = values.cpu()
        return totals if self._switch.steps else torch.zeros_like(totals)

    def _report(self) -> None:
        """Every ``REPORT_EVERY_STEPS`` steps of ``validate``, on the stream of the steps: publish what the last call
        copied, which has long arrived, and start the next copy. Nothing is waited for."""
        arrived = self._copy.take()
        if arrived is not None:
            steps, totals = arrived
            self._publish(self._gather(totals), steps=steps)
        self._copy.start(self._switch.steps)

    def _publish(self, report: UlpReport, *, steps: int | None = None, now: bool = False) -> None:
        steps = self._switch.steps if steps is None else steps
        if self._labels is not None:
            publish_report(self._labels, steps, report)
        if self._leads:
            self._log.write(steps, report, now=now)

    def _gather(self, totals: torch.Tensor) -> UlpReport:
        """Over all ranks that share the heads."""
        if self._group is not None:
            parts = [torch.empty_like(totals) for _ in range(torch.distributed.get_world_size(self._group))]
            torch.distributed.all_gather(parts, totals.contiguous(), group=self._group)
            totals = torch.stack(parts)
        return UlpReport.of(totals, self._switch.totals.first_layer)


class _HostCopy:
    """Copies of the totals to the host, one at a time.

    Args:
        totals: on the device.
    """

    def __init__(self, totals: torch.Tensor):
        self._totals = totals
        self._host = torch.empty_like(totals, device="cpu", pin_memory=totals.is_cuda)
        self._arrived = torch.cuda.Event() if totals.is_cuda else None
        self._steps: int | None = None

    def start(self, steps: int) -> None:
        """Copy behind what the current stream has been given, and remember ``steps`` with it."""
        self._host.copy_(self._totals, non_blocking=True)
        if self._arrived is not None:
            self._arrived.record()
        self._steps = steps

    def take(self) -> tuple[int, torch.Tensor] | None:
        """What was started last, once; None if nothing was."""
        steps, self._steps = self._steps, None
        if steps is None:
            return None
        if self._arrived is not None:
            self._arrived.synchronize()
        return steps, self._host

    def drop(self) -> None:
        self._steps = None
