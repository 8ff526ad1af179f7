# SPDX-License-Identifier: Apache-2.0
"""Finds what ``in`` names: a function, a class, a method or a module-level name."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

import libcst as cst

from fork import cst as tree
from fork.cst import Site
from fork.errors import EditError


def resolve(module: cst.Module, symbol: str, file: str) -> list[Site]:
    """Every place that defines the dotted ``symbol``: an ``if``/``else`` may define it twice, a property has two parts.

    Raises EditError, with the nearest symbols, when there is none.
    """
    scopes = [Site((), module)]
    if not symbol:
        return scopes
    for part in symbol.split("."):
        scopes = [site for scope in scopes for name, site in _defined(scope) if name == part]
    if not scopes:
        near = difflib.get_close_matches(symbol, _all_symbols(module), n=3, cutoff=0.5)
        raise EditError(file, "there is no such symbol", symbol=symbol, candidates=tuple(near), kind="gone")
    return scopes


def _defined(scope: Site) -> Iterator[tuple[str, Site]]:
    if not isinstance(scope.node, (cst.Module, *tree.DEFINITIONS)):
        return
    for site in tree.statements(scope, into_definitions=False):
        if isinstance(site.node, tree.DEFINITIONS):
            yield site.node.name.value, site
        else:
            for target in assigned_names(site):
                yield target, site


def assigned_names(site: Site) -> list[str]:
    return [name for small in tree.small_statements(site) for name in names_assigned_by(small)]


def names_assigned_by(small: Site) -> list[str]:
    """The plain names that a small statement assigns or annotates."""
    if isinstance(small.node, cst.Assign):
        return [target.target.value for target in small.node.targets if isinstance(target.target, cst.Name)]
    if isinstance(small.node, cst.AnnAssign) and isinstance(small.node.target, cst.Name):
        return [small.node.target.value]
    return []


def _all_symbols(module: cst.Module) -> list[str]:
    symbols = []
    for name, site in _defined(Site((), module)):
        symbols.append(name)
        if isinstance(site.node, cst.ClassDef):
            symbols += [f"{name}.{inner}" for inner, _ in _defined(site)]
    return sorted(set(symbols))
