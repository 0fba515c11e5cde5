"""Archives as sources: what is read, what is refused, and that nothing is unpacked or followed."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from workers import archive_streams, corpus_archives
from workers.corpus import read_sources
from workers.corpus_archives import read_archive
from workers.corpus_files import MAX_SOURCE_BYTES, CorpusError, FoundFiles
from workers.corpus_sources import find_sources

VADD = b"__kernel void vadd(__global float *a) { a[get_global_id(0)] += 1; }\n"


def member(name: str, content: bytes = VADD, **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, content


def tar_bytes(*members: tuple[tarfile.TarInfo, bytes], format_: int = tarfile.PAX_FORMAT) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=format_) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def read(path: Path, content: bytes) -> FoundFiles:
    path.write_bytes(content)
    return read_archive(path, None)


PACKERS = {
    ".tar": bytes, ".tar.gz": gzip.compress, ".tgz": gzip.compress, ".tar.xz": lzma.compress,
    ".txz": lzma.compress, ".tar.bz2": bz2.compress, ".tbz2": bz2.compress,
}  # fmt: skip


@pytest.mark.parametrize("suffix", PACKERS)
def test_an_archive_gives_what_its_folder_gives(tmp_path: Path, suffix: str):
    raw = tar_bytes(
        member("top/a.cl"),
        member("./top/deep/b.CL", VADD.replace(b"vadd", b"other")),
        member("top/.hidden/c.cl"),
        member("top/notes.txt", b"no kernel"),
    )
    found = read(tmp_path / f"suite-1{suffix}", PACKERS[suffix](raw))
    assert [(one.path, one.suite) for one in found.files] == [
        ("top/a.cl", "suite-1"),
        ("top/deep/b.CL", "suite-1"),
    ]
    assert found.files[0].text == VADD.decode()
    assert found.skipped == ()
    folder = tmp_path / "suite-1" / "top"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.cl").write_bytes(VADD)
    (folder / "deep" / "b.CL").write_bytes(VADD.replace(b"vadd", b"other"))
    archive, plain = read_sources([tmp_path / f"suite-1{suffix}"]), read_sources([folder.parent])
    assert archive == plain


def test_links_special_files_and_paths_out_of_the_archive_are_skipped(tmp_path: Path):
    (tmp_path / "secret.cl").write_bytes(VADD)
    found = read(
        tmp_path / "x.tar",
        tar_bytes(
            member("soft.cl", b"", type=tarfile.SYMTYPE, linkname=str(tmp_path / "secret.cl")),
            member("hard.cl", b"", type=tarfile.LNKTYPE, linkname="../secret.cl"),
            member("pipe.cl", b"", type=tarfile.FIFOTYPE),
            member("device.cl", b"", type=tarfile.CHRTYPE),
            member("folder.cl/", b"", type=tarfile.DIRTYPE),
            member("../up.cl"),
            member("a/../../up.cl"),
            member("/etc/absolute.cl"),
            member("C:\\windows.cl"),
            member("good.cl"),
        ),
    )
    assert [one.path for one in found.files] == ["good.cl"]
    link, out = "a link: not followed", "its path leads out of the archive"
    assert dict(found.skipped) == {
        "soft.cl": link, "hard.cl": link, "pipe.cl": "a special file", "device.cl": "a special file",
        "folder.cl": "a special file", "../up.cl": out, "a/../../up.cl": out, "/etc/absolute.cl": out,
        "C:\\windows.cl": out,
    }  # fmt: skip
    assert sorted(one.name for one in tmp_path.iterdir()) == ["secret.cl", "x.tar"]


def test_the_later_of_two_members_of_one_name_counts(tmp_path: Path):
    found = read(tmp_path / "x.tar", tar_bytes(member("a.cl", b"old"), member("a.cl", b"new")))
    assert [one.text for one in found.files] == ["new"]


def test_a_name_that_is_no_unicode_and_content_that_is_no_text(tmp_path: Path):
    raw = tar_bytes(
        member("caf\udce9.cl"),
        member("latin.cl", b"// caf\xe9"),
        member("huge.cl", b" " * (MAX_SOURCE_BYTES + 5)),
        format_=tarfile.GNU_FORMAT,
    )
    found = read(tmp_path / "x.tar", raw)
    assert [one.path for one in found.files] == ["caf\ufffd.cl", "latin.cl", "huge.cl"]
    assert [one.text is None for one in found.files] == [False, True, True]
    assert str(MAX_SOURCE_BYTES + 5) in found.files[2].problem
    kernels = read_sources([tmp_path / "x.tar"]).kernels
    assert sorted(one.name for one in kernels if one.failure) == ["huge", "latin"]


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress])
def test_a_decompression_bomb_is_refused_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack
):
    monkeypatch.setattr(archive_streams, "RATIO_FREE_BYTES", 1 << 20)
    bomb = pack(tar_bytes(member("zeros.bin", bytes(24 << 20)), member("a.cl")))
    with pytest.raises(CorpusError, match=r"x\.tar\.gz: it unfolds to more than .* unpack what"):
        read(tmp_path / "x.tar.gz", bomb)


def test_too_much_of_anything_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    raw = tar_bytes(*(member(f"{i}.cl") for i in range(10)))
    with monkeypatch.context() as patch:
        patch.setattr(corpus_archives, "MAX_MEMBERS", 9)
        with pytest.raises(CorpusError, match="9 members or more"):
            read(tmp_path / "x.tar", raw)
    with monkeypatch.context() as patch:
        patch.setattr(corpus_archives, "MAX_TEXT_BYTES", 9 * len(VADD))
        with pytest.raises(CorpusError, match="bytes of sources"):
            read(tmp_path / "x.tar", raw)
    with monkeypatch.context() as patch:
        patch.setattr(archive_streams, "MAX_UNPACKED_BYTES", 4096)
        with pytest.raises(CorpusError, match="unfolds to more than 4096"):
            read(tmp_path / "x.tar", raw)


def test_a_header_without_end_is_refused_before_it_is_held(tmp_path: Path):
    info, content = member("a.cl", pax_headers={"comment": "x" * (8 << 20)})
    with pytest.raises(CorpusError, match="header is longer"):
        read(tmp_path / "x.tar", tar_bytes((info, content)))


def test_an_xz_file_that_asks_for_gigabytes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(archive_streams, "MAX_XZ_MEMORY_BYTES", 1 << 20)
    with pytest.raises(CorpusError, match="damaged or no archive"):
        read(tmp_path / "x.tar.xz", lzma.compress(tar_bytes(member("a.cl")), preset=9))


def test_xz_streams_one_after_another(tmp_path: Path):
    raw = tar_bytes(member("a.cl"), member("b.cl"))
    parts = lzma.compress(raw[:700]) + bytes(8) + lzma.compress(raw[700:])
    assert len(read(tmp_path / "x.tar.xz", parts).files) == 2


def damaged_archives() -> dict[str, bytes]:
    raw = tar_bytes(member("a.cl"), member("b.cl"), member("c.cl"))
    second = raw.index(b"b.cl")
    return {
        "empty.tar": b"",
        "text.tar": b"not an archive " * 100,
        "cut.tar": raw[: second + 600],
        "header.tar": raw[:second] + b"\xff" * 400 + raw[second + 400 :],
        "cut.tar.gz": gzip.compress(raw)[:-40],
        "cut.tar.xz": lzma.compress(raw)[:-40],
        "cut.tar.bz2": bz2.compress(raw)[:-40],
        "text.zip": b"not an archive",
        "flipped.tar.gz": gzip.compress(raw)[:60] + bytes(20) + gzip.compress(raw)[80:],
    }


@pytest.mark.parametrize("name", damaged_archives())
def test_a_damaged_archive_says_so(tmp_path: Path, name: str):
    with pytest.raises(CorpusError, match="damaged or no archive"):
        read(tmp_path / name, damaged_archives()[name])


def test_an_archive_without_sources_says_so(tmp_path: Path):
    with pytest.raises(CorpusError, match=r"no \.cl file"):
        read(tmp_path / "x.tar", tar_bytes(member("readme.md")))


def zip_bytes(entries: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return stream.getvalue()


def test_a_zip_archive(tmp_path: Path):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("top/a.cl", VADD)
        archive.writestr("../up.cl", VADD)
        link = zipfile.ZipInfo("link.cl")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr(zipfile.ZipInfo("odd.cl"), VADD, compress_type=zipfile.ZIP_LZMA)
    found = read(tmp_path / "pack.zip", stream.getvalue())
    assert [(one.path, one.suite) for one in found.files] == [("top/a.cl", "pack")]
    assert dict(found.skipped) == {
        "../up.cl": "its path leads out of the archive",
        "link.cl": "a link: not followed",
        "odd.cl": "compressed by a method not read here",
    }


def test_a_zip_bomb_and_a_damaged_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    raw = bytearray(zip_bytes({"a.cl": VADD, "b.cl": VADD * 2}, zipfile.ZIP_STORED))
    raw[raw.index(b"vadd")] ^= 1
    found = read(tmp_path / "x.zip", bytes(raw))
    assert [one.path for one in found.files] == ["b.cl"]
    assert found.skipped[0][1].startswith("damaged: ")
    monkeypatch.setattr(archive_streams, "RATIO_FREE_BYTES", 1 << 20)
    with pytest.raises(CorpusError, match="unfolds to more"):
        read(tmp_path / "y.zip", zip_bytes({"a.cl": bytes(16 << 20)}))


def test_a_fifo_named_like_a_source_is_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.cl")
    (tmp_path / "a.cl").write_bytes(VADD)
    found = find_sources(tmp_path, None)
    assert [one.path for one in found.files] == ["a.cl"]
    assert found.skipped == (("pipe.cl", "neither a file nor a folder"),)
