#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# sanitize.sh [TOOL...]: compute-sanitizer over a small selection of calls; all three tools by default. The script fails at
# the first tool that reports anything. Run it on a machine with a card, after `make -C sgl-kernel lib`.
set -euo pipefail
cd "$(dirname "$0")"
tools=("$@")
[ ${#tools[@]} -gt 0 ] || tools=(memcheck racecheck synccheck)
for tool in "${tools[@]}"; do
  echo "== $tool"
  # Only this package's kernels are instrumented: torch's are not judged here, and would take minutes.
  PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool "$tool" --error-exitcode 9 --kernel-regex kns=tree_ \
    "${PYTHON:-python3}" sanitize_cases.py
done
