# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmark.tiny --out DIR``: train target and drafter of each kind, evaluate and export them."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from benchmark.tiny import corpus, evaluation, export, training, vocabulary
from benchmark.tiny.drafter import Drafter
from benchmark.tiny.sizes import DRAFTERS, LONGEST, TARGETS
from benchmark.tiny.target import Target
from benchmark.tiny.training import Recipe, Windows
from benchmark.tiny.trigram import Trigram

# Peak rates, batches and lengths found on short runs; steps fit a few minutes of an H200.
TARGET_RECIPE = Recipe(steps=9000, seconds=math.inf, length=1024, batch=16, peak=3e-3)
DRAFTER_RECIPE = Recipe(steps=5000, seconds=math.inf, length=512, batch=32, peak=2e-3, decay=0.05)
DROPOUT = 0.05
BLOCKS = 32
# What the target writes for its drafter: prompt and continuation together are one training window.
PROMPT, WRITTEN = 128, 384
# Tokens of the prompts that the accept length is measured on.
EVALUATED = 256


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmark.tiny", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="where checkpoints and logs go")
    parser.add_argument("--kind", nargs="+", choices=TARGETS, default=list(TARGETS), help="which pairs")
    parser.add_argument("--corpus", type=Path, help="a Lib folder or an archive of one; default: this Python's library")
    parser.add_argument("--any-corpus", action="store_true", help="accept another text than the recorded one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for name, recipe in (("target", TARGET_RECIPE), ("drafter", DRAFTER_RECIPE)):
        parser.add_argument(f"--{name}-steps", type=int, default=recipe.steps)
        parser.add_argument(f"--{name}-seconds", type=float, default=math.inf, help="end earlier, learning rate at 0")
        parser.add_argument(f"--{name}-batch", type=int, default=recipe.batch)
    parser.add_argument("--compile", action="store_true", help="compile the layers for training")
    parser.add_argument("--written", type=int, default=8192, help="windows that the target writes for its drafter")
    return parser.parse_args()


def tokens_of(tokenizer: Tokenizer, sources: list[corpus.Source], device: str) -> Tensor:
    """int32 ids of the files, on the device."""
    ids = vocabulary.encode(tokenizer, [source.text for source in sources])
    return torch.from_numpy(ids.astype(np.int32)).to(device)


def held_out_sets(tokenizer: Tokenizer, text: corpus.Corpus, device: str) -> dict[str, Tensor]:
    """Held-out ids by the kind of file."""
    kinds: dict[str, list[corpus.Source]] = {"library": [], "tests": [], "prose": []}
    for source in text.held_out:
        kinds["tests" if source.is_test else "prose" if source.path.startswith("pydoc_data") else "library"].append(
            source
        )
    return {kind: tokens_of(tokenizer, sources, device) for kind, sources in kinds.items()}


def perplexities(target: Target, held_out: dict[str, Tensor], yardstick: Trigram) -> dict[str, Any]:
    """Perplexity a token by kind of file: the model at two window lengths, and the trigram model."""
    return {
        kind: {
            "tokens": len(ids),
            f"model, windows of {LONGEST}": math.exp(evaluation.mean_loss(target, ids, LONGEST, batch=4)),
            "model, windows of 1024": math.exp(evaluation.mean_loss(target, ids, 1024)),
            "trigram": math.exp(-yardstick.log_probabilities(ids.cpu().numpy()).mean()),
        }
        for kind, ids in held_out.items()
    }


def recipes(args: argparse.Namespace) -> tuple[Recipe, Recipe]:
    """Both recipes with the command line's changes."""
    return tuple(
        dataclasses.replace(
            recipe,
            steps=getattr(args, f"{name}_steps"),
            seconds=getattr(args, f"{name}_seconds"),
            batch=getattr(args, f"{name}_batch"),
        )
        for name, recipe in (("target", TARGET_RECIPE), ("drafter", DRAFTER_RECIPE))
    )


def train_pair(
    kind: str,
    args: argparse.Namespace,
    tokenizer: Tokenizer,
    ids: Tensor,
    held_out: dict[str, Tensor],
    yardstick: Trigram,
) -> dict[str, Any]:
    """Train and export one pair; returns what there is to say about it."""
    device = args.device
    for_target, for_drafter = recipes(args)
    torch.manual_seed(args.seed)
    size = TARGETS[kind]
    target = Target(size, DROPOUT).to(device)
    drafter = Drafter(DRAFTERS[kind], len(size.captured) * size.hidden).to(device)
    directory = args.out / kind
    if args.compile:
        for model in (target, drafter):
            model.train_layer = torch.compile(model.train_layer, dynamic=False)

    library = held_out["library"]
    curve = training.train_target(
        target,
        Windows(ids, args.seed),
        for_target,
        lambda: evaluation.mean_loss(target, library, 1024, limit=48),
    )
    # Rounded as the checkpoint is, so that the drafter learns from the target that will be served.
    for parameter in target.parameters():
        parameter.data = parameter.data.bfloat16().float()
        parameter.requires_grad_(False)
    export.write_pair(directory, kind, target, drafter, tokenizer)
    report = {"kind": kind, "target": curve.as_dict(), "perplexity": perplexities(target, held_out, yardstick)}
    print(json.dumps(report["perplexity"], indent=1), flush=True)

    windows = Windows(ids, args.seed + 1)
    began = time.monotonic()
    written = training.continuations(
        target,
        windows,
        prompts=args.written,
        prompt=PROMPT,
        new_tokens=WRITTEN,
        batch=min(1024, args.written),
        seed=args.seed,
    )
    report["written"] = {"windows": len(written), "seconds": time.monotonic() - began}
    choice = torch.Generator().manual_seed(args.seed + 2)

    def texts() -> Tensor:
        """Three quarters of what the target wrote, one quarter of the corpus."""
        own = 3 * for_drafter.batch // 4
        rows = torch.randint(len(written), (own,), generator=choice)
        real = windows.draw(for_drafter.batch - own, PROMPT + WRITTEN)
        return torch.cat((written[rows.to(device)], real))

    some_texts = evaluation.greedy_texts(target, Windows(library, 0).draw(16, EVALUATED))
    drafter_curve = training.train_drafter(
        drafter,
        target,
        texts,
        BLOCKS,
        for_drafter,
        lambda: evaluation.accept_length(target, drafter, some_texts, EVALUATED),
        args.seed + 3,
    )
    export.write_pair(directory, kind, target, drafter, tokenizer)
    return report | {
        "drafter": drafter_curve.as_dict(),
        "accept_length": {
            name: evaluation.accept_length(
                target, drafter, evaluation.greedy_texts(target, Windows(some, 1).draw(48, EVALUATED)), EVALUATED
            )
            for name, some in held_out.items()
        },
    }


def main() -> None:
    args = arguments()
    # cuBLAS is only repeatable with a workspace of fixed size.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    text = corpus.load(args.corpus)
    if text.sha256 != corpus.SHA256 and not args.any_corpus:
        raise SystemExit(
            f"error: this is not the text of CPython {corpus.RELEASE} (sha256 {text.sha256}). Name its Lib folder or "
            "an archive of it with --corpus, or say --any-corpus to train on what is here."
        )
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer = vocabulary.train(source.text for source in text.training)
    print(f"{len(text.sources)} files, {len(text.held_out)} of them held out, sha256 {text.sha256}", flush=True)
    ids = tokens_of(tokenizer, text.training, args.device)
    held_out = held_out_sets(tokenizer, text, args.device)
    yardstick = Trigram(ids.cpu().numpy(), vocabulary.SIZE)
    print(
        f"{len(ids)} training tokens, held out: " + ", ".join(f"{k} {len(v)}" for k, v in held_out.items()), flush=True
    )
    for kind in args.kind:
        report = train_pair(kind, args, tokenizer, ids, held_out, yardstick)
        report |= {
            "seed": args.seed,
            "corpus_sha256": text.sha256,
            "training_tokens": len(ids),
            "device": torch.cuda.get_device_name() if args.device.startswith("cuda") else "CPU",
            "torch": torch.__version__,
        }
        (args.out / f"{kind}.json").write_text(json.dumps(report, indent=1) + "\n")
        print(json.dumps({key: report[key] for key in ("perplexity", "accept_length")}, indent=1), flush=True)


if __name__ == "__main__":
    main()
