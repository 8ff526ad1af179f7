# SPDX-License-Identifier: Apache-2.0
"""Static analysis: what files define, what ours use of them, and whether another release still has it."""

import ast
import textwrap

import pytest

from fork.carried import signatures
from fork.surface import compat, uses
from fork.surface.index import Index, Layers
from fork.surface.uses import Call


def read(text: str) -> dict[str, str]:
    return signatures.read(ast.parse(textwrap.dedent(text)))


@pytest.mark.parametrize(
    ("text", "signature"),
    [
        (
            "def f(a, b: int = 1, /, c=[2], *d, e, g: str = 'x', **h) -> int: ...",
            "(a, b=1, /, c=[2], *d, e, g='x', **h)",
        ),
        ("async def f(): ...", "async ()"),
        ("f = 1", "value"),
        ("f: int = 1", "value"),
        ("a, f = 1, 2", "value"),
        ("from x import y as f", "import"),
        ("import f.g", "import"),
        ("class f: ...", "class"),
        ("if x:\n    def f(a): ...\nelse:\n    def f(b): ...", "(a) or (b)"),
        ("try:\n    from x import f\nexcept ImportError:\n    f = None", "import or value"),
        ("with x:\n    f = 1", "value"),
        ("@overload\ndef f(a): ...\n@overload\ndef f(b): ...\ndef f(a=1): ...", "(a=1)"),
    ],
)
def test_signature_of_a_module_level_name(text, signature):
    assert read(text)["f"] == signature


def test_members_of_a_class():
    found = read(
        """
        class C(B):
            x: int = 1
            y = 2
            class Inner: ...
            def __init__(self, a, *, b=None):
                self.a, (self.p) = a, 1
                if b:
                    self.b: int = b
                other.z = 1
            @property
            def q(self): ...
            @q.setter
            def q(self, value): ...
            @staticmethod
            def s(a): ...
            @classmethod
            def c(cls, a): ...
            async def m(self, a): ...
        """
    )
    assert found == {
        "C": "class",
        "C.x": "attribute",
        "C.y": "attribute",
        "C.Inner": "class",
        "C.__init__": "(self, a, *, b=None)",
        "C.a": "attribute",
        "C.p": "attribute",
        "C.b": "attribute",
        "C.q": "attribute",
        "C.s": "staticmethod (a)",
        "C.c": "classmethod (cls, a)",
        "C.m": "async (self, a)",
    }


@pytest.mark.parametrize(
    ("head", "constructor"),
    [
        ("@dataclass\nclass C:", "(self, a, b=None, d=field(default_factory=list))"),
        ("@dataclasses.dataclass(kw_only=True)\nclass C:", "(self, *, a, b=None, d=field(default_factory=list))"),
        ("class C(NamedTuple):", "(self, a, b=None, d=field(default_factory=list))"),
        ("class C:", None),
    ],
)
def test_constructor_of_fields(head, constructor):
    body = "    a: int\n    b: int = None\n    c: ClassVar[int] = 1\n    d: list = field(default_factory=list)\n"
    body += "    e: int = field(init=False)\n"
    assert read(f"{head}\n{body}").get("C.__init__") == constructor


# ---- uses

UPSTREAM = {
    "up/__init__.py": "",
    "up/base.py": """
        class Base:
            def __init__(self, size): self.size = size
            def step(self, batch, flag=False): ...
            def helper(self) -> "Thing": ...
            @property
            def owner(self) -> Worker: ...
        class Worker(Base): pass
        class Thing:
            count: int
            def use(self, *, times): ...
    """,
    "up/api.py": """
        from up.base import Base
        from up.base import *
        import torch
        def run(worker: Base, times=1) -> Base: ...
        LIMIT = 3
    """,
}
OURS = """
    from __future__ import annotations
    from typing import Optional
    import torch
    from up import api
    from up.api import Base, run
    from ours.own import thing

    class Mine(Base):
        def __init__(self):
            super().__init__(4)
            self.own = 1

        def step(self, batch):
            self.helper().use(times=self.size)
            return self.own + api.LIMIT

    def drive(worker: Optional[Base], other: "Base | None", unknown) -> None:
        made = run(worker, times=2)
        made.step(1, *unknown, flag=True)
        pair, worker = made, unknown
        pair.size, worker.nothing
        api.run(other, **unknown)
        other.owner.helper()
        unknown.step()
        torch.zeros(1)
        Base(size=1)
"""


