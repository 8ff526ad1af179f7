# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmark.accept``: accept length by algorithm and tree on the trained pair, on a CPU."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tqdm import tqdm

from benchmark import receipt
from benchmark.accept import intervals, prompts, report
from benchmark.accept.replay import CHAIN, Replay, Tree
from benchmark.accept.servers import BUILD, Answer, Configuration, serve
from benchmark.tiny.export import read_pair
from benchmark.tiny.sizes import BLOCK
from tools.tiny_models import ModelPair, ensure

BUDGETS = (8, 16, 32, 64, 128)
WIDTHS = (2, 4, 8)
# More do not help models of this size, of a server or of the replay.
THREADS = 1
MODES = {"greedy": 0.0, "temperature 1": 1.0}
# These are served; the others are replayed, which is checked against what was served.
SERVED_WIDTH = 8
SERVED_BUDGETS = [32]
Outputs = dict[tuple[str, int], Answer]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmark.accept", description=__doc__)
    parser.add_argument("--kind", choices=("mla", "gqa"), default="mla", help="which trained pair")
    parser.add_argument("--tokens", type=int, default=80, help="tokens a request generates")
    parser.add_argument("--prompts", type=int, default=prompts.EACH, help="prompts of each kind of text")
    parser.add_argument("--served", type=int, nargs="*", default=SERVED_BUDGETS, help="budgets that a server runs with")
    parser.add_argument("--at-once", type=int, default=2, help="servers that run beside each other, a thread each")
    parser.add_argument("--out", type=Path, default=receipt.REPO / "benchmark" / "results")
    return parser.parse_args()


def ask(configuration: Configuration, pair: ModelPair, texts: list[list[int]], tokens: int) -> Outputs:
    """All answers of one server, by mode and number of the prompt."""
    began = time.monotonic()
    with serve(configuration, pair, THREADS) as client:
        ready = time.monotonic()
        answers = {
            (mode, i): client.generate(ids, tokens, temperature)
            for mode, temperature in MODES.items()
            for i, ids in enumerate(texts)
        }
    tqdm.write(f"{configuration}: ready after {ready - began:.0f} s, answered in {time.monotonic() - ready:.0f} s")
    return answers


def served_steps(answers: Outputs, mode: str, tokens: int, count: int) -> list[list[int]]:
    """Accepted drafts of each step, by prompt. Without speculation a step gives one token."""
    return [
        [depth for depth, times in enumerate(a.histogram or [tokens - 1]) for _ in range(times)]
        for a in (answers[mode, i] for i in range(count))
    ]


def check(replayed: list[list[int]], served: list[list[int]], what: str) -> None:
    """Greedy steps of a server must be those of the replay.

    A server also counts the steps near its last token, whose block the text no longer holds.

    Raises:
        SystemExit: they are not, which means that one of the two is wrong.
    """
    for i, (mine, theirs) in enumerate(zip(replayed, served, strict=True)):
        surplus = Counter(theirs)
        surplus.subtract(Counter(mine))
        if min(surplus.values(), default=0) < 0 or sum(surplus.values()) > BLOCK:
            raise SystemExit(f"error: {what}, prompt {i}: a server accepted {theirs}, the replay {mine}")


def row(name: str, mode: str, steps: list[list[int]], chain: list[list[int]] | None, how: str) -> dict[str, Any]:
    """One line of the receipt."""
    mean, low, high = intervals.accept_length(steps)
    line = {
        "name": name,
        "mode": mode,
        "how": how,
        "accept_length": mean,
        "interval_95": [low, high],
        "steps": sum(map(len, steps)),
        "tokens": sum(map(sum, steps)) + sum(map(len, steps)),
    }
    if chain is not None:
        ahead, low, high = intervals.difference(steps, chain)
        line["ahead_of_chain"], line["ahead_interval_95"] = ahead, [low, high]
    return line


