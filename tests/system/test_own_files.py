"""Files and folders that others can neither prepare nor see half written."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from facts import raises, says
from serving import lmi_check

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.files import own_temporary_folder, temporary_directory, write_whole


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This user's folder in a directory for temporary files. It does not exist."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"x-{os.getuid()}"


def test_a_folder_that_only_its_user_can_enter(folder: Path) -> None:
    assert own_temporary_folder("x") == folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (folder / "kept").touch()
    assert own_temporary_folder("x") == folder
    assert (folder / "kept").exists()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_others_could_write_to_it(folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)
    with raises(ConfigError, f"x-{os.getuid()} not used mode {mode:o}"):
        own_temporary_folder("x")


def test_a_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    with raises(ConfigError, "not folder delete TMPDIR"):
        own_temporary_folder("x")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to somebody else")
def test_somebody_elses_folder(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)
    with raises(ConfigError, "belongs user 12345"):
        own_temporary_folder("x")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to somebody else")
def test_planted_files_of_the_cache_are_refused(tmp_path: Path) -> None:
    """Without a writable home directory, the cache is in the directory for temporary files."""
    (temporary := tmp_path / "tmp").mkdir()
    planted = temporary / f"lmi-handlers-{os.getuid()}"
    planted.mkdir()
    os.chown(planted, 12345, 12345)
    (model := tmp_path / "model").mkdir()
    (home := tmp_path / "file").touch()
    environ = {"TMPDIR": str(temporary), "HOME": str(home), "LMI_CACHE_DIR": "", "XDG_CACHE_HOME": ""}
    result = lmi_check(model, environ=environ)
    assert result.returncode == 1
    assert says(result.stderr, f"lmi: error: {planted} belongs 12345")
    assert "Traceback" not in result.stderr


def test_no_directory_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc/nowhere"])
    with raises(ConfigError, "no temporary TMPDIR"):
        temporary_directory()


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, b"one")
    write_whole(path, b"two")
    assert path.read_bytes() == b"two"
    (tmp_path / "folder" / "in it").mkdir(parents=True)
    with pytest.raises(OSError, match="folder"):  # a folder with something in it cannot be replaced
        write_whole(tmp_path / "folder", b"three")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "folder"]


_WITHOUT_ROOM = """
import resource, sys
from pathlib import Path
from lmi_handlers.engine.adapter_registry import changing
from lmi_handlers.models.registry import write_models
from lmi_handlers.text.bundle import build_byte_bundle

folder = Path(sys.argv[1])

def change(value):
    with changing(folder) as adapters:
        adapters["a"] = value

def contents():
    return {path.name: path.read_bytes() for path in folder.iterdir()}

writers = (change, lambda value: write_models(folder, value), lambda value: build_byte_bundle(folder, chat_template=value))
for write, value in zip(writers, ({}, {}, "a"), strict=True):
    write(value)
before = contents()
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # as on a full disk, writing fails
for write in writers:
    try:
        write("b")
    except Exception as error:
        print(type(error).__name__)
assert contents() == before
"""


def test_a_full_disk_costs_nothing_that_was_there(tmp_path: Path) -> None:
    """The registries of adapters and models, and a model's text layer."""
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_ROOM, str(tmp_path)], capture_output=True, text=True, timeout=300, check=False
    )
    assert (len(done.stdout.split()), done.returncode) == (3, 0), done.stderr
