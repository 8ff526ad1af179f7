# SPDX-License-Identifier: Apache-2.0
"""The text: the standard library of one CPython release, split by file.

Everything below ``Lib`` that ends in ``.py``, is UTF-8 and is not in ``SKIPPED``.
A file is held out if the first byte of the SHA-256 of its path is below
``HELD_OUT_BYTES``, so the split hangs on names alone and never moves.
"""

from __future__ import annotations

import hashlib
import io
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

RELEASE = "3.11.7"
# sha256 over names and contents, as `Corpus.sha256` computes it.
SHA256 = "99b5079f0b55e877dcffd2f6c16259d7085793236198d61ae72144695bc7f6d6"

# Tables of character codes, and what is not of the release.
SKIPPED = ("encodings/", "site-packages/", "test/encoded_modules/", "__pycache__/")
# 5 %: 13 of 256.
HELD_OUT_BYTES = 13


@dataclass(frozen=True)
class Source:
    """One file: its path below ``Lib`` and its text."""

    path: str
    text: str

    @property
    def held_out(self) -> bool:
        """Whether it is for evaluation only."""
        return hashlib.sha256(self.path.encode()).digest()[0] < HELD_OUT_BYTES

    @property
    def is_test(self) -> bool:
        """Whether it belongs to a test suite, which is most of the text but not what people write."""
        return "test/" in self.path or "tests/" in self.path


@dataclass(frozen=True)
class Corpus:
    """All files, in the order of their paths."""

    sources: tuple[Source, ...]

    @property
    def sha256(self) -> str:
        """Hash over names and contents."""
        digest = hashlib.sha256()
        for source in self.sources:
            digest.update(source.path.encode() + b"\0" + source.text.encode() + b"\0")
        return digest.hexdigest()

    @property
    def training(self) -> list[Source]:
        """Files to train on."""
        return [source for source in self.sources if not source.held_out]

    @property
    def held_out(self) -> list[Source]:
        """Files that training never sees."""
        return [source for source in self.sources if source.held_out]


def load(place: Path | None = None) -> Corpus:
    """The corpus from a ``Lib`` folder or from an archive that :func:`pack` made.

    Args:
        place: folder or archive; the running Python's own library if None.

    Raises:
        FileNotFoundError: nothing there.
    """
    place = place or Path(sysconfig.get_paths()["stdlib"])
    if not place.exists():
        raise FileNotFoundError(f"no corpus at {place}: name a Lib folder of CPython {RELEASE} or an archive of it")
    files = _of_archive(place) if place.is_file() else _of_folder(place)
    return Corpus(tuple(sorted(_decoded(files), key=lambda source: source.path)))


def pack(corpus: Corpus, archive: Path) -> None:
    """Write the corpus as a ``.tar.xz``, for a machine with another Python."""
    with tarfile.open(archive, "w:xz") as tar:
        for source in corpus.sources:
            data = source.text.encode()
            entry = tarfile.TarInfo(source.path)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


def _of_folder(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in folder.rglob("*.py"):
        name = path.relative_to(folder).as_posix()
        if not any(part in name for part in SKIPPED):
            yield name, path.read_bytes()


def _of_archive(archive: Path) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(archive) as tar:
        for entry in tar:
            stream = tar.extractfile(entry)
            if stream is not None:
                yield entry.name, stream.read()


def _decoded(files: Iterable[tuple[str, bytes]]) -> Iterator[Source]:
    for name, data in files:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            continue
        if text.strip():
            yield Source(name, text)
