# SPDX-License-Identifier: Apache-2.0
"""Does this machine have what the flags ask for?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from sglang._cpu.environment import uses_cpu_engine
from sglang.srt.launch_checks.error import LaunchError

if TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs

# Names that a plugin adds are not here: only its author knows where they run.
_NOT_ON_A_CPU = frozenset(
    {
        "aiter",
        "ascend",
        "cutedsl_mla",
        "dsa",
        "dsv4",
        "fa3",
        "fa4",
        "flashinfer",
        "flashmla",
        "hpc_ops",
        "intel_xpu",
        "minicpm_flashattn",
        "minicpm_flashinfer",
        "nsa",
        "qsa",
        "tokenspeed_mla",
        "triton",
        "trtllm_mha",
        "trtllm_mla",
        "wave",
    }
)
_BACKEND_FLAGS = (
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "speculative_draft_attention_backend",
)


def check_machine(server_args: ServerArgs) -> None:
    """Refuse CUDA without a usable GPU, and on a CPU the backends that need one.

    Reads raw arguments, before any default is filled in.
    """
    device = server_args.device
    if device is not None and device.startswith("cuda") and not torch.cuda.is_available():
        raise LaunchError(
            f"--device {device}: torch {torch.__version__} sees no CUDA GPU. Use --device cpu, "
            "or install a CUDA build of torch and check the driver with nvidia-smi."
        )
    if not (device == "cpu" or (device is None and uses_cpu_engine())):
        return
    for field in _BACKEND_FLAGS:
        name = getattr(server_args, field)
        if name in _NOT_ON_A_CPU:
            flag = "--" + field.replace("_", "-")
            raise LaunchError(f"{flag} {name} needs an accelerator and the device is a CPU. Use {flag} ddtree_sm120.")
