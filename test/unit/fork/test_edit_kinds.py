# SPDX-License-Identifier: Apache-2.0
"""Every kind of edit on sources small enough to read: what comes out, to the letter, and that a second
application changes nothing."""

import textwrap

import pytest
from tiny_upstream import edited

CASES = {
    "append to a list on one line": (
        "X = ['a', 'b']\n",
        """in = "X"\nappend = "'c'" """,
        "X = ['a', 'b', 'c']\n",
    ),
    "append to a list, one item a line, with a comment": (
        'X = [\n    "a",\n    "b",  # last\n]\n',
        """in = "X"\nappend = '"c"' """,
        'X = [\n    "a",\n    "b",  # last\n    "c",\n]\n',
    ),
    "append to a list without a trailing comma": (
        'X = [\n    "a",\n    "b"\n]\n',
        """in = "X"\nappend = '"c"' """,
        'X = [\n    "a",\n    "b",\n    "c"\n]\n',
    ),
    "append keeps items that are commented out": (
        'X = [\n    "a",\n    # "old",\n]\n',
        """in = "X"\nappend = '"c"' """,
        'X = [\n    "a",\n    # "old",\n    "c",\n]\n',
    ),
    "append several, one of which is there in other quotes": (
        "X = {'a', 'b'}\n",
        """in = "X"\nappend = ['"b"', "'c'"] """,
        "X = {'a', 'b', 'c'}\n",
    ),
    "append to a tuple of one": ("X = ('a',)\n", """in = "X"\nappend = "'b'" """, "X = ('a', 'b',)\n"),
    "append to a bare tuple": ("X = 'a', 'b'\n", """in = "X"\nappend = "'c'" """, "X = 'a', 'b', 'c'\n"),
    "append to an empty list": ("X = []\n", """in = "X"\nappend = "'a'" """, "X = ['a']\n"),
    "append to an empty tuple": ("X = ()\n", """in = "X"\nappend = "'a'" """, "X = ('a',)\n"),
    "append to a frozenset": (
        "X: frozenset = frozenset({'a'})\n",
        """in = "X"\nappend = "'b'" """,
        "X: frozenset = frozenset({'a', 'b'})\n",
    ),
    "append to an empty frozenset": ("X = frozenset()\n", """in = "X"\nappend = "'b'" """, "X = frozenset(['b'])\n"),
    "append to an attribute of a class": (
        "class C:\n    X = ['a']\n",
        """in = "C.X"\nappend = "'b'" """,
        "class C:\n    X = ['a', 'b']\n",
    ),
    "append to a local": (
        "def f():\n    ok = ('a', 'b')\n    return ok\n",
        """in = "f"\nat = {assigns = "ok"}\nappend = "'c'" """,
        "def f():\n    ok = ('a', 'b', 'c')\n    return ok\n",
    ),
    "entry of a dict, one a line": (
        "D = {\n    'a': 1,\n}\n",
        """in = "D"\nentry = {key = "'b'", value = "2"} """,
        "D = {\n    'a': 1,\n    'b': 2,\n}\n",
    ),
    "entry of an empty dict": ("D = {}\n", """in = "D"\nentry = {key = "k", value = "v"} """, "D = {k: v}\n"),
    "member after the last one, before the methods": (
        "class E(Enum):\n    A = auto()\n    B = auto()\n\n    def f(self):\n        pass\n",
        """in = "E"\nmember = "C = auto()" """,
        "class E(Enum):\n    A = auto()\n    B = auto()\n    C = auto()\n\n    def f(self):\n        pass\n",
    ),
    "member of an enum that has none": (
        'class E(Enum):\n    """doc"""\n',
        """in = "E"\nmember = "A = 1" """,
        'class E(Enum):\n    """doc"""\n    A = 1\n',
    ),
    "field after the last field": (
        "class S:\n    a: int\n    b: int = 0\n\n    def f(self): ...\n",
        """in = "S"\nfield = "c: int = 1" """,
        "class S:\n    a: int\n    b: int = 0\n    c: int = 1\n\n    def f(self): ...\n",
    ),
    "method": (
        "class C:\n    x = 1\n",
        '''in = "C"\nmethod = """\ndef f(self):\n    return 1\n"""''',
        "class C:\n    x = 1\n\n    def f(self):\n        return 1\n",
    ),
    "function": (
        "x = 1\n",
        '''function = """\n@deco\ndef f():\n    return 1\n"""''',
        "x = 1\n\n\n@deco\ndef f():\n    return 1\n",
    ),
    "function before the main guard": (
        "x = 1\nif __name__ == '__main__':\n    f()\n",
        '''function = "def f(): return 1"''',
        "x = 1\n\n\ndef f(): return 1\nif __name__ == '__main__':\n    f()\n",
    ),
    "import after the imports": (
        '"""doc"""\nfrom __future__ import annotations\n\nimport a\nfrom b import c\n\nx = 1\n',
        """import = "from d import e" """,
        '"""doc"""\nfrom __future__ import annotations\n\nimport a\nfrom b import c\nfrom d import e\n\nx = 1\n',
    ),
    "import into a file without any": (
        '"""doc"""\nx = 1\n',
        """import = "import a" """,
        '"""doc"""\n\nimport a\nx = 1\n',
    ),
    "before keeps the comment with its statement": (
        "def f(a):\n    # why\n    g(a)\n",
        """in = "f"\nat = {calls = "g"}\nbefore = "a += 1" """,
        "def f(a):\n    a += 1\n    # why\n    g(a)\n",
    ),
    "after, several statements": (
        "def f(self):\n    self.size = 1\n    return 2\n",
        '''in = "f"\nat = {assigns = "self.size"}\nafter = """\nif x:\n    y()\nz = 1\n"""''',
        "def f(self):\n    self.size = 1\n    if x:\n        y()\n    z = 1\n    return 2\n",
    ),
    "before a statement that the inserted one resembles": (
        "def f():\n    x = g()\n",
        """in = "f"\nat = {assigns = "x"}\nbefore = "x = None" """,
        "def f():\n    x = None\n    x = g()\n",
    ),
    "before in a suite on one line": (
        "def f(a):\n    if a: return 1\n",
        """in = "f"\nat = {returns = ""}\nbefore = "g()" """,
        "def f(a):\n    if a:\n        g()\n        return 1\n",
    ),
    "at the start, after the docstring": (
        'def f():\n    """doc"""\n    return 1\n',
        """in = "f"\nat = "start"\nbefore = "g()" """,
        'def f():\n    """doc"""\n    g()\n    return 1\n',
    ),
    "at the end of the module": ("x = 1\n", """at = "end"\nafter = "y = 2" """, "x = 1\ny = 2\n"),
    "within chooses among equals": (
        "def f(a):\n    if a.b:\n        g()\n    else:\n        g()\n",
        """in = "f"\nat = {calls = "g"}\nwithin = {tests = "a.b"}\nafter = "h()" """,
        "def f(a):\n    if a.b:\n        g()\n        h()\n    else:\n        g()\n",
    ),
    "every edits all": (
        "def f():\n    g()\n    if x:\n        g()\n",
        """in = "f"\nat = {calls = "g"}\nevery = true\nafter = "h()" """,
        "def f():\n    g()\n    h()\n    if x:\n        g()\n        h()\n",
    ),
    "branch": (
        "def f(a):\n    # which\n    if a.is_b():\n        return 1\n    return 2\n",
        """in = "f"\nat = {tests = ".is_b"}\nbranch = {if = "a.is_c()", do = "return 3"} """,
        "def f(a):\n    # which\n    if a.is_c():\n        return 3\n"
        "    elif a.is_b():\n        return 1\n    return 2\n",
    ),
    "branch in the middle of a chain": (
        "def f(a):\n    if x:\n        return 1\n    elif y:\n        return 2\n    else:\n        return 3\n",
        """in = "f"\nat = {tests = "y"}\nbranch = {if = "y and z", do = "return 4"} """,
        "def f(a):\n    if x:\n        return 1\n    elif y and z:\n        return 4\n    elif y:\n        return 2\n"
        "    else:\n        return 3\n",
    ),
    "guard": (
        "def f(t):\n    # note\n    t.record(\n        1\n    )\n",
        """in = "f"\nat = {calls = ".record"}\nguard = "t.ok" """,
        "def f(t):\n    # note\n    if t.ok:\n        t.record(\n            1\n        )\n",
    ),
    "guard a compound statement that tests the same name": (
        "def f(t):\n    if t:\n        g()\n",
        """in = "f"\nat = {tests = "t"}\nguard = "t and u" """,
        "def f(t):\n    if t and u:\n        if t:\n            g()\n",
    ),
    "value": (
        "def f(self):\n    self.n = g(1)\n",
        """in = "f"\nat = {assigns = "self.n"}\nvalue = "self.h()" """,
        "def f(self):\n    self.n = self.h()\n",
    ),
    "value around the old one, with its precedence": (
        "def f():\n    n = a or b\n",
        """in = "f"\nat = {assigns = "n"}\nvalue = "{old} and c" """,
        "def f():\n    n = (a or b) and c\n",
    ),
    "value of an augmented and of an annotated assignment": (
        "n: int = 1\n",
        """at = {assigns = "n"}\nvalue = "2 * {old}" """,
        "n: int = 2 * 1\n",
    ),
    "condition of an elif": (
        "def f():\n    if a:\n        pass\n    elif b and c:\n        pass\n",
        """in = "f"\nat = {tests = "b"}\ncondition = "({old}) and not d" """,
        "def f():\n    if a:\n        pass\n    elif (b and c) and not d:\n        pass\n",
    ),
    "condition of a conditional expression": (
        "def f():\n    return 1 if a.b else 2\n",
        """in = "f"\nat = {tests = "a.b"}\ncondition = "{old} or c" """,
        "def f():\n    return 1 if a.b or c else 2\n",
    ),
    "condition of a while, with a name behind any receiver": (
        "while get().ready:\n    pass\n",
        """at = {tests = ".ready"}\ncondition = "{old} and x" """,
        "while get().ready and x:\n    pass\n",
    ),
    "argument that is there": (
        "f(1, size=2)\n",
        """at = {calls = "f"}\nargument = {name = "size", value = "max({old}, 3)"} """,
        "f(1, size=max(2, 3))\n",
    ),
    "argument that is not": (
        "f(1)\n",
        """at = {calls = "f"}\nargument = {name = "size", value = "3"} """,
        "f(1, size=3)\n",
    ),
    "argument of a call, one a line": (
        "f(\n    1,\n    b=2,  # two\n)\n",
        """at = {calls = "f"}\nargument = {name = "c", value = "3"} """,
        "f(\n    1,\n    b=2,  # two\n    c=3,\n)\n",
    ),
    "argument of a call without arguments": (
        "x.f()\n",
        """at = {calls = ".f"}\nargument = {name = "c", value = "3"} """,
        "x.f(c=3)\n",
    ),
    "positional argument": (
        "f(a, b)\n",
        """at = {calls = "f"}\nargument = {position = 1, value = "g({old})"} """,
        "f(a, g(b))\n",
    ),
    "a loop": (
        "for x in items.all():\n    pass\n",
        """at = {loops = "items.all"}\nbefore = "items = g()" """,
        "items = g()\nfor x in items.all():\n    pass\n",
    ),
    "an import as an anchor": (
        "from a import (\n    b,\n    c as d,\n)\n",
        """at = {imports = "c"}\nafter = "d = 1" """,
        "from a import (\n    b,\n    c as d,\n)\nd = 1\n",
    ),
    "both keys of an anchor hold": (
        "x = f(1)\nx = g(1)\n",
        """at = {assigns = "x", calls = "g"}\nvalue = "h()" """,
        "x = f(1)\nx = h()\n",
    ),
    "a subscript as an assigned target": (
        "d['k'] = 1\nd['l'] = 1\n",
        """at = {assigns = 'd["k"]'}\nvalue = "2" """,
        "d['k'] = 2\nd['l'] = 1\n",
    ),
    "a property has two definitions, the anchor fits one": (
        "class C:\n    @property\n    def p(self):\n        return self.q\n\n    @p.setter\n    def p(self, v):\n"
        "        self.q = v\n",
        """in = "C.p"\nat = {assigns = "self.q"}\nafter = "g()" """,
        "class C:\n    @property\n    def p(self):\n        return self.q\n\n    @p.setter\n    def p(self, v):\n"
        "        self.q = v\n        g()\n",
    ),
    "two-space indentation is kept": (
        "def f():\n  if a:\n    g()\n",
        '''in = "f"\nat = {calls = "g"}\nafter = """\nif b:\n    h()\n"""''',
        "def f():\n  if a:\n    g()\n    if b:\n      h()\n",
    ),
    "a function under an if at the top of the module": (
        "if a:\n    def f():\n        g()\n",
        """in = "f"\nat = {calls = "g"}\nbefore = "h()" """,
        "if a:\n    def f():\n        h()\n        g()\n",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_edit(tmp_path, case):
    source, edit, expected = CASES[case]
    result = edited(tmp_path, source, edit)
    assert result == expected
    assert edited(tmp_path, result, edit) == result, "a second application changed the file"


def test_every_kind_is_here():
    from fork.patches import ACTIONS

    used = {action for _, edit, _ in CASES.values() for action in ACTIONS if f"\n{action} = " in f"\n{edit}"}
    assert used == set(ACTIONS)


def test_old_value_wrapped_by_two_edits_stays_idempotent(tmp_path):
    edit = textwrap.dedent("""\
        at = {assigns = "n"}
        value = "f({old})"
        [[edit]]
        file = "pkg/mod.py"
        at = {assigns = "n"}
        value = "g({old})"
        """)
    once = edited(tmp_path, "n = 1\n", edit)
    assert once == "n = g(f(1))\n"
    assert edited(tmp_path, once, edit) == once
