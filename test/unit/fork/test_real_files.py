# SPDX-License-Identifier: Apache-2.0
"""Every kind of edit on files of the releases that the anchors are kept for.

The sources are upstream's and not held here. What an edit did is read from the result with `ast`, and from the lines
that differ: an edit may add its own lines and touch the anchored statement, nothing else.
"""

import ast
import difflib

import pytest
from tiny_upstream import write_patch

from fork import patches
from fork.apply import apply_series

S = "sglang/srt"
CHOICES = f"{S}/arg_groups/choices.py"
SPEC_INFO = f"{S}/speculative/spec_info.py"
BLOCK_SIZE = """in = "DFlashWorkerV2.__init__"\nat = {assigns = "self.block_size", calls = "get_spec"}\n"""
DFLASH = f"{S}/speculative/dflash_worker_v2.py"
REGISTRY = f"{S}/layers/attention/attention_registry.py"
SIZING = f"{S}/mem_cache/allocation_sizing.py"

# kind: file, edit, lines added, lines removed (the second counts what a change of an expression rewrites)
CASES = {
    "append": (CHOICES, """in = "ATTENTION_BACKEND_CHOICES"\nappend = "'new_backend'" """, 1, 0),
    "entry": (
        f"{S}/speculative/spec_tp_sync.py",
        """in = "_PRESETS"\nentry = {key = "'new'", value = "frozenset()"} """,
        1,
        0,
    ),
    "member": (SPEC_INFO, """in = "SpeculativeAlgorithm"\nmember = "NEW = auto()" """, 1, 0),
    "method": (
        SPEC_INFO,
        '''in = "SpeculativeAlgorithm"\nmethod = """\ndef is_new(self):\n    return self is not None\n"""''',
        3,
        0,
    ),
    "field": (
        f"{S}/speculative/dflash_info.py",
        """in = "DFlashVerifyInput"\nfield = "new_field: int = 7" """,
        1,
        0,
    ),
    "function": (
        REGISTRY,
        '''function = """\n@register_attention_backend("new")\ndef create_new(runner):\n    return runner\n"""''',
        5,
        0,
    ),
    "import": (SIZING, """import = "from sglang.srt.new import thing" """, 1, 0),
    "before": (
        DFLASH,
        BLOCK_SIZE + """before = "new = 1" """,
        1,
        0,
    ),
    "after": (
        DFLASH,
        BLOCK_SIZE + """after = "new = 1" """,
        1,
        0,
    ),
    "start": (SIZING, """in = "get_req_to_token_extra_context_len"\nat = "start"\nbefore = "new = 1" """, 1, 0),
    "end": (CHOICES, """at = "end"\nafter = "NEW = 1" """, 1, 0),
    "branch": (
        SPEC_INFO,
        """in = "SpeculativeAlgorithm.create_worker"\nat = {tests = "self.is_dflash"}\n"""
        """branch = {if = "self.is_new()", do = "return NewWorker"} """,
        3,
        1,
    ),
    "guard": (
        DFLASH,
        """in = "DFlashWorkerV2.forward_batch_generation"\nat = {calls = ".record_stream"}\nguard = "new" """,
        4,
        3,
    ),
    "value": (
        DFLASH,
        BLOCK_SIZE + """value = "self.new({old})" """,
        1,
        1,
    ),
    "argument": (
        f"{S}/speculative/spec_utils.py",
        """in = "move_accept_tokens_to_target_kvcache"\nat = {calls = ".move_kv_cache"}\n"""
        """argument = {name = "new", value = "1"} """,
        1,
        1,
    ),
    "condition": (
        f"{S}/speculative/spec_utils.py",
        """in = "spec_need_hidden_states"\nat = {tests = ".speculative_algorithm"}\ncondition = "{old} or new" """,
        1,
        1,
    ),
}


def edit_one(folder, release, file, edit):
    write_patch(folder, f'[[edit]]\nfile = "{file}"\n{edit}')
    return apply_series(release, patches.load_series(folder), release.version)


@pytest.mark.parametrize("kind", CASES)
def test_kind(tmp_path, release, kind):
    file, edit, plus, minus = CASES[kind]
    tree = edit_one(tmp_path, release, file, edit)
    assert [str(error) for error in tree.errors] == []
    before, after = release[file].decode(), tree.edited[file].decode().partition("\n")[2]
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm=""))[2:]
    added = [line[1:] for line in lines if line.startswith("+")]
    removed = [line[1:] for line in lines if line.startswith("-")]
    assert (len(added), len(removed)) == (plus, minus), "\n".join(lines)
    assert any("new" in line.lower() for line in added)
    ast.parse(after)
    write_patch(tmp_path, f'[[edit]]\nfile = "{file}"\n{edit}')
    again = apply_series({file: tree.edited[file]}, patches.load_series(tmp_path), release.version)
    assert (again.errors, again.edited) == ([], {}), "a second application changed the file"


def test_ambiguous_anchor_tells_the_lines(tmp_path, release):
    edit = """in = "DFlashWorkerV2.__init__"\nat = {assigns = "self.block_size"}\nvalue = "1" """
    (error,) = edit_one(tmp_path, release, DFLASH, edit).errors
    (worker,) = (node for node in ast.parse(release[DFLASH]).body if getattr(node, "name", "") == "DFlashWorkerV2")
    (init,) = (node for node in worker.body if getattr(node, "name", "") == "__init__")
    assigned = [node for node in ast.walk(init) if isinstance(node, ast.Assign)]
    lines = sorted(node.lineno for node in assigned if ast.unparse(node.targets[0]) == "self.block_size")
    assert len(lines) == 2
    assert f"2 statements are like this, lines {lines[0]}, {lines[1]}; narrow it" in str(error)


def test_symbol_that_is_elsewhere_tells_the_nearest(tmp_path, release):
    (error,) = edit_one(tmp_path, release, CHOICES, """in = "ATTENTION_BACKENDS_CHOICES"\nappend = "1" """).errors
    assert "nearest: ATTENTION_BACKEND_CHOICES" in str(error).splitlines()[1]


def test_every_release_has_its_hashes(config):
    for version, files in config.hashes.items():
        pythons = {name.split("-")[2] for name in files}
        machines = {name.rsplit("_", 2)[-2:][0] + name.rsplit("_", 1)[1] for name in files}
        assert (pythons, len(machines)) == ({"cp311", "cp312", "cp313"}, 2), version
        assert all(name.startswith(f"sglang-{version}-") for name in files)
        assert all(len(digest) == 64 for digest in files.values())
