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
_TEMPLATE = Path(__file__).with_name("card_template.md")
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
        axis.set_ylabel("nats a token" if part == "target" else "weighted loss")
        other = axis if part == "target" else axis.twinx()
        other.plot(*zip(*report[part]["checks"], strict=True), color="tab:orange", label=held_out)
        if other is not axis:
            other.set_ylabel("tokens a step")
        lines = [line for one in {axis, other} for line in one.get_lines()]
        axis.legend(lines, [line.get_label() for line in lines], loc="upper center", bbox_to_anchor=(0.5, -0.2), ncol=2)
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)


def card(report: dict[str, Any]) -> str:
    """The model card, in Markdown."""
    kind = report["kind"]
    size, draft = TARGETS[kind], DRAFTERS[kind]
    target, drafter = report["target"], report["drafter"]
    rows = [
        (
            name,
            f"{row['tokens']:,}",
            *(f"{row[key]:.2f}" for key in (f"model, windows of {LONGEST}", "model, windows of 1024")),
            f"{report['trigram'][name]:.2f}",
            *(f"{length:.2f}" for length in report["accept_length"][name].values()),
        )
        for name, row in report["perplexity"].items()
    ]
    return _TEMPLATE.read_text().format(
        kind=kind,
        architecture=NAMES[kind],
        heads=size.heads,
        layers=size.layers,
        hidden=size.hidden,
        draft_layers=draft.layers,
        block=BLOCK,
        captured=", ".join(map(str, size.captured)),
        target_parameters=report["parameters"]["target"],
        draft_parameters=report["parameters"]["draft"],
        vocabulary=vocabulary.SIZE,
        longest=LONGEST,
        release=corpus.RELEASE,
        held_out_bytes=corpus.HELD_OUT_BYTES,
        corpus_sha256=report["corpus_sha256"],
        training_tokens=report["training_tokens"],
        seed=report["seed"],
        device=report["device"],
        torch=report["torch"],
        batch=target["recipe"]["batch"],
        length=target["recipe"]["length"],
        target_steps=target["steps"],
        target_tokens=target["tokens"],
        target_seconds=target["seconds"],
        target_loss=target["points"][-1][1],
        draft_batch=drafter["recipe"]["batch"],
        draft_length=drafter["recipe"]["length"],
        draft_steps=drafter["steps"],
        draft_tokens=drafter["tokens"],
        draft_seconds=drafter["seconds"],
        draft_loss=drafter["points"][-1][1],
        written=report["written"],
        blocks=report["blocks"],
        said=" | ".join(next(iter(report["accept_length"].values()))),
        quality="\n".join("| " + " | ".join(row) + " |" for row in rows),
    )


def keep(out: Path, kind: str, kept: Path = KEPT) -> Path:
    """Copy what a run made of a kind to its place; returns the place."""
    report = json.loads((out / f"{kind}.json").read_text())
    place = kept / f"trained-{kind}"
    if "target" not in report:
        # Only the drafter is new: what was said of the target stays.
        before = json.loads((place / "training.json").read_text())
        report = {key: before[key] for key in ("target", "perplexity", "trigram")} | report
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
