# SPDX-License-Identifier: Apache-2.0
"""Finds the statement that an anchor describes, and the expressions in it that the anchor is about."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import libcst as cst

from fork import cst as tree
from fork.cst import Path, Site

Anchor = dict[str, str]


@dataclass
class Match:
    """A statement that an anchor describes; ``found`` holds, for each key of the anchor, the nodes in it that
    the key found."""

    site: Site
    found: dict[str, list[Site]] = field(default_factory=dict)


def find(scope: Site, anchor: Anchor, within: Anchor | None) -> list[Match]:
    """The statements in ``scope`` for which all keys of ``anchor`` hold, and which a statement described by
    ``within`` has in its body."""
    matches = [match for site in tree.statements(scope) if (match := _match(site, anchor))]
    if within is None:
        return matches
    holders = [(*site.path, ("body", None)) for site in tree.statements(scope) if _match(site, within)]
    return [match for match in matches if any(_inside(match.site.path, holder) for holder in holders)]


def holders(scopes: list[Site], anchor: Anchor, key: str) -> list[Site]:
    """What may be what the anchor found before it was edited: assignments to its target, or conditions of any kind."""
    sites = [site for scope in scopes for site in tree.statements(scope)]
    if key == "assigns":
        return [small for site in sites for small in _find_assigns(site, anchor[key])]
    return [holder for site in sites for holder in _conditions(site)]


def describe(anchor: Anchor | str) -> str:
    if isinstance(anchor, str):
        return f'"{anchor}"'
    return " and ".join(f"{key} {value!r}" for key, value in anchor.items())


def nearest(scope: Site, anchor: Anchor) -> list[str]:
    """What the scope has of the same kind as the first key of ``anchor`` seeks, the most alike first."""
    key, wanted = next(iter(anchor.items()))
    names: dict[str, None] = {}
    for site in tree.statements(scope):
        names.update(dict.fromkeys(_KEYS[key].names(site)))
    tail = wanted.rpartition(".")[2]
    alike = difflib.get_close_matches(wanted, names, n=3, cutoff=0.5)
    same_tail = [name for name in names if tail and name.rpartition(".")[2] == tail]
    return [f"{key} {name!r}" for name in dict.fromkeys([*same_tail, *alike])][:3]


def _inside(path: Path, holder: Path) -> bool:
    return path[: len(holder)] == holder


def _match(site: Site, anchor: Anchor) -> Match | None:
    match = Match(site)
    for key, wanted in anchor.items():
        found = _KEYS[key].find(site, wanted)
        if not found:
            return None
        match.found[key] = found
    return match


# ---- dotted names


def is_named(node: cst.CSTNode, wanted: str) -> bool:
    """Whether a node is the dotted name ``wanted``; one that starts with a dot fits any receiver."""
    tail = wanted.rpartition(".")[2]
    if isinstance(node, cst.Name):
        return node.value == wanted
    if isinstance(node, cst.Attribute):
        if node.attr.value != tail:
            return False
        text = tree.normal(node)
        return text.endswith(wanted) if wanted.startswith(".") else text == tree.normal(wanted)
    if isinstance(node, cst.Subscript):
        return wanted.endswith("]") and tree.normal(node) == tree.normal(wanted)
    return False


def _mentions(site: Site, wanted: str) -> bool:
    return is_named(site.node, wanted) or any(is_named(inner.node, wanted) for inner in tree.own_nodes(site))


def _names_in(site: Site) -> Iterator[str]:
    for inner in [site, *tree.own_nodes(site)]:
        if isinstance(inner.node, (cst.Name, cst.Attribute)):
            yield tree.normal(inner.node)


# ---- what each key of an anchor looks at


def _assign_targets(site: Site) -> Iterator[tuple[Site, Site]]:
    """(assigning small statement, target)."""
    for small in tree.small_statements(site):
        if isinstance(small.node, cst.Assign):
            targets = [
                Site((*small.path, ("targets", i), ("target", None)), t.target)
                for i, t in enumerate(small.node.targets)
            ]
        elif isinstance(small.node, (cst.AnnAssign, cst.AugAssign)):
            targets = [Site((*small.path, ("target", None)), small.node.target)]
        else:
            continue
        for target in targets:
            if isinstance(target.node, (cst.Tuple, cst.List)):
                for index, element in enumerate(target.node.elements):
                    yield small, Site((*target.path, ("elements", index), ("value", None)), element.value)
            else:
                yield small, target


def _find_assigns(site: Site, wanted: str) -> list[Site]:
    found: dict[Path, Site] = {
        small.path: small for small, target in _assign_targets(site) if is_named(target.node, wanted)
    }
    return list(found.values())


def _find_calls(site: Site, wanted: str) -> list[Site]:
    return [
        inner
        for inner in tree.own_nodes(site)
        if isinstance(inner.node, cst.Call) and is_named(inner.node.func, wanted)
    ]


def _conditions(site: Site) -> Iterator[Site]:
    """The nodes of a statement that have a condition in ``test``."""
    if isinstance(site.node, (cst.If, cst.While)):
        yield site
    for inner in tree.own_nodes(site):
        if isinstance(inner.node, (cst.IfExp, cst.Assert)):
            yield inner


def _test_of(site: Site) -> Site:
    return Site((*site.path, ("test", None)), site.node.test)


def _find_tests(site: Site, wanted: str) -> list[Site]:
    return [holder for holder in _conditions(site) if _mentions(_test_of(holder), wanted)]


def _find_returns(site: Site, wanted: str) -> list[Site]:
    returns = [small for small in tree.small_statements(site) if isinstance(small.node, cst.Return)]
    return [small for small in returns if not wanted or _mentions(small, wanted)]


def _imported(site: Site) -> Iterator[tuple[Site, str]]:
    for small in tree.small_statements(site):
        if isinstance(small.node, (cst.Import, cst.ImportFrom)) and not isinstance(small.node.names, cst.ImportStar):
            for alias in small.node.names:
                yield small, tree.code(alias.name)
                if alias.asname:
                    yield small, tree.code(alias.asname.name)


def _find_imports(site: Site, wanted: str) -> list[Site]:
    return list({small.path: small for small, name in _imported(site) if name == wanted}.values())


def _find_loops(site: Site, wanted: str) -> list[Site]:
    if isinstance(site.node, cst.For) and _mentions(Site((*site.path, ("iter", None)), site.node.iter), wanted):
        return [site]
    return []


@dataclass(frozen=True)
class _Key:
    find: Callable[[Site, str], list[Site]]
    names: Callable[[Site], Any]


_KEYS = {
    "assigns": _Key(_find_assigns, lambda site: [tree.normal(target.node) for _, target in _assign_targets(site)]),
    "calls": _Key(
        _find_calls,
        lambda site: [tree.normal(i.node.func) for i in tree.own_nodes(site) if isinstance(i.node, cst.Call)],
    ),
    "tests": _Key(
        _find_tests, lambda site: [name for holder in _conditions(site) for name in _names_in(_test_of(holder))]
    ),
    "returns": _Key(
        _find_returns, lambda site: [name for small in _find_returns(site, "") for name in _names_in(small)]
    ),
    "imports": _Key(_find_imports, lambda site: [name for _, name in _imported(site)]),
    "loops": _Key(
        _find_loops, lambda site: list(_names_in(Site((), site.node.iter))) if isinstance(site.node, cst.For) else []
    ),
}

KEYS = tuple(_KEYS)
