# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmark.tiny --out DIR``: train target and drafter of each kind, evaluate and export them."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import time
from dataclasses import dataclass
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
from benchmark.tiny.training import Lesson, Recipe, Studied, Windows
from benchmark.tiny.trigram import Trigram

# What the target writes for its drafter: prompt and continuation together are one training window.
PROMPT, WRITTEN = 128, 384
# Peak rates, batches and lengths found on short runs; steps fit a few minutes of an H200.
TARGET_RECIPE = Recipe(steps=9000, seconds=math.inf, length=1024, batch=16, peak=3e-3)
DRAFTER_RECIPE = Recipe(steps=12000, seconds=math.inf, length=PROMPT + WRITTEN, batch=48, peak=3e-3, decay=0.05)
DROPOUT = 0.05
BLOCKS = 32
# Tokens of the prompts that the accept length is measured on.
EVALUATED = 256


@dataclass(frozen=True)
class Text:
    """The corpus as tokens: int32 ids to train on, held-out ids by the kind of file."""

    sha256: str
    tokenizer: Tokenizer
    ids: Tensor
    held_out: dict[str, Tensor]

    def trigram(self) -> Trigram:
        """The yardstick, from the training ids."""
        return Trigram(self.ids.cpu().numpy(), vocabulary.SIZE)


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
        parser.add_argument(f"--{name}-peak", type=float, default=recipe.peak, help="learning rate at the start")
    parser.add_argument("--targets", type=Path, help="take KIND/target from here and train drafters only")
    parser.add_argument("--drafters", type=Path, help="go on from KIND/draft that lie here")
    parser.add_argument("--compile", action="store_true", help="compile the layers for training")
    parser.add_argument("--written", type=int, default=4096, help="windows that the target writes for its drafter")
    return parser.parse_args()


def tokens_of(tokenizer: Tokenizer, sources: list[corpus.Source], device: str) -> Tensor:
    """int32 ids of the files, on the device."""
    ids = vocabulary.encode(tokenizer, [source.text for source in sources])
    return torch.from_numpy(ids.astype(np.int32)).to(device)


def held_out_sets(tokenizer: Tokenizer, text: corpus.Corpus, device: str) -> dict[str, Tensor]:
    """Held-out ids by the kind of file."""
    kinds: dict[str, list[corpus.Source]] = {"library": [], "tests": [], "prose": []}
    for source in text.held_out:
        prose = source.path.startswith("pydoc_data")
        kinds["tests" if source.is_test else "prose" if prose else "library"].append(source)
    return {kind: tokens_of(tokenizer, sources, device) for kind, sources in kinds.items()}


def read_text(args: argparse.Namespace) -> Text:
    """Corpus and tokenizer; the tokenizer of the targets if they are given."""
    files = corpus.load(args.corpus)
    if files.sha256 != corpus.SHA256 and not args.any_corpus:
        raise SystemExit(
            f"error: this is not the text of CPython {corpus.RELEASE} (sha256 {files.sha256}). Name its Lib folder or "
            "an archive of it with --corpus, or say --any-corpus to train on what is here."
        )
    if args.targets is None:
        tokenizer = vocabulary.train(source.text for source in files.training)
    else:
        tokenizer = Tokenizer.from_file(str(args.targets / args.kind[0] / "target" / "tokenizer.json"))
    print(f"{len(files.sources)} files, {len(files.held_out)} of them held out, sha256 {files.sha256}", flush=True)
    text = Text(
        files.sha256,
        tokenizer,
        tokens_of(tokenizer, files.training, args.device),
        held_out_sets(tokenizer, files, args.device),
    )
    counts = ", ".join(f"{kind} {len(ids)}" for kind, ids in text.held_out.items())
    print(f"{len(text.ids)} training tokens, held out: {counts}", flush=True)
    return text


def perplexities(target: Target, text: Text) -> dict[str, Any]:
    """Perplexity a token by kind of file: the model at two window lengths, and the trigram model."""
    yardstick = text.trigram()
    return {
        kind: {
            "tokens": len(ids),
            f"model, windows of {LONGEST}": math.exp(evaluation.mean_loss(target, ids, LONGEST, batch=4)),
            "model, windows of 1024": math.exp(evaluation.mean_loss(target, ids, 1024)),
            "trigram": math.exp(-yardstick.log_probabilities(ids.cpu().numpy()).mean()),
        }
        for kind, ids in text.held_out.items()
    }


def recipes(args: argparse.Namespace) -> tuple[Recipe, Recipe]:
    """Both recipes with the command line's changes."""
    return tuple(
        dataclasses.replace(
            recipe,
            steps=getattr(args, f"{name}_steps"),
            seconds=getattr(args, f"{name}_seconds"),
            batch=getattr(args, f"{name}_batch"),
            peak=getattr(args, f"{name}_peak"),
        )
        for name, recipe in (("target", TARGET_RECIPE), ("drafter", DRAFTER_RECIPE))
    )


