# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmark.receipts [--write]``: exit status 0 if all is well, 1 if not, told in a line each."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmark.receipts import check, pages, store


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmark.receipts", description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the figures into the pages")
    parser.add_argument("files", nargs="*", type=Path, help="only check these receipts")
    arguments = parser.parse_args()
    problems = [problem for path in arguments.files or store.files() for problem in check.problems(path)]
    notes: list[str] = []
    if not arguments.files and not problems:
        notes = [note for path in store.files() for note in check.notes(path)]
        problems = pages.update(store.Store(), write=arguments.write)
    for problem in problems:
        print(problem, file=sys.stderr)
    for note in notes:
        print(f"note: {note}")
    checked = len(arguments.files or store.files())
    print(f"{checked} receipts, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
