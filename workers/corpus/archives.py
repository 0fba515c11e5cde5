"""Read the ``.cl`` files of a tar or zip archive without unpacking it, however hostile it is.

Owns the messages about an archive that cannot be read. Writes nothing to disk and opens no file
that a name in the archive points to. Never follows links or special files. Limits what a compressed
stream unpacks to: bytes, ratio, number of members.
"""

from __future__ import annotations

import lzma
import tarfile
import zipfile
import zlib
from pathlib import Path

from workers.corpus.archive_files import ArchiveFiles
from workers.corpus.archive_streams import StreamLimitError
from workers.corpus.archive_tar import DamagedHeaderError, read_tar
from workers.corpus.archive_zip import read_zip
from workers.corpus.files import ARCHIVE_SUFFIXES, EXTENSION, CorpusError, FoundFiles
from workers.corpus.includes import with_includes

_DAMAGE = (
    tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, EOFError, ValueError,
    NotImplementedError, OverflowError, RecursionError, DamagedHeaderError,
)  # fmt: skip


def read_archive(source: Path, suite: str | None) -> FoundFiles:
    """Read every ``.cl`` file of an archive, its includes replaced by the archive's headers.

    If two members have the same name, the later one counts, as when the archive is unpacked.

    Raises:
        CorpusError: The archive is unreadable or damaged, exceeds a limit, or has no ``.cl`` file.
    """
    found = ArchiveFiles(suite or _stem(source.name))
    read = read_zip if source.name.lower().endswith(".zip") else read_tar
    try:
        with source.open("rb") as raw:
            read(raw, source.stat().st_size, found)
    except StreamLimitError as error:
        raise CorpusError(
            f"{source}: {error}, so the archive was not read; unpack the part that you trust and "
            "name its folder"
        ) from None
    except _DAMAGE as error:
        raise CorpusError(
            f"{source} is damaged or not an archive ({error or type(error).__name__}): get it again"
        ) from None
    except OSError as error:
        raise CorpusError(f"{source}: cannot be read: {error.strerror or error}") from None
    if not found.files and not found.skipped:
        raise CorpusError(
            f"{source} has no {EXTENSION} file in it: name an archive of OpenCL sources"
        )
    files = with_includes(found.files.values(), found.header)
    return FoundFiles(files=files, skipped=tuple(found.skipped))


def _stem(name: str) -> str:
    lower = name.lower()
    suffix = max((one for one in ARCHIVE_SUFFIXES if lower.endswith(one)), key=len)
    return name[: -len(suffix)] or name
