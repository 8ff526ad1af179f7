# SPDX-License-Identifier: Apache-2.0
"""``python -m tools.tiny_models OUT [--only PAIR ...]``: write the tiny checkpoints."""

from __future__ import annotations

import argparse
from pathlib import Path

from tools.tiny_models import catalog


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.tiny_models")
    parser.add_argument("out", type=Path, help="directory to write to")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=catalog.PAIRS,
        metavar="PAIR",
        help=f"make these pairs and nothing else ({', '.join(catalog.PAIRS)})",
    )
    args = parser.parse_args()
    for pair in args.only or catalog.PAIRS:
        made = catalog.ensure(args.out, pair, print)
        print(f"{pair}: {made.target} {made.draft}")
    if not args.only:
        for mismatch in catalog.MISMATCHES:
            made_at = catalog.ensure_mismatched(args.out, mismatch, print)
            print(f"mismatched {mismatch}: {made_at}")


if __name__ == "__main__":
    main()