def main() -> None:
    args = arguments()
    began = time.monotonic()
    torch.set_num_threads(THREADS)
    chosen = [p for kind in prompts.KINDS for p in [q for q in prompts.load() if q.kind == kind][: args.prompts]]
    pair = ensure(BUILD / "tiny-models", f"trained-{args.kind}")
    tokenizer = Tokenizer.from_file(str(pair.target / "tokenizer.json"))
    texts = [tokenizer.encode(prompt.text).ids for prompt in chosen]
    served = [
        Configuration(None),
        Configuration("NGRAM"),
        Configuration("DFLASH"),
        *(Configuration("DDTREE", Tree(budget, SERVED_WIDTH)) for budget in args.served),
    ]
    with ThreadPoolExecutor(args.at_once) as pool:
        asked = {c: pool.submit(ask, c, pair, texts, args.tokens) for c in served}
        try:
            outputs = {c: answers.result() for c, answers in tqdm(asked.items(), desc="servers")}
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    plain = outputs[served[0]]
    for configuration, answers in outputs.items():
        wrong = [i for i in range(len(texts)) if answers["greedy", i].ids != plain["greedy", i].ids]
        if wrong:
            raise SystemExit(f"error: {configuration} gave other greedy tokens than plain decoding for prompts {wrong}")

    target, drafter = read_pair(pair.target.parent, args.kind)
    trees = [Tree(budget, topk, spine) for spine in (True, False) for topk in WIDTHS for budget in BUDGETS]
    rows: list[dict[str, Any]] = []
    for mode in MODES:
        count = len(texts)
        replays = [
            Replay(target, drafter, ids, plain[mode, i].ids)
            for i, ids in enumerate(tqdm(texts, desc=f"drafts, {mode}"))
        ]
        replayed = {tree: [replay.steps(tree) for replay in replays] for tree in tqdm([CHAIN, *trees], desc="trees")}
        chain = replayed[CHAIN]
        for configuration, answers in outputs.items():
            steps = served_steps(answers, mode, args.tokens, count)
            rows.append(row(str(configuration), mode, steps, None, "server"))
            tree = CHAIN if configuration.algorithm == "DFLASH" else configuration.tree
            if mode == "greedy" and tree is not None:
                check(replayed[tree], steps, str(configuration))
        rows.append(row("DFLASH", mode, chain, None, "replay"))
        for tree in trees:
            name = f"budget {tree.budget}, K {tree.topk}" + ("" if tree.spine else ", no spine")
            line = row(f"DDTREE {name}", mode, replayed[tree], chain, "replay")
            line |= {"budget": tree.budget, "topk": tree.topk, "spine": tree.spine}
            if tree.spine:
                bare = replayed[Tree(tree.budget, tree.topk, spine=False)]
                gain, low, high = intervals.difference(replayed[tree], bare)
                line |= {"spine_gain": gain, "spine_gain_interval_95": [low, high]}
            rows.append(line)
        for kind in prompts.KINDS:
            some = [i for i, prompt in enumerate(chosen) if prompt.kind == kind]
            for name, tree in (("DFLASH", CHAIN), (f"DDTREE budget 32, K {SERVED_WIDTH}", Tree(32, SERVED_WIDTH))):
                steps = [replayed[tree][i] for i in some]
                rows.append(row(f"{name}, {kind}", mode, steps, [chain[i] for i in some], "replay by kind of text"))

    name = f"accept-{args.kind}"
    sources = [path for folder in ("accept", "tiny") for path in (receipt.REPO / "benchmark" / folder).glob("*.py")]
    config = {
        "servers_at_once": args.at_once,
        "seconds": round(time.monotonic() - began),
        "pair": args.kind,
        "prompts": len(texts),
        "tokens": args.tokens,
        "block": BLOCK,
        "dtype": "float32",
        "batch": 1,
        "threads": THREADS,
    }
    made = receipt.make_receipt(name, rows, config=config, sources=sources)
    receipt.write_receipt(args.out / f"{name}.json", made)
    report.picture(rows, args.out / f"{name}.png", args.kind)
    print(report.table(rows))


if __name__ == "__main__":
    main()
