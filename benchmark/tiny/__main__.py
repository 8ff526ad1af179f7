# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmark.tiny --out DIR``: train target and drafter of each kind, evaluate and export them."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from dataclasses import dataclass
from functools import cached_property
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
from benchmark.tiny.training import Curve, Recipe, Studied, Texts, Windows
from benchmark.tiny.trigram import Trigram

# What the target writes for its drafter: prompt and continuation together are one training window.
PROMPT, WRITTEN = 128, 384
# Of the short texts of a drafter's step, the share that the target wrote.
OWN = 0.75
# Peak rates, batches and lengths found on short runs; steps fit a few minutes of an H200 that both pairs share.
RECIPES = {
    ("mla", "target"): Recipe(steps=8900, length=1024, batch=16, peak=3e-3),
    ("mla", "drafter"): Recipe(steps=8000, length=PROMPT + WRITTEN, batch=24, peak=2e-3, decay=0.05),
    ("gqa", "target"): Recipe(steps=4000, length=1024, batch=16, peak=3e-3),
    ("gqa", "drafter"): Recipe(steps=5000, length=PROMPT + WRITTEN, batch=24, peak=2e-3, decay=0.05),
}
DROPOUT = 0.1
BLOCKS = 32
# Held-out prompts of each kind of text: how many, and tokens of each and of what the target says after it. A small
# target soon repeats itself, and that is easily drafted, so the first tokens are judged by themselves too.
EVALUATED, SAID, FIRST = 48, 256, 80