def train_pair(kind: str, args: argparse.Namespace, text: Text) -> dict[str, Any]:
    """Train and export one pair; returns what there is to say about it."""
    torch.manual_seed(args.seed)
    size = TARGETS[kind]
    target = Target(size, DROPOUT).to(args.device)
    drafter = Drafter(DRAFTERS[kind], len(size.captured) * size.hidden).to(args.device)
    if args.compile:
        for model in (target, drafter):
            model.train_layer = torch.compile(model.train_layer, dynamic=False)
    for_target, for_drafter = recipes(args)
    report: dict[str, Any] = {"kind": kind}

    if args.targets is None:
        curve = training.train_target(
            target,
            Windows(text.ids, args.seed),
            for_target,
            lambda: evaluation.mean_loss(target, text.held_out["library"], 1024, limit=48),
        )
        report |= {"target": curve.as_dict(), "perplexity": perplexities(target, text)}
        print(json.dumps(report["perplexity"], indent=1), flush=True)
    else:
        export.read(args.targets / kind / "target", target)
    if args.drafters is not None:
        export.read(args.drafters / kind / "draft", drafter)
    # Rounded as the checkpoint is, so that the drafter learns from the target that will be served.
    for parameter in target.parameters():
        parameter.data = parameter.data.bfloat16().float()
        parameter.requires_grad_(False)

    return report | train_drafter(kind, args, text, target, drafter, for_drafter)


def real_windows(written: int) -> list[tuple[int, int]]:
    """Lengths of the corpus windows for the drafter, and how many of each: as much text as the target writes."""
    length = PROMPT + WRITTEN
    return [(size, max(2, written * length // (3 * size))) for size in (length, LONGEST // 2, LONGEST)]


def train_drafter(
    kind: str, args: argparse.Namespace, text: Text, target: Target, drafter: Drafter, recipe: Recipe
) -> dict[str, Any]:
    """Let the target write, train the drafter on that and on the corpus, export the pair at every check."""
    windows = Windows(text.ids, args.seed + 1)
    began = time.monotonic()
    written = training.continuations(
        target,
        windows,
        prompts=args.written,
        prompt=PROMPT,
        new_tokens=WRITTEN,
        batch=min(2048, args.written),
        seed=args.seed,
    )
    seconds = time.monotonic() - began
    choice = torch.Generator().manual_seed(args.seed + 2)
    own = Studied(target, written)
    # Long windows too, so that the drafter knows all positions and distances.
    real = {length: Studied(target, windows.draw(count, length)) for length, count in real_windows(args.written)}

    def lessons(step: int) -> Lesson:
        """Three quarters of what the target wrote, one quarter of the corpus; every fourth step long windows of that.

        Long windows are fewer and get more blocks each.
        """
        if step % 4 == 3:
            length = LONGEST if step % 8 == 7 else LONGEST // 2
            few = max(1, recipe.batch * recipe.length // length)
            return Lesson(*real[length].draw(few, choice), 2 * BLOCKS)
        share = 3 * recipe.batch // 4
        both = zip(own.draw(share, choice), real[recipe.length].draw(recipe.batch - share, choice), strict=True)
        return Lesson(*(torch.cat(pair) for pair in both), BLOCKS)

    some_texts = evaluation.greedy_texts(target, Windows(text.held_out["library"], 0).draw(16, EVALUATED))

    def check() -> float:
        export.write_pair(args.out / kind, kind, target, drafter, text.tokenizer)
        return evaluation.accept_length(target, drafter, some_texts, EVALUATED)

    curve = training.train_drafter(drafter, target, lessons, recipe, check, args.seed + 3)
    export.write_pair(args.out / kind, kind, target, drafter, text.tokenizer)
    lengths = {}
    for name, ids in text.held_out.items():
        greedy = evaluation.greedy_texts(target, Windows(ids, 1).draw(48, EVALUATED))
        lengths[name] = evaluation.accept_length(target, drafter, greedy, EVALUATED)
    return {
        "written": {"windows": len(written), "seconds": seconds},
        "drafter": curve.as_dict(),
        "accept_length": lengths,
    }


def main() -> None:
    args = arguments()
    # cuBLAS is only repeatable with a workspace of fixed size.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    # cuDNN's attention is not repeatable, and in generation it makes a plan for every length.
    torch.backends.cuda.enable_cudnn_sdp(False)
    args.out.mkdir(parents=True, exist_ok=True)
    text = read_text(args)
    for kind in args.kind:
        report = train_pair(kind, args, text)
        report |= {
            "seed": args.seed,
            "corpus_sha256": text.sha256,
            "training_tokens": len(text.ids),
            "device": torch.cuda.get_device_name() if args.device.startswith("cuda") else "CPU",
            "torch": torch.__version__,
        }
        (args.out / f"{kind}.json").write_text(json.dumps(report, indent=1) + "\n")
        print(json.dumps(report["accept_length"], indent=1), flush=True)


if __name__ == "__main__":
    main()
