"""A rollback journal that makes SQLite delete a file that the journal names."""

from __future__ import annotations

import os
import struct
from pathlib import Path

_MAGIC = bytes.fromhex("d9d505f920a163d7")
_SECTOR_BYTES = 512
_LOCK_BYTE = 0x40000000


def put_hot_journal(database: Path, victim: Path) -> Path:
    """Put a hot journal beside ``database`` whose super-journal is ``victim``; return its path.

    SQLite rolls such a journal back at the first query, and deletes the super-journal after this.
    """
    journal = database.with_name(f"{database.name}-journal")
    page_bytes, num_pages = 4096, 1
    if database.exists():
        (page_bytes,) = struct.unpack(">H", database.read_bytes()[16:18])
        num_pages = database.stat().st_size // page_bytes
    header = _MAGIC + struct.pack(">IIIII", 0, 0, num_pages, _SECTOR_BYTES, page_bytes)
    name = os.fsencode(victim)
    checksum = sum(byte if byte < 128 else byte - 256 for byte in name) & 0xFFFFFFFF
    tail = struct.pack(">I", _LOCK_BYTE // page_bytes + 1) + name
    tail += struct.pack(">II", len(name), checksum) + _MAGIC
    journal.write_bytes(header.ljust(_SECTOR_BYTES, b"\0") + tail)
    return journal
