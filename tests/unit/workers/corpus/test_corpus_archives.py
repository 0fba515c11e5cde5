"""Archives as sources: what is read, what is refused, and that nothing is unpacked or followed."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import random
import stat
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

import pytest

from llmperf_common.text_limits import MAX_SOURCE_BYTES
from workers.corpus import archive_files, archive_streams, archive_tar, archive_zip
from workers.corpus.archives import read_archive
from workers.corpus.files import NESTED, CorpusError, FoundFiles, held_bytes
from workers.corpus.read import read_sources

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
            member("from\\windows.cl"),
            member("a" * 5000 + ".cl"),
        ),
    )
    assert [one.path for one in found.files] == ["good.cl", "from/windows.cl"]
    assert found.skipped[-1][1] == "its path has more than 4096 characters"
    link, out = "a link: not followed", "its path leads out of the archive"
    assert dict(found.skipped[:-1]) == {
        "soft.cl": link, "hard.cl": link, "pipe.cl": "a special file", "device.cl": "a special file",
        "../up.cl": out, "a/../../up.cl": out, "/etc/absolute.cl": out,
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
    with pytest.raises(
        CorpusError, match=r"x\.tar\.gz: it unpacks to more than .* unpack the part"
    ):
        read(tmp_path / "x.tar.gz", bomb)


def test_too_much_of_anything_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    raw = tar_bytes(*(member(f"{i}.cl") for i in range(10)))
    with monkeypatch.context() as patch:
        patch.setattr(archive_tar, "MAX_MEMBERS", 9)
        with pytest.raises(CorpusError, match="9 members or more"):
            read(tmp_path / "x.tar", raw)
    with monkeypatch.context() as patch:
        patch.setattr(archive_files, "MAX_TEXT_BYTES", 9 * held_bytes(VADD.decode()))
        with pytest.raises(CorpusError, match="bytes of sources"):
            read(tmp_path / "x.tar", raw)
    with monkeypatch.context() as patch:
        patch.setattr(archive_streams, "MAX_UNPACKED_BYTES", 4096)
        with pytest.raises(CorpusError, match="unpacks to more than 4096"):
            read(tmp_path / "x.tar", raw)


def test_a_header_without_end_is_refused_before_it_is_held(tmp_path: Path):
    info, content = member("a.cl", pax_headers={"comment": "x" * (8 << 20)})
    with pytest.raises(CorpusError, match="header is longer"):
        read(tmp_path / "x.tar", tar_bytes((info, content)))


def test_an_xz_file_that_asks_for_gigabytes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(archive_streams, "MAX_XZ_MEMORY_BYTES", 1 << 20)
    with pytest.raises(CorpusError, match="damaged or not an archive"):
        read(tmp_path / "x.tar.xz", lzma.compress(tar_bytes(member("a.cl")), preset=9))


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress])
def test_streams_one_after_another(tmp_path: Path, pack):
    noise = random.Random(7).randbytes(300_000)
    raw = tar_bytes(member("a.cl"), member("noise.bin", noise), member("b.cl"))
    parts = pack(b"") + pack(raw[:700]) + bytes(8) * (pack is not bz2.compress) + pack(raw[700:])
    for after in (b"", pack(b""), b"garbage" * (pack is bz2.compress)):
        assert len(read(tmp_path / "x.tar.gz", parts + after).files) == 2
    with pytest.raises(CorpusError, match="damaged or not an archive"):
        read(tmp_path / "x.tar.gz", parts[:-200])


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress])
@pytest.mark.parametrize("content", [b"", b"\0"])
def test_streams_of_nothing_are_refused_early(tmp_path: Path, pack, content: bytes):
    """40 MB of empty gzip members took 18 s."""
    with pytest.raises(CorpusError, match="10000 compressed streams of less than 16384 bytes"):
        read(tmp_path / "x.tar.gz", pack(content) * 10_100)


def claiming(num_bytes: int, name: bytes = b"data.bin") -> bytes:
    """Return a tar file with one member that says it is so large, and nothing of it."""
    info = tarfile.TarInfo(name.decode())
    info.size = num_bytes
    return info.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress])
def test_a_member_in_small_streams_is_refused_early(tmp_path: Path, pack):
    """A million xz streams of 512 bytes took 20 s."""
    with pytest.raises(CorpusError, match="10000 compressed streams of less than 16384 bytes"):
        read(tmp_path / "x.tar.gz", pack(claiming(2**23)) + pack(bytes(512)) * 10_100)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
@pytest.mark.parametrize("name", [b"data.bin", b"k.cl", b"k.h"])
def test_a_member_that_says_it_is_enormous_ends(tmp_path: Path, pack, name: bytes):
    raw = tar_bytes(member("a.cl"))[:1024] + claiming(2**60, name)
    for padding in (0, 100, 1024):
        with pytest.raises(CorpusError, match="damaged or not an archive"):
            read(tmp_path / "x.tar", pack(raw + bytes(padding)))


@pytest.mark.timeout(60)
def test_no_cut_or_flipped_tar_hangs_or_escapes(tmp_path: Path):
    seeds = random.Random(7)
    whole = tar_bytes(member("a.cl"), member("k" * 120 + ".cl"), member("b.h"))
    for round_number in range(300):
        raw = bytearray(whole)
        if round_number % 2:
            del raw[seeds.randrange(len(raw)) :]
        for _ in range(seeds.randrange(4)):
            if raw:
                raw[seeds.randrange(len(raw))] = seeds.randrange(256)
        with contextlib.suppress(CorpusError):
            read(tmp_path / "x.tar", bytes(raw))


def test_the_map_of_a_sparse_member_is_cut_off(tmp_path: Path):
    info = tarfile.TarInfo("sparse.cl")
    info.type = tarfile.GNUTYPE_SPARSE
    raw = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    raw[482] = 1  # the map goes on in another block
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw)
    with pytest.raises(CorpusError, match="damaged or not an archive"):
        read(tmp_path / "x.tar", tar_bytes(member("a.cl"))[:1024] + raw)


def test_archives_inside_an_archive_are_said_to_be_left_out(tmp_path: Path):
    raw = tar_bytes(member("a.cl"), member("in/more.zip", b"PK"), member(".git/x.tar", b""))
    assert read(tmp_path / "x.tar", raw).skipped == (("in/more.zip", NESTED),)


def test_headers_without_end_leave_room_for_the_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(archive_files, "MAX_HEADER_TEXT_BYTES", 2500)
    headers = [member(f"{i}.h", b"//" + b" " * 1000 + b"%d" % i) for i in range(4)]
    found = read(tmp_path / "x.tar", tar_bytes(*headers, member("a.cl", b'#include "0.h"\n')))
    assert [path for path, _ in found.skipped] == ["2.h", "3.h"]
    assert "bytes of headers" in found.skipped[0][1]
    assert (found.files[0].text or "").startswith("//  ")


def test_one_odd_character_makes_a_text_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(archive_files, "MAX_TEXT_BYTES", 20_000)
    plain, odd = b"//" + b"x" * 10_000, "\N{WORLD MAP}".encode() + b"x" * 10_000
    assert read(tmp_path / "x.tar", tar_bytes(member("a.cl", plain))).files
    with pytest.raises(CorpusError, match="bytes of sources"):
        read(tmp_path / "x.tar", tar_bytes(member("a.cl", odd)))


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
    with pytest.raises(CorpusError, match="damaged or not an archive"):
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
        "odd.cl": "compressed with an unsupported method",
    }


def test_a_zip_bomb_and_a_damaged_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    raw = bytearray(zip_bytes({"a.cl": VADD, "b.cl": VADD * 2}, zipfile.ZIP_STORED))
    raw[raw.index(b"vadd")] ^= 1
    found = read(tmp_path / "x.zip", bytes(raw))
    assert [one.path for one in found.files] == ["b.cl"]
    assert found.skipped[0][1].startswith("damaged: ")
    monkeypatch.setattr(archive_streams, "RATIO_FREE_BYTES", 1 << 20)
    with pytest.raises(CorpusError, match="unpacks to more"):
        read(tmp_path / "y.zip", zip_bytes({"a.cl": bytes(16 << 20)}))


def entry_of(name: bytes, data: bytes, num_unpacked: int, crc: int, offset: int) -> bytes:
    fields = (20, 20, 0, 8, 0, 0, crc, len(data), num_unpacked, len(name), 0, 0, 0, 0, 0, offset)
    return b"PK\1\2" + struct.pack("<HHHHHHIIIHHHHHII", *fields) + name


def overlapping_zip(num_entries: int, *, name: bytes = b"k.cl") -> bytes:
    """Return an archive whose directory lists one member so many times."""
    packer, content = zlib.compressobj(9, zlib.DEFLATED, -15), b" " * 2**20
    data, crc = packer.compress(content) + packer.flush(), zlib.crc32(content)
    fields = (20, 0, 8, 0, 0, crc, len(data), len(content), len(name), 0)
    local = b"PK\3\4" + struct.pack("<HHHHHIIIHH", *fields) + name + data
    directory = entry_of(name, data, len(content), crc, 0) * num_entries
    end = (0, 0, num_entries % 2**16, num_entries % 2**16, len(directory), len(local), 0)
    return local + directory + b"PK\5\6" + struct.pack("<HHHHIIH", *end)


def test_entries_of_a_zip_that_share_their_bytes_are_refused(tmp_path: Path):
    assert [one.path for one in read(tmp_path / "x.zip", overlapping_zip(1)).files] == ["k.cl"]
    with pytest.raises(CorpusError, match="share their bytes"):
        read(tmp_path / "x.zip", overlapping_zip(2))


def test_many_members_of_a_zip_are_one_bomb_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(archive_streams, "RATIO_FREE_BYTES", 1 << 20)
    members = {f"{i}.cl": b" " * 2**19 for i in range(12)}
    raw = zip_bytes(members)
    assert 300 * len(raw) < 12 * 2**19
    with pytest.raises(CorpusError, match="unpacks to more than"):
        read(tmp_path / "x.zip", raw)


def test_an_entry_of_a_zip_without_a_name_is_nothing(tmp_path: Path):
    with pytest.raises(CorpusError, match=r"no \.cl file"):
        read(tmp_path / "x.zip", overlapping_zip(1, name=b""))


def test_a_directory_without_end_is_refused_before_it_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    raw = zip_bytes({f"{i}.cl": VADD for i in range(10)})
    with monkeypatch.context() as patch:
        patch.setattr(archive_zip, "MAX_MEMBERS", 9)
        with pytest.raises(CorpusError, match="more than 9 members"):
            read(tmp_path / "x.zip", raw)
    monkeypatch.setattr(archive_zip, "MAX_DIRECTORY_BYTES", 200)
    with pytest.raises(CorpusError, match="list of members has more than 200 bytes"):
        read(tmp_path / "x.zip", raw)


def test_a_zip_of_windows(tmp_path: Path):
    raw = zip_bytes({"top/a.cl": b'#include "t.h"\n', "top/t.h": b"// t\n", "folder.cl/": b""})
    found = read(tmp_path / "x.zip", raw.replace(b"top/", b"top\\").replace(b"r.cl/", b"r.cl\\"))
    assert [(one.path, one.text) for one in found.files] == [("top/a.cl", "// t\n\n")]
    assert found.skipped == ()
