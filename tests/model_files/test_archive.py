"""Archives from outside."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from facts import raises

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.model_files import archive as archive_module
from lmi_handlers.model_files.archive import unpack

ROOM = 1 << 40


def member(name: str, data: bytes = b"x", **fields: object) -> Callable[[tarfile.TarFile], None]:
    def add(archive: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        for field, value in fields.items():
            setattr(info, field, value)
        archive.addfile(info, io.BytesIO(data))

    return add


def claim(name: str, size: int) -> Callable[[tarfile.TarFile], None]:
    """A member that claims to be larger than it is."""

    def add(archive: tarfile.TarFile) -> None:
        assert archive.fileobj is not None
        info = tarfile.TarInfo(name)
        info.size = size
        archive.fileobj.write(info.tobuf())

    return add


def make(path: Path, *members: Callable[[tarfile.TarFile], None]) -> Path:
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for add in members:
            add(archive)
    return path


def sparse(name: str) -> Callable[[tarfile.TarFile], None]:
    """A file that says it has 10 bytes, and has a map with a hole of 1 GiB."""
    headers = {"GNU.sparse.major": "0", "GNU.sparse.map": f"0,{1 << 30}", "GNU.sparse.size": "10"}
    return member(name, b"x", pax_headers=headers)


def extended(kind: bytes, data: bytes, count: int = 1) -> Callable[[tarfile.TarFile], None]:
    """Headers of a kind that come before a member's own, each with this content."""

    def add(archive: tarfile.TarFile) -> None:
        assert archive.fileobj is not None
        info = tarfile.TarInfo("header")
        info.type, info.size = kind, len(data)
        block = info.tobuf() + data + bytes(-len(data) % tarfile.BLOCKSIZE)
        for _ in range(count):
            archive.fileobj.write(block)
        member("x")(archive)

    return add


def record(keyword: str, value: str) -> bytes:
    """A record of a pax header, which begins with its own length."""
    rest = f" {keyword}={value}\n".encode()
    size = len(rest) + len(str(len(rest)))
    size = len(rest) + len(str(size))
    return f"{size}".encode() + rest


MAP_WITHOUT_END = record("GNU.sparse.major", "1") + record("GNU.sparse.minor", "0") + record("GNU.sparse.name", "x")


def endless(size: int) -> int:
    return ROOM


def unpacked(
    tmp_path: Path, *members: Callable[[tarfile.TarFile], None], make_room: Callable[[int], int] = endless
) -> dict[str, bytes]:
    archive, folder = make(tmp_path / "a.tar.gz", *members), tmp_path / "content"
    folder.mkdir()
    unpack(archive, folder, name="a.tar.gz", make_room=make_room, progress=lambda done: None)
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_files_and_folders(tmp_path: Path) -> None:
    files = unpacked(
        tmp_path,
        member(".", b"", type=tarfile.DIRTYPE),
        member("./config.json", b"{}"),
        member("deep/folder", b"", type=tarfile.DIRTYPE),
        member("deep/folder/" + "a" * 200, b"2"),
    )
    assert files == {"config.json": b"{}", "deep/folder/" + "a" * 200: b"2"}


