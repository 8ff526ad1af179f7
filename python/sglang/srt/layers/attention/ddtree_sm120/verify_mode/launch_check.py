# SPDX-License-Identifier: Apache-2.0
"""The switch's part of a launch: the environment folded into the flags, and refusals before a process is started."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from sglang.srt.arg_groups.model_override_base import attention_backends_of
from sglang.srt.arg_groups.overrides import declare_resolution, resolved_view
from sglang.srt.environ import envs
from sglang.srt.launch_checks.error import LaunchError
from sglang.srt.layers.attention.ddtree_sm120.verify_mode.mode import FLAG, MODES_FLAG, Requested, parse_mode

if TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs

logger = logging.getLogger(__name__)

VARIABLE = "SGLANG_DDTREE_VERIFY"


def check_verify_mode(server_args: ServerArgs) -> None:
    """Read after the other arguments are resolved.

    Raises:
        LaunchError: a mode that does not exist, flags that contradict each other, or flags without the backend.
    """
    cfg = resolved_view(server_args)
    has_backend = "ddtree_sm120" in attention_backends_of(cfg)
    for flag, value in ((FLAG, cfg.ddtree_verify), (MODES_FLAG, cfg.ddtree_verify_modes)):
        if value is not None and not has_backend:
            raise LaunchError(f"{flag} belongs to --attention-backend ddtree_sm120; add that or leave {flag} out.")
    mode = cfg.ddtree_verify
    variable = envs.SGLANG_DDTREE_VERIFY.get()
    if mode is None and variable:
        if not has_backend:
            logger.warning("%s=%s has no effect without --attention-backend ddtree_sm120.", VARIABLE, variable)
            return
        mode = _checked(parse_mode, variable, VARIABLE).value
        declare_resolution(server_args, "verify_mode", ddtree_verify=mode)
    requested = _checked(Requested.from_values, mode, cfg.ddtree_verify_modes, cfg.admin_api_key)
    if requested.mode is not None and requested.modes is not None:
        _checked(requested.resolve, requested.mode, requested.modes)


def _checked(function, *arguments):
    try:
        return function(*arguments)
    except ValueError as error:
        raise LaunchError(f"{error}.") from error
