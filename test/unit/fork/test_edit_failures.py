# SPDX-License-Identifier: Apache-2.0
"""What a user reads when an edit cannot be made: the patch, the edit, the file, and what was sought."""

import pytest
from tiny_upstream import FILE, edited, run

from fork.errors import EditError

SOURCE = """\
NAMES = make()
TABLE = {"a": 1}

class Kind(Enum):
    ONE = 1

    def is_one(self):
        return self == Kind.ONE

def first(batch):
    batch.size = compute(batch, 1)
    if batch.is_ready():
        return batch.size
    elif batch.is_late():
        return 0
    for item in batch.items:
        item.send()
    other.send()
    return 1 if batch.a else 2

if condition:
    def twice(): ...
else:
    def twice(): ...
"""

CASES = {
    "no such symbol": (
        """in = "frist"\nat = {calls = "x"}\nbefore = "y()" """,
        "in frist: there is no such symbol",
        "nearest: first",
    ),
    "no such method": (
        """in = "Kind.is_two"\nat = {returns = ""}\nbefore = "y()" """,
        "in Kind.is_two: there is no such symbol",
        "nearest: Kind.is_one",
    ),
    "a symbol that is defined twice": (
        """in = "twice"\nat = "start"\nbefore = "y()" """,
        'in twice, at "start": the symbol is defined 2 times, lines 22, 24',
        "",
    ),
    "no assignment": (
        """in = "first"\nat = {assigns = "batch.sizes"}\nvalue = "1" """,
        "in first, at assigns 'batch.sizes': no statement is like this",
        "nearest: assigns 'batch.size'",
    ),
    "no call, another receiver": (
        """in = "first"\nat = {calls = "self.send"}\nbefore = "y()" """,
        "at calls 'self.send': no statement is like this",
        "nearest: calls 'item.send'",
    ),
    "no test": (
        """in = "first"\nat = {tests = "batch.ready"}\ncondition = "x" """,
        "at tests 'batch.ready': no statement is like this",
        "nearest: tests 'batch.is_ready'",
    ),
    "no loop": (
        """in = "first"\nat = {loops = "batch.item"}\nbefore = "x()" """,
        "at loops 'batch.item': no statement is like this",
        "nearest: loops 'batch.items'",
    ),
    "several calls": (
        """in = "first"\nat = {calls = ".send"}\nguard = "x" """,
        "2 statements are like this, lines 17, 18; narrow it with `in` or `within`, or say every = true",
        "",
    ),
    "several within": (
        """in = "first"\nat = {calls = ".send"}\nwithin = {tests = "batch.a"}\nguard = "x" """,
        "at calls '.send' within tests 'batch.a': no statement is like this",
        "nearest: calls 'item.send'",
    ),
    "beside an elif": (
        """in = "first"\nat = {tests = ".is_late"}\nbefore = "x()" """,
        "the anchor is an `elif`, which has no place beside it; use `branch` or its first `if`",
        "",
    ),
    "guard of an elif": (
        """in = "first"\nat = {tests = ".is_late"}\nguard = "x" """,
        "the anchor is an `elif`, which cannot be guarded; use `condition`",
        "",
    ),
    "branch before what is no if": (
        """in = "first"\nat = {tests = "batch.a"}\nbranch = {if = "x", do = "y()"} """,
        "the anchor is not an `if`",
        "",
    ),
    "append to what is no literal": (
        """in = "NAMES"\nappend = "1" """,
        "in NAMES: the value is not a list, tuple, set or frozenset literal but `make()`",
        "",
    ),
    "append to a function": ("""in = "first"\nappend = "1" """, "in first: this is not assigned a value", ""),
    "entry of what is no dict": (
        """in = "NAMES"\nentry = {key = "1", value = "2"} """,
        "the value is not a dict literal but `make()`",
        "",
    ),
    "entry with another value": (
        """in = "TABLE"\nentry = {key = "'a'", value = "2"} """,
        "there is an entry 'a' already, with the value `1`",
        "",
    ),
    "member with another value": ("""in = "Kind"\nmember = "ONE = 2" """, "ONE is defined already, and otherwise", ""),
    "method with another body": (
        """in = "Kind"\nmethod = "def is_one(self): ..." """,
        "is_one is defined already, and otherwise",
        "",
    ),
    "function of a name that is taken": (
        """function = "def first(): ..." """,
        "first is defined already, and otherwise",
        "",
    ),
    "member of a function": (
        """in = "first"\nmember = "A = 1" """,
        "`member` needs a class with a body of its own",
        "",
    ),
    "a member that assigns nothing": (
        """in = "Kind"\nmember = "f()" """,
        "`member` must be one assignment, e.g. `NAME = auto()`",
        "",
    ),
    "a method that is a field": ("""in = "Kind"\nmethod = "a = 1" """, "`method` must be one method", ""),
    "two functions": (
        '''function = """\ndef f(): ...\ndef g(): ...\n"""''',
        "`function` must be one function or class",
        "",
    ),
    "an import that is a call": ("""import = "f()" """, "`import` must be one import", ""),
    "statements that do not parse": (
        '''in = "first"\nat = "start"\nbefore = """\nx = 1\ny = = 2\n"""''',
        "`before`, line 2, is not valid Python",
        "",
    ),
    "an expression that does not parse": (
        """in = "first"\nat = {assigns = "batch.size"}\nvalue = "a b" """,
        "`value`: 'a b' is not a valid expression",
        "",
    ),
    "a comment alone": (
        """in = "first"\nat = "end"\nafter = "# nothing" """,
        "`after` has no statement",
        "",
    ),
    "old value of an argument that is not there": (
        """in = "first"\nat = {calls = "compute"}\nargument = {name = "n", value = "{old} + 1"} """,
        "{old} stands for the present value, but there is none",
        "",
    ),
    "old alone": (
        """in = "first"\nat = {assigns = "batch.size"}\nvalue = "{old}" """,
        "{old} alone changes nothing",
        "",
    ),
    "a positional argument that is not there": (
        """in = "first"\nat = {calls = "compute"}\nargument = {position = 2, value = "3"} """,
        "the call has no positional argument 2",
        "",
    ),
    "a start of what has none": (
        """in = "TABLE"\nat = "start"\nbefore = "x" """,
        "only a module, function or class with a body of its own has a start and an end",
        "",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_message(tmp_path, case):
    edit, problem, nearest = CASES[case]
    with pytest.raises(EditError) as raised:
        edited(tmp_path, SOURCE, edit)
    first, *candidates = str(raised.value).splitlines()
    assert first.startswith(f"0001-a, edit 1: {FILE}")
    assert problem in first
    assert bool(candidates) == bool(nearest)
    if nearest:
        assert candidates[0].strip() == nearest


def test_edit_that_breaks_the_file(tmp_path):
    edit = """in = "first"\nat = {returns = "batch.size"}\nbefore = "break" """
    with pytest.raises(EditError, match="no longer valid Python after the edit: line 13: 'break' outside loop"):
        edited(tmp_path, SOURCE, edit)


def test_no_such_file(tmp_path):
    tree = run(tmp_path, "x = 1\n", '[[edit]]\nfile = "pkg/mood.py"\nat = "end"\nafter = "y = 1"')
    assert str(tree.errors[0]) == f"0001-a, edit 1: pkg/mood.py: upstream has no such file\n    nearest: {FILE}"


def test_equal_statement_elsewhere_does_not_hide_an_insertion(tmp_path):
    source = "def f():\n    sync()\n    a()\n    b()\n"
    result = edited(tmp_path, source, """in = "f"\nat = {calls = "b"}\nbefore = "sync()" """)
    assert result == "def f():\n    sync()\n    a()\n    sync()\n    b()\n"
