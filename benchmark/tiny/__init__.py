# SPDX-License-Identifier: Apache-2.0
"""Trains the small target/drafter pairs under ``models/``: ``python -m benchmark.tiny``.

The modules, in the order in which the command uses them:

``corpus``       which files, which are held out, and their hash
``vocabulary``   the byte-level BPE tokenizer
``sizes``        what the models measure, and their ``config.json``
``layers``, ``target``, ``drafter``   the models in plain PyTorch, as SGLang computes them
``schedule``, ``training``            learning rate, optimiser, the two training loops
``decoding``     generation, and DFLASH decoding replayed on a known text
``trigram``, ``evaluation``           the yardstick, perplexity, accept length
``export``       checkpoints that SGLang loads, model card, hashes
"""