@dataclass(frozen=True)
class Text:
    """The corpus as tokens: int32 ids to train on, held-out ids by the kind of file."""

    sha256: str
    tokenizer: Tokenizer
    ids: Tensor
    held_out: dict[str, Tensor]

    @cached_property
    def trigram(self) -> dict[str, float]:
        """The yardstick: a trigram model's perplexity by kind of file."""
        model = Trigram(self.ids.cpu().numpy(), vocabulary.SIZE)
        return {
            name: math.exp(-model.log_probabilities(ids.cpu().numpy()).mean()) for name, ids in self.held_out.items()
        }


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmark.tiny", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="where checkpoints and logs go")
    parser.add_argument("--kind", nargs="+", choices=TARGETS, default=list(TARGETS), help="which pairs")
    parser.add_argument("--corpus", type=Path, help="a Lib folder or an archive of one; default: this Python's library")
    parser.add_argument("--any-corpus", action="store_true", help="accept another text than the recorded one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for part in ("target", "drafter"):
        parser.add_argument(f"--{part}-steps", type=int, help="default: those of the kept weights")
        parser.add_argument(f"--{part}-seconds", type=float, help="after the first steps, take as many as fit")
        parser.add_argument(f"--{part}-batch", type=int, help="sequences a step")
        parser.add_argument(f"--{part}-peak", type=float, help="highest learning rate")
    parser.add_argument("--targets", type=Path, help="take KIND/target from here and train drafters only")
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs")
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
    """Perplexity a token by kind of file, at two window lengths."""
    return {
        kind: {
            "tokens": len(ids),
            f"model, windows of {LONGEST}": math.exp(evaluation.mean_loss(target, ids, LONGEST, batch=4)),
            "model, windows of 1024": math.exp(evaluation.mean_loss(target, ids, 1024)),
        }
        for kind, ids in text.held_out.items()
    }


def recipe_of(kind: str, part: str, args: argparse.Namespace) -> Recipe:
    """The recipe of a ``"target"`` or ``"drafter"`` with the command line's changes."""
    said = {key: getattr(args, f"{part}_{key}") for key in ("steps", "seconds", "batch", "peak")}
    changes = {key: value for key, value in said.items() if value is not None}
    graphs = args.device.startswith("cuda") and not args.eager
    return dataclasses.replace(RECIPES[kind, part], **changes, graphs=graphs)


class Report:
    """What there is to say about a pair, written anew whenever something is added."""

    def __init__(self, path: Path, **said: Any) -> None:
        self._path, self._said = path, said

    def add(self, **said: Any) -> None:
        """Add or replace entries."""
        self._said |= said
        self._path.write_text(json.dumps(self._said, indent=1) + "\n")


def train_pair(kind: str, args: argparse.Namespace, text: Text, report: Report) -> None:
    """Train and export one pair."""
    target = trained_target(kind, args, text, report)
    # Rounded as the checkpoint is, so that the drafter learns from the target that will be served.
    for parameter in target.parameters():
        parameter.data = parameter.data.bfloat16().float()
        parameter.requires_grad_(False)
    report.add(perplexity=perplexities(target, text))
    train_drafter(kind, args, text, target, report)


def trained_target(kind: str, args: argparse.Namespace, text: Text, report: Report) -> Target:
    """The target, from a checkpoint if one is named."""
    torch.manual_seed(args.seed)
    target = Target(TARGETS[kind], DROPOUT).to(args.device)
    if args.targets is not None:
        export.read(args.targets / kind / "target", target)
        return target

    def check(curve: Curve) -> float:
        export.write_target(args.out / kind, kind, target, text.tokenizer)
        report.add(target=curve.as_dict())
        return evaluation.mean_loss(target, text.held_out["library"], 1024, limit=48)

    curve = training.train_target(target, Windows(text.ids, args.seed), recipe_of(kind, "target", args), check)
    report.add(target=curve.as_dict())
    return target


def texts_to_study(args: argparse.Namespace, text: Text, target: Target, recipe: Recipe) -> list[list[Texts]]:
    """What a usual step of the drafter takes, and what every eighth takes: the target's own text, and the corpus."""
    windows = Windows(text.ids, args.seed + 1)
    own = training.continuations(
        target,
        windows,
        prompts=args.written,
        prompt=PROMPT,
        new_tokens=WRITTEN,
        batch=min(4096, args.written),
        seed=args.seed,
    )
    share = round(OWN * recipe.batch)
    real, long = (
        Studied(target, windows.draw(max(2, own.numel() // (3 * length)), length)) for length in (own.shape[1], LONGEST)
    )
    a_step = max(1, recipe.batch * recipe.length // LONGEST)
    return [[Texts(Studied(target, own), share), Texts(real, recipe.batch - share)], [Texts(long, a_step)]]


def train_drafter(kind: str, args: argparse.Namespace, text: Text, target: Target, report: Report) -> None:
    """Let the target write, train the drafter on that and on the corpus, export it at every check."""
    torch.manual_seed(args.seed + 1)
    drafter = Drafter(DRAFTERS[kind], len(target.size.captured) * target.size.hidden).to(args.device)
    recipe = recipe_of(kind, "drafter", args)
    short, long = texts_to_study(args, text, target, recipe)
    prompts = torch.cat([Windows(ids, 1).draw(EVALUATED, SAID) for ids in text.held_out.values()])
    said = evaluation.greedy_texts(target, prompts, SAID)
    greedy = dict(zip(text.held_out, said.split(EVALUATED), strict=True))

    def check(curve: Curve) -> float:
        export.write_pair(args.out / kind, kind, target, drafter, text.tokenizer)
        length = evaluation.accept_length(target, drafter, greedy["library"], SAID)
        report.add(drafter=curve.as_dict() | {"checks": [*curve.checks, (curve.steps, length)]})
        return length

    training.train_drafter(drafter, target, short, long, recipe, BLOCKS, check, args.seed + 2)
    report.add(
        accept_length={
            name: {
                f"first {said} tokens": evaluation.accept_length(target, drafter, ids[:, : SAID + said], SAID)
                for said in (FIRST, SAID)
            }
            for name, ids in greedy.items()
        }
    )


def main() -> None:
    args = arguments()
    training.make_repeatable()
    args.out.mkdir(parents=True, exist_ok=True)
    text = read_text(args)
    for kind in args.kind:
        report = Report(
            args.out / f"{kind}.json",
            kind=kind,
            seed=args.seed,
            corpus_sha256=text.sha256,
            training_tokens=len(text.ids),
            written=args.written,
            blocks=BLOCKS,
            device=torch.cuda.get_device_name() if args.device.startswith("cuda") else "CPU",
            torch=torch.__version__,
        )
        train_pair(kind, args, text, report)
        report.add(trigram=text.trigram)


if __name__ == "__main__":
    main()