def files(**texts: str) -> dict[str, bytes]:
    return {name: textwrap.dedent(text).encode() for name, text in {**UPSTREAM, **texts}.items()}


def find(upstream: dict[str, bytes], ours: str = OURS) -> list[uses.Use]:
    added = {"up/mine.py": textwrap.dedent(ours).encode()}
    return uses.find(added, Index(Layers(added, upstream), "up"))


def test_uses_are_found_through_imports_annotations_and_inheritance():
    found = {(use.module, use.symbol, use.call, use.override) for use in find(files())}
    calls = {
        ("up.base", "Base.__init__", Call(1, ())),
        ("up.base", "Base.__init__", Call(0, ("size",))),
        ("up.mine", "Mine.helper", Call(0, ())),
        ("up.base", "Thing.use", Call(0, ("times",))),
        ("up.api", "run", Call(1, ("times",))),
        ("up.api", "run", Call(1, None)),
        ("up.base", "Base.step", Call(None, ("flag",))),
        ("up.base", "Worker.helper", Call(0, ())),
    }
    assert {(module, symbol, call) for module, symbol, call, _ in found if call} == calls
    assert ("up.base", "Base.step", None, "(self, batch)") in found, "an override"
    names = {(module, symbol) for module, symbol, _, _ in found}
    assert {
        ("up", "api"),
        ("up.api", "Base"),
        ("up.api", "run"),
        ("up.api", "LIMIT"),
        ("up.mine", "Mine.size"),
    } <= names
    assert not any(symbol.endswith(".own") or module.startswith(("torch", "ours")) for module, symbol in names)


def rows(after: dict[str, bytes], absent: dict[str, str] | None = None) -> dict[str, compat.Row]:
    added = {"up/mine.py": textwrap.dedent(OURS).encode()}
    before = Index(Layers(added, files()), "up")
    compared = compat.compare(uses.find(added, before), before, Index(Layers(added, after), "up"), absent or {})
    return {row.symbol: row for row in compared}


def test_nothing_changed():
    compared = rows(files())
    assert {row.state for row in compared.values()} == {"present"}
    assert all(row.ok for row in compared.values())


def changed(old: str, new: str, file: str = "up/base.py") -> dict[str, compat.Row]:
    assert old in UPSTREAM[file]
    return rows(files(**{file: UPSTREAM[file].replace(old, new)}))


def test_a_parameter_with_a_default_is_a_change_that_our_calls_fit():
    row = changed("def use(self, *, times)", "def use(self, *, times, more=1)")["up.base.Thing.use"]
    assert (row.state, row.ok, row.misfits) == ("changed", True, [])
    assert (row.before, row.after) == ("(self, *, times)", "(self, *, times, more=1)")


def test_a_parameter_without_a_default_breaks():
    row = changed("def use(self, *, times)", "def use(self, *, times, more)")["up.base.Thing.use"]
    assert (row.state, row.ok) == ("breaks", False)
    assert row.misfits == ["up/mine.py:15: missing a required argument: 'more'"]


def test_positional_arguments_that_would_change_places_break():
    row = changed("worker: Base, times=1", "first=None, worker=None, times=1", "up/api.py")["up.api.run"]
    assert (row.state, row.ok) == ("breaks", False)
    assert row.misfits[0].endswith(": parameter worker, passed by position, has another place")
    assert changed("worker: Base, times=1", "one: Base, times=1", "up/api.py")["up.api.run"].ok


