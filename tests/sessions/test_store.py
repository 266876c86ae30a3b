"""Sessions as files: ids, expiry, limits, and several processes at once."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from facts import tell
from hypothesis import given
from hypothesis import strategies as st

from lmi_handlers.core.errors import QueueFull
from lmi_handlers.sessions.store import SessionStore, StoredSession, UnknownSession


def new_store(directory: Path, *, expiration: float = 60, limit: int = 10) -> SessionStore:
    return SessionStore(directory / "sessions", expiration=expiration, limit=limit)


@pytest.fixture
def store(tmp_path: Path) -> SessionStore:
    return new_store(tmp_path)


def test_every_process_finds_a_session_and_what_it_keeps(tmp_path: Path, store: SessionStore) -> None:
    session = store.create()
    assert session.path.parent.stat().st_mode & 0o077 == session.path.stat().st_mode & 0o077 == 0, "nobody else's"
    assert session.read("turns") is None
    assert session.replace("turns", None, b"one")
    found = new_store(tmp_path).open(session.session_id)
    assert found.read("turns") == b"one"
    assert (found.session_id, found.expires, found.announcement) == (
        session.session_id,
        session.expires,
        session.announcement,
    )


def test_a_closed_session_is_gone_with_all_that_it_kept(tmp_path: Path, store: SessionStore) -> None:
    session = store.create()
    session.replace("turns", None, b"one")
    store.close(session.session_id)
    for use in (store.open, store.close):
        with pytest.raises(UnknownSession, match="not found"):
            use(session.session_id)
    with pytest.raises(UnknownSession):
        session.read("turns")
    with pytest.raises(UnknownSession):
        session.replace("turns", b"one", b"two")
    assert list((tmp_path / "sessions").iterdir()) == []


def test_a_session_ends_with_its_time(tmp_path: Path) -> None:
    store = new_store(tmp_path, expiration=0.05)
    session = store.create()
    time.sleep(0.1)
    with pytest.raises(UnknownSession):
        store.open(session.session_id)
    fresh = new_store(tmp_path, expiration=60).create()
    assert [path.name for path in (tmp_path / "sessions").iterdir()] == [fresh.session_id], "the expired one is deleted"


def test_what_a_process_left_that_died_while_it_made_a_session_is_deleted(tmp_path: Path) -> None:
    script = """
import os, sys
from pathlib import Path
from lmi_handlers.sessions import store

store.write_whole = lambda path, data: os._exit(0)
store.SessionStore(Path(sys.argv[1]), expiration=60, limit=10).create()
"""
    folder = tmp_path / "sessions"
    subprocess.run([sys.executable, "-c", script, str(folder)], timeout=120, check=True)
    [left] = folder.iterdir()
    first = new_store(tmp_path).create()
    assert left.exists(), "another process may be making it"
    with pytest.raises(UnknownSession):
        new_store(tmp_path).open(left.name)
    os.utime(left, (0, time.time() - 100))
    second = new_store(tmp_path).create()
    assert {path.name for path in folder.iterdir()} == {first.session_id, second.session_id}


def test_a_disk_that_fails_ends_no_session(tmp_path: Path) -> None:
    session = new_store(tmp_path).create()
    (session.path / ".expires").rename(tmp_path / "aside")
    (session.path / ".expires").mkdir()  # which cannot be read
    (session.path / "turns").mkdir()
    os.utime(session.path, (0, time.time() - 100))
    new_store(tmp_path).create()
    for fails in (lambda: new_store(tmp_path).open(session.session_id), lambda: session.read("turns")):
        with pytest.raises(QueueFull, match="directory"):
            fails()
    (session.path / ".expires").rmdir()
    (tmp_path / "aside").rename(session.path / ".expires")
    assert new_store(tmp_path).open(session.session_id).expires == session.expires


def test_the_limit_counts_the_sessions_of_all_processes(tmp_path: Path) -> None:
    first, second = new_store(tmp_path, limit=2), new_store(tmp_path, limit=2)
    session = first.create()
    second.create()
    for store in (first, second):
        with pytest.raises(QueueFull) as refused:
            store.create()
        assert refused.value.code == "too_many_sessions"
    second.close(session.session_id)
    first.create()


@given(st.text(max_size=40) | st.sampled_from(["", ".", "..", "../x", "/etc", "a" * 5000, "NEW_SESSION", "a\0b"]))
def test_an_id_that_was_not_given_out_finds_nothing(tmp_path_factory: pytest.TempPathFactory, session_id: str) -> None:
    store = new_store(tmp_path_factory.getbasetemp())
    store.create() if not (tmp_path_factory.getbasetemp() / "sessions").exists() else None
    with pytest.raises(UnknownSession) as failure:
        store.open(session_id)
    assert len(str(failure.value)) < 500


def test_of_two_writers_at_once_one_wins(store: SessionStore) -> None:
    session = store.create()
    won: list[bytes] = []

    def write(text: bytes) -> None:
        for _ in range(20):
            old = session.read("turns")
            if session.replace("turns", old, (old or b"") + text):
                won.append(text)

    writers = [threading.Thread(target=write, args=(text,)) for text in (b"a", b"b", b"c")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sorted(StoredSession.read(session, "turns") or b"") == sorted(b"".join(won)), "nothing that was kept is lost"


_WITHOUT_ROOM = """
import resource, sys
from pathlib import Path
from lmi_handlers.core.errors import QueueFull
from lmi_handlers.sessions.store import SessionStore

store = SessionStore(Path(sys.argv[1]), expiration=60, limit=10)
session = store.create()
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # as on a full disk, writing fails
for write in (store.create, lambda: session.replace("turns", None, b"one")):
    try:
        write()
    except QueueFull as error:
        print(error)
"""


def test_a_process_without_file_descriptors_says_so(store: SessionStore) -> None:
    session = store.create()
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, most))
    try:
        with pytest.raises(QueueFull, match="Too many open files") as refused:
            session.replace("turns", None, b"one")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
    assert refused.value.code == "session_not_kept"
    assert session.replace("turns", None, b"one")


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_ROOM, str(tmp_path)], capture_output=True, text=True, timeout=120, check=True
    )
    assert tell(done.stdout.splitlines(), ["session kept: large"] * 2)
    [session] = tmp_path.iterdir()
    assert [file.name for file in session.iterdir()] == [".expires"]
