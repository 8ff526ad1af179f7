# SPDX-License-Identifier: Apache-2.0
"""Examines the fork that is installed in the running Python: its files, the machine, and what would run.

Needs nothing but the installed packages, and changes nothing.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from fork.doctor import backend, installation, kernels, machine
from fork.doctor.finding import Finding

_MARKS = {True: "ok", False: "WRONG", None: "-"}


def main(*, as_json: bool, quick: bool) -> int:
    """Prints the report; 0 if nothing is wrong, else 1. ``quick`` leaves out what needs SGLang to be imported."""
    findings = examine(quick=quick)
    wrong = [finding for finding in findings if finding.ok is False]
    if as_json:
        print(json.dumps({"ok": not wrong, "findings": [asdict(finding) for finding in findings]}, indent=1))
    else:
        width = max(len(finding.what) for finding in findings)
        for finding in findings:
            first, *rest = finding.said.splitlines()
            print(f"{_MARKS[finding.ok]:5}  {finding.what:{width}}  {first}")
            print("".join(f"{' ' * (width + 9)}{line}\n" for line in rest), end="")
    return 1 if wrong else 0


def examine(*, quick: bool) -> list[Finding]:
    installed, findings = installation.examine()
    if not installed:
        return findings
    gpus, told = machine.examine()
    findings += [*told, *kernels.examine(gpus)]
    if not quick:
        findings.append(backend.examine())
    return findings