def test_an_override_that_would_be_called_otherwise_breaks():
    row = changed("def step(self, batch, flag=False)", "def step(self, batch, flag=False, mode=0)")["up.base.Base.step"]
    assert row.state == "breaks"
    assert row.misfits == ["up/mine.py:14: our override does not take flag, mode"]


def test_an_attribute_that_became_a_method_breaks():
    row = changed("def owner(self)", "def x(self): ...\n            def owner(self)")["up.base.Base.owner"]
    assert (row.state, row.misfits) == ("breaks", ["was no function (attribute), is a function"])


def test_a_moved_function():
    compared = rows(
        files(
            **{
                "up/api.py": UPSTREAM["up/api.py"].replace("def run", "def ran"),
                "up/new.py": "def run(worker, times=1): ...",
            }
        )
    )
    row = compared["up.api.run"]
    assert (row.state, row.found, row.ok) == ("moved", "up.new", False)
    assert row.after == "(worker, times=1)"


def test_a_function_that_is_gone_has_the_nearest_names():
    row = changed("def run(", "def run_all(", "up/api.py")["up.api.run"]
    assert (row.state, row.found) == ("gone", "up.api.run_all")


def test_a_module_that_is_gone():
    without = {name: content for name, content in files().items() if name != "up/api.py"} | {"up/apis.py": b""}
    compared = rows(without)
    assert compared["up.api"].state == "gone"
    assert not compared["up.api"].ok


def test_a_class_that_is_gone_speaks_for_its_members():
    compared = changed("class Thing:", "class Other:")
    assert "up.base.Thing.use" not in compared or compared["up.base.Thing.use"].ok


def test_a_symbol_that_may_be_absent():
    text = UPSTREAM["up/api.py"].replace("LIMIT", "OTHER")
    assert rows(files(**{"up/api.py": text}), {"up.api.LIMIT": "never read"})["up.api.LIMIT"].ok
    assert not rows(files(**{"up/api.py": text}))["up.api.LIMIT"].ok


@pytest.mark.parametrize(
    ("signature", "call", "problem"),
    [
        ("(a, b=1)", Call(1, ()), ""),
        ("(a, b=1)", Call(3, ()), "too many positional arguments"),
        ("(a, b=1)", Call(1, ("c",)), "got an unexpected keyword argument 'c'"),
        ("(a, b=1)", Call(None, ("c",)), "there is no parameter c"),
        ("(a, b=1)", Call(0, None), ""),
        ("(*, a)", Call(1, ()), "too many positional arguments"),
        ("(**rest)", Call(None, ("c",)), ""),
        ("(a) or (b, c=1)", Call(0, ("b",)), ""),
        ("(a) or (b, c=1)", Call(0, ("d",)), "missing a required argument: 'a'"),
        ("async (a)", Call(1, ()), ""),
    ],
)
def test_whether_a_call_fits(signature, call, problem):
    assert compat.misfit(signature, call, bound=False) == problem


def test_long_signatures_are_told_by_their_difference():
    short = "(self, a)", "(self, b)"
    assert signatures.contrasted(*short) == short
    many = ", ".join(f"parameter_{number}=None" for number in range(9))
    assert signatures.contrasted(f"(self, a, {many})", f"(self, {many}, b=1, c=2)") == (
        "(..., a, ...)",
        "(..., b=1, c=2)",
    )
    moved = signatures.contrasted(f"(self, {many}, a, b)", f"(self, a, {many}, b)")
    assert moved == ("(..., a, ...)", "(..., a, ...)"), "order alone"
    assert signatures.contrasted("attribute", f"({many})") == ("attribute", f"({many})")


def test_a_bound_call_leaves_out_the_first_parameter():
    assert compat.misfit("(self, a)", Call(1, ()), bound=True) == ""
    assert compat.misfit("classmethod (cls, a)", Call(1, ()), bound=True) == ""
    assert compat.misfit("staticmethod (a)", Call(1, ()), bound=True) == ""
    assert compat.misfit("(self, a)", Call(2, ()), bound=True) == "too many positional arguments"
