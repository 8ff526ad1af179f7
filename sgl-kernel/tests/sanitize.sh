#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# sanitize.sh [TOOL...]: compute-sanitizer over a small selection of calls; all three tools by default. Each is 0 or the
# script fails. Run it on a machine with a card, after `make -C sgl-kernel lib`.
set -euo pipefail
cd "$(dirname "$0")"
tools=("$@")
[ ${#tools[@]} -gt 0 ] || tools=(memcheck racecheck synccheck)
for tool in "${tools[@]}"; do
  echo "== $tool"
  # torch's own kernels are left out of racecheck and synccheck: only what this package launches is judged.
  filter=()
  [ "$tool" = memcheck ] || filter=(--kernel-name regex:tree_)
  PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool "$tool" --error-exitcode 9 "${filter[@]}" \
    "${PYTHON:-python3}" sanitize_cases.py
done
