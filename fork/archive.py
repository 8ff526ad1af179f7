# SPDX-License-Identifier: Apache-2.0
"""A wheel being written, with its RECORD. Entries of another wheel are copied as they are, compressed.

That makes a build a matter of seconds, and its bytes independent of the zlib at hand for all that is not ours.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import struct
import zipfile
from pathlib import Path
from types import TracebackType

#: The earliest date that a zip can say: the time of a build is no part of it.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_UNIX = 3
_LOCAL_HEADER = 30


class WheelWriter:
    """Files must be added in the order that they shall have; ``close`` adds RECORD."""

    def __init__(self, path: Path, dist_info: str):
        self._zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        self._record_file = f"{dist_info}/RECORD"
        self._record: list[tuple[str, str, str]] = []

    def __enter__(self) -> WheelWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._add_record()
        self._zip.close()

    def add(self, file: str, content: bytes) -> None:
        self._record.append((file, f"sha256={_digest(content)}", str(len(content))))
        self._write(file, content)

    def copy(self, source: zipfile.ZipFile, file: str, recorded: tuple[str, str]) -> None:
        """Takes ``file`` over from ``source`` with what that wheel's RECORD says of it: its hash and its size."""
        theirs = source.getinfo(file)
        info = _info(file, 0o755 if theirs.external_attr >> 16 & 0o111 else 0o644)
        info.compress_type = theirs.compress_type
        info.CRC, info.compress_size, info.file_size = theirs.CRC, theirs.compress_size, theirs.file_size
        reading, writing = source.fp, self._zip.fp
        assert reading is not None and writing is not None
        reading.seek(theirs.header_offset)
        name_length, extra_length = struct.unpack("<HH", reading.read(_LOCAL_HEADER)[26:])
        reading.seek(theirs.header_offset + _LOCAL_HEADER + name_length + extra_length)
        # ZipFile has no public call for this: it keeps its place in start_dir and its directory in these two.
        info.header_offset = self._zip.start_dir
        writing.seek(info.header_offset)
        writing.write(info.FileHeader(zip64=False) + reading.read(theirs.compress_size))
        self._zip.start_dir = writing.tell()
        self._zip.filelist.append(info)
        self._zip.NameToInfo[file] = info
        self._record.append((file, *recorded))

    def _add_record(self) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([*self._record, (self._record_file, "", "")])
        self._write(self._record_file, text.getvalue().encode())

    def _write(self, file: str, content: bytes) -> None:
        self._zip.writestr(_info(file, 0o644), content, zipfile.ZIP_DEFLATED, 6)


def _info(file: str, mode: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(file, _EPOCH)
    info.create_system = _UNIX
    info.external_attr = (0o100000 | mode) << 16
    return info


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
