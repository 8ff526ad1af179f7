# SPDX-License-Identifier: Apache-2.0
"""Corpus, tokenizer, and the trigram model."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import Tokenizer

from benchmark.accept import prompts
from benchmark.tiny import corpus, vocabulary
from benchmark.tiny.card import KEPT
from benchmark.tiny.corpus import Corpus, Source
from benchmark.tiny.trigram import Trigram


def test_folder_and_archive_are_one_corpus(tmp_path):
    lib = tmp_path / "Lib"
    for name, data in {
        "a.py": b"x = 1\n",
        "sub/b.py": "e = 'é'\n".encode(),
        "latin.py": "e = 'é'\n".encode("latin-1"),
        "empty.py": b"\n",
        "encodings/cp1.py": b"x = 1\n",
        "sub/note.txt": b"no\n",
    }.items():
        (lib / name).parent.mkdir(parents=True, exist_ok=True)
        (lib / name).write_bytes(data)
    made = corpus.load(lib)
    assert [source.path for source in made.sources] == ["a.py", "sub/b.py"]
    corpus.pack(made, tmp_path / "corpus.tar.xz")
    assert corpus.load(tmp_path / "corpus.tar.xz") == made
    assert made.sha256 != Corpus(made.sources[:1]).sha256


def test_a_corpus_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=corpus.RELEASE):
        corpus.load(tmp_path / "nowhere")


def test_five_percent_are_held_out():
    files = [Source(f"module{i}.py", "") for i in range(4000)]
    share = sum(source.held_out for source in files) / len(files)
    assert 0.04 < share < 0.06


def test_prompts_are_of_held_out_files():
    for prompt in prompts.load():
        assert Source(prompt.source, prompt.text).held_out
        assert not Source(prompt.source, prompt.text).is_test
    assert len({prompt.text for prompt in prompts.load()}) == len(prompts.KINDS) * prompts.EACH


def test_the_kept_tokenizer_gives_every_text_back():
    tokenizer = Tokenizer.from_file(str(KEPT / "trained-mla" / "target" / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == vocabulary.SIZE
    assert tokenizer.token_to_id("<|endoftext|>") == vocabulary.END_OF_TEXT
    assert tokenizer.token_to_id("<|mask|>") == vocabulary.MASK
    for text in ("def f(self):\n\n        return  'é ☃'\t\r\n", "", " ", *(prompt.text for prompt in prompts.load())):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_a_trigram_model_is_a_distribution():
    ids = np.random.default_rng(0).integers(0, 6, 400).astype(np.uint16)
    ids[::3] = 1
    model = Trigram(ids, 7)
    # 6 was never seen, neither as a token nor in a context.
    for context in ((1, 2), (3, 6), (6, 6)):
        total = sum(np.exp(model.log_probabilities(np.array([*context, c])))[0] for c in range(7))
        assert total == pytest.approx(1)


def test_a_trigram_model_foretells_what_repeats():
    ids = np.tile(np.arange(5), 200)
    assert np.exp(Trigram(ids, 5).log_probabilities(ids)).min() > 0.99
