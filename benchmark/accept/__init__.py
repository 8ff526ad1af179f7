# SPDX-License-Identifier: Apache-2.0
"""How many tokens a step are accepted, by algorithm and tree: ``python -m benchmark.accept`` (``make bench-accept``).

``prompts``   held-out texts, kept in ``prompts.json``
``servers``   greedy and sampled requests to real servers
``replay``    what any tree would have accepted along a known output, on the same logits
``intervals`` bootstrap over prompts
``report``    table and picture
"""
