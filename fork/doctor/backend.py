# SPDX-License-Identifier: Apache-2.0
"""Which attention backend a model would get: asked of the installed package itself, which may take a quarter minute."""

from __future__ import annotations

import json
import subprocess
import sys

from fork.doctor.finding import Finding

_PROBE = "sglang.srt.launch_checks.which_backend"
_TIMEOUT_S = 300


def examine() -> Finding:
    try:
        done = subprocess.run(
            [sys.executable, "-m", _PROBE], capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return Finding("MLA backend", f"SGLang did not answer in {_TIMEOUT_S} s", False)
    try:
        answer = json.loads(done.stdout.strip().splitlines()[-1])
        backend, why = str(answer["backend"]), list(map(str, answer["why"]))
    except (ValueError, LookupError, TypeError):
        said = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        return Finding("MLA backend", f"SGLang cannot tell: {said}", False)
    return Finding("MLA backend", "\n".join([f"{backend}, where no flag names one", *why]))
