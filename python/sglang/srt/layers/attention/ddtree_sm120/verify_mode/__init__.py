# SPDX-License-Identifier: Apache-2.0
"""The cutover switch: which kernel attends in decode and verify, compared and changed while the server runs.

| file | what it has |
|---|---|
| ``mode.py`` | the three modes, and what flags and environment ask for |
| ``switch.py`` | the mode in force and the statistics of ``validate``; owned by the target's model runner |
| ``ulp.py``, ``ulp_kernel.py`` | the comparison of two outputs on the device |
| ``graph_variants.py`` | one set of CUDA graphs for each mode that can be switched to, and what a set costs |
| ``triton_delegate.py``, ``mask_bytes.py`` | upstream's Triton verify and decode with bounded buffers |
| ``control.py``, ``report.py`` | the scheduler's side: requests, metrics, the log line |
| ``endpoint.py`` | ``/ddtree_verify`` |
| ``launch_check.py`` | refusals before anything is started |

docs/verify-switch.md is the page for users.
"""
