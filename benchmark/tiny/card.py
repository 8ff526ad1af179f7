# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmark.tiny.card OUT``: what ``models/`` keeps of a training run.

For each kind that the run made: checkpoints, ``training.json``, the picture of the
loss, the model card, and the SHA-256 of them all.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from benchmark.tiny import corpus, export, vocabulary
from benchmark.tiny.sizes import BLOCK, DRAFTERS, LONGEST, TARGETS

KEPT = Path(__file__).parents[2] / "models"
NAMES = {"mla": "DeepSeek-V3 (MLA)", "gqa": "Qwen3 (GQA)"}


def picture(report: dict[str, Any], path: Path) -> None:
    """Loss of target and drafter, with the held-out figure of each."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6))
    for axis, part, held_out in zip(
        axes, ("target", "drafter"), ("held-out loss", "held-out accept length"), strict=True
    ):
        axis.plot(*zip(*report[part]["points"], strict=True), label="training loss")
        axis.set_title(f"{report['kind'].upper()} {part}")
        axis.set_xlabel("step")
        axis.set_ylabel("nats a token")
        other = axis if part == "target" else axis.twinx()
        other.plot(*zip(*report[part]["checks"], strict=True), color="tab:orange", label=held_out)
        if other is not axis:
            other.set_ylabel("tokens a step")
        lines = [line for one in {axis, other} for line in one.get_lines()]
        axis.legend(lines, [line.get_label() for line in lines], loc="center right")
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)


def card(report: dict[str, Any]) -> str:
    """The model card, in Markdown."""
    kind = report["kind"]
    size, draft = TARGETS[kind], DRAFTERS[kind]
    target, drafter = report["target"], report["drafter"]
    model = f"model, windows of {LONGEST}"
    quality = "\n".join(
        f"| {name} | {row['tokens']:,} | {row[model]:.2f} | {row['model, windows of 1024']:.2f} | {row['trigram']:.2f} "
        f"| {report['accept_length'][name]:.2f} |"
        for name, row in report["perplexity"].items()
    )
    return f"""---
license: apache-2.0
---
# trained-{kind}: a small target and its DFLASH drafter

Two models for trying and testing speculative decoding, made by `python -m benchmark.tiny`. They continue Python code;
they are no assistants and know nothing else.

| | architecture | layers | hidden | parameters |
|---|---|---|---|---|
| `target/` | {NAMES[kind]}, dense, {size.heads} heads | {size.layers} | {size.hidden} | {report["parameters"]["target"]:,} |
| `draft/` | `DFlashDraftModel`, block {BLOCK}, reads layers {", ".join(map(str, size.captured))} | {draft.layers} | {draft.hidden} | {report["parameters"]["draft"]:,} |

Weights are bf16. The drafter uses the target's embedding and head. Byte-level BPE of {vocabulary.SIZE:,} tokens. Context {LONGEST:,}.

## Data

The `.py` files of CPython {corpus.RELEASE}'s `Lib`, without `encodings/` and files that are not UTF-8
(`benchmark/tiny/corpus.py`; sha256 of names and contents `{report["corpus_sha256"]}`). The files whose path's SHA-256
begins with a byte below {corpus.HELD_OUT_BYTES}, 5 % of them, were held out. {report["training_tokens"]:,} training tokens.

## Training

Seed {report["seed"]}, one {report["device"]}, torch {report["torch"]}; both pairs were trained on it at the same time.

| | steps | tokens | seconds | last loss |
|---|---|---|---|---|
| target: next token, AdamW, {target["recipe"]["batch"]} windows of {target["recipe"]["length"]:,} tokens, every eighth step {LONGEST:,} | {target["steps"]:,} | {target["tokens"]:,} | {target["seconds"]:.0f} | {target["points"][-1][1]:.3f} |
| drafter: block diffusion (arXiv 2602.06036) on the target's features; three quarters of the text written by the target, half of that greedily, half at temperature 1 | {drafter["steps"]:,} | {drafter["tokens"]:,} predicted | {drafter["seconds"]:.0f} | {drafter["points"][-1][1]:.3f} |

{"The clock ended this run, so another machine takes another number of steps." if target["by_clock"] else ""}
![loss](training.png)

## Quality on held-out files

| text | tokens | perplexity, windows of {LONGEST:,} | of 1,024 | trigram model | DFLASH tokens a step, greedy |
|---|---|---|---|---|---|
{quality}

Perplexity is a token's. The trigram model has interpolated Kneser-Ney smoothing over the same tokens (`benchmark/tiny/trigram.py`).
`library` is code, `tests` are the library's test suites, `prose` is `pydoc_data/topics.py`. Tokens a step include the bonus
token; {BLOCK} is the most.

## Licence and limits

The training text is CPython's, copyright Python Software Foundation, under the PSF License Agreement; the weights hold no copy
of it but may repeat parts. The weights are under Apache-2.0 as far as we have rights in them. Nothing they write should be run unread.
"""


def keep(out: Path, kind: str, kept: Path = KEPT) -> Path:
    """Move what a run made of a kind to its place; returns the place."""
    report = json.loads((out / f"{kind}.json").read_text())
    place = kept / f"trained-{kind}"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(out / kind, place)
    target, drafter = export.read_pair(place, kind)
    report["parameters"] = {
        name: sum(p.numel() for p in model.parameters()) for name, model in (("target", target), ("draft", drafter))
    }
    (place / "training.json").write_text(json.dumps(report, indent=1) + "\n")
    picture(report, place / "training.png")
    (place / "README.md").write_text(card(report))
    sums = export.hashes(place)
    (place / "SHA256SUMS").write_text("".join(f"{digest}  {path}\n" for path, digest in sums.items()))
    return place


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmark.tiny.card", description=__doc__)
    parser.add_argument("out", type=Path, help="the --out of a run")
    out = parser.parse_args().out
    for report in sorted(out.glob("*.json")):
        print(keep(out, report.stem))


if __name__ == "__main__":
    main()
