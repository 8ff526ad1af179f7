# SPDX-License-Identifier: Apache-2.0
"""The table of symbols that a wheel carries, with which a server compares what is installed when it starts."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path

import fork
from fork.apply import Tree
from fork.config import Config
from fork.patches import load_series
from fork.surface import uses
from fork.surface.index import Index, Layers
from fork.upstream import UpstreamWheel, cache_folder

FORMAT = 1


def make(config: Config, upstream: UpstreamWheel, tree: Tree) -> bytes:
    """JSON with the symbols of each file of upstream's that ours uses, and the file's hash. It takes some seconds to
    find out, so what was found is kept in the cache by the hash of all that went into it."""
    cached = cache_folder() / f"symbols-{_key(config, upstream, tree)}.json"
    try:
        return cached.read_bytes()
    except OSError:
        pass
    table = _make(config, upstream, tree)
    _keep(cached, table)
    return table


def index_of(config: Config, upstream: UpstreamWheel, tree: Tree, added: dict[str, bytes]) -> Index:
    """Upstream as the patches leave it, with our added files."""
    return Index(Layers(added, tree.edited, upstream), config.package)


def uses_of(config: Config, upstream: UpstreamWheel, index: Index, added: dict[str, bytes]) -> list[uses.Use]:
    """Every use of upstream in our added files and in what the patches insert."""
    series = load_series(config.patches)
    return [*uses.find(added, index), *uses.find_in_patches(series, added, index, upstream.version)]


def _make(config: Config, upstream: UpstreamWheel, tree: Tree) -> bytes:
    index = index_of(config, upstream, tree, tree.added)
    files: dict[str, dict[str, str]] = {}
    for use in uses_of(config, upstream, index, tree.added):
        found = index.resolve(use.module, use.symbol)
        if found is None:
            continue
        places = [(found.module, found.symbol, found.signature)]
        head = use.symbol.partition(".")[0]
        if (through := index.module(use.module)) and use.module != found.module and head in through.signatures:
            places.append((use.module, head, through.signatures[head]))  # it is imported from here
        for module, symbol, signature in places:
            file = index.file_of(module)
            if file and file not in tree.added and symbol:
                files.setdefault(file, {})[symbol] = signature
    table = {
        "format": FORMAT,
        "upstream": upstream.version,
        "files": {
            file: {
                "sha256": hashlib.sha256(tree.edited.get(file) or upstream[file]).hexdigest(),
                "symbols": dict(sorted(symbols.items())),
            }
            for file, symbols in sorted(files.items())
        },
    }
    return (json.dumps(table, indent=1) + "\n").encode()


def _key(config: Config, upstream: UpstreamWheel, tree: Tree) -> str:
    digest = hashlib.sha256(f"{FORMAT} {upstream.sha256}".encode())
    for file, content in sorted({**tree.edited, **tree.added}.items()):
        digest.update(f"{file}\0".encode() + hashlib.sha256(content).digest())
    for outcome in tree.outcomes:
        digest.update(outcome.patch.sha256.encode())
    own = Path(fork.__file__).parent
    for path in sorted([*own.glob("surface/*.py"), *own.glob("carried/*.py")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:32]


def _keep(path: Path, content: bytes) -> None:
    """A cache that cannot be written is no reason to fail."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".symbols-", delete=False) as file:
            file.write(content)
        os.replace(file.name, path)
        for old in sorted(path.parent.glob("symbols-*.json"), key=lambda old: old.stat().st_mtime)[:-8]:
            old.unlink(missing_ok=True)
    except OSError:
        return