@pytest.mark.parametrize(
    ("add", "words"),
    [
        (member("/etc/passwd"), "/etc/passwd not safe file"),
        (member("a/../../b"), "not safe file name"),
        (member("a\\..\\b"), "not safe file name"),
        (
            member("link", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
            "link neither file folder",
        ),
        (member("link", b"", type=tarfile.LNKTYPE, linkname="../x"), "link neither file folder"),
        (member("null", b"", type=tarfile.CHRTYPE, devmajor=1, devminor=3), "neither file folder"),
        (member("pipe", b"", type=tarfile.FIFOTYPE), "neither file folder"),
        (member("a" * 300), "file 300 bytes"),
        (sparse("sparse"), "sparse neither file folder"),
        (claim("huge", 1 << 50), "1,073,741,824 bytes"),
        (claim("cut off", 50_000), "damaged: unexpected end"),
        (member("x", b"", pax_headers={"comment": "x" * (2 << 20)}), "damaged: header long"),
        (extended(tarfile.XGLTYPE, record("comment", "x")), "damaged: global sparse"),
        (extended(tarfile.XGLTYPE, b"".join(record(f"k{n}", "v") for n in range(40_000))), "damaged: global headers"),
        (extended(tarfile.XHDTYPE, b"".join(record(f"k{n}", "v") for n in range(40_000))), "header long"),
        (extended(tarfile.XHDTYPE, b"a" * (1 << 19)), "damaged: header long"),
        (extended(tarfile.XHDTYPE, b"1" * 8_000), "damaged: number long"),
        (extended(tarfile.GNUTYPE_LONGNAME, b"x" * 500_000), "damaged: header long"),
        (extended(tarfile.GNUTYPE_LONGNAME, b"x", 10_000), "damaged: header long"),
        (extended(tarfile.XHDTYPE, MAP_WITHOUT_END), "damaged:"),
        (member("x", b"", type=tarfile.GNUTYPE_SPARSE), "damaged: global sparse"),
        (member("x", pax_headers={"mtime": "inf"}), "damaged:"),
        (member("x", pax_headers={"mtime": "nan"}), "damaged:"),
    ],
)
def test_hostile_member_is_refused(tmp_path: Path, add: Callable[[tarfile.TarFile], None], words: str) -> None:
    with raises(ConfigError, words) as caught:
        unpacked(tmp_path, member("config.json"), add)
    assert str(caught.value).startswith("a.tar.gz ")
    assert {path.name for path in tmp_path.rglob("*")} <= {"a.tar.gz", "content", "config.json", "cut off", "x"}


def test_many_extended_headers_are_bounded_together(tmp_path: Path) -> None:
    """Each is short, but its records take `tarfile` a while, because they end before their keyword does."""
    headers = [extended(tarfile.XHDTYPE, b"4 a\n" * 2_000 + b"=") for _ in range(200)]
    with raises(ConfigError, "damaged: header long"):
        unpacked(tmp_path, *headers)


def test_usual_extended_headers_are_accepted(tmp_path: Path) -> None:
    many = [
        member(f"{n}/" + "n" * 150, pax_headers={"mtime": "1700000000.5", "comment": "x" * 500}) for n in range(500)
    ]
    assert len(unpacked(tmp_path, *many)) == 500


def test_archive_that_grows_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_module, "_LEAST_LIMIT", 100_000)
    with raises(ConfigError, "a.tar.gz 100,000 files bytes"):
        unpacked(tmp_path, *(member(f"zeros-{number}", bytes(30_000)) for number in range(5)))


def test_room_is_made_before_a_file_is_written(tmp_path: Path) -> None:
    """It is asked for again only once a file does not fit into what there was the last time."""
    asked = []

    def make_room(size: int) -> int:
        asked.append((size, sum(file.stat().st_size for file in (tmp_path / "content").iterdir())))
        return 50

    files = unpacked(tmp_path, *(member(str(size), bytes(size)) for size in (10, 30, 20, 60)), make_room=make_room)
    assert len(files) == 4
    assert asked == [(10, 0), (60, 60)]


def test_file_in_the_place_of_a_folder(tmp_path: Path) -> None:
    with raises(ConfigError, "a.tar.gz a/b as file folder"):
        unpacked(tmp_path, member("a"), member("a/b"))


def test_what_is_no_archive(tmp_path: Path) -> None:
    for number, data in enumerate(
        (b"", b"not gzip", make(tmp_path / "a", member("a", bytes(1000))).read_bytes()[:-20])
    ):
        file = tmp_path / str(number)
        file.write_bytes(data)
        with raises(ConfigError, "x not tar.gz damaged"):
            unpack(file, tmp_path / "content", name="x", make_room=endless, progress=lambda done: None)


def test_archive_without_its_later_members(tmp_path: Path) -> None:
    """Python takes a header that it cannot read for the end."""
    with gzip.open(make(tmp_path / "a", member("a"), member("b"))) as file:
        content = file.read()
    flipped = bytearray(content)
    flipped[1024 + 148] ^= 1  # in the checksum of the second header
    for number, data in enumerate((bytes(flipped), content[:1024], content[:1324])):
        file_name = tmp_path / str(number)
        file_name.write_bytes(gzip.compress(data))
        with raises(ConfigError, "damaged: header damaged missing"):
            unpack(file_name, tmp_path / "content", name="x", make_room=endless, progress=lambda done: None)
