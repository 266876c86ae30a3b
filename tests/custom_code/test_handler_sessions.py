"""`djl_python.session_manager`, without a server."""

from __future__ import annotations

import uuid
from pathlib import Path

import numpy as np
import pytest

from lmi_handlers.core.errors import QueueFull
from lmi_handlers.custom_code.sessions import Session, SessionManager


@pytest.fixture
def properties(tmp_path: Path) -> dict[str, str]:
    return {"sessions_path": str(tmp_path / "sessions"), "max_sessions": "3", "max_session_size": "2000"}


@pytest.fixture
def session(properties: dict[str, str]) -> Session:
    return SessionManager(properties).create_session()


def other(properties: dict[str, str], session: Session) -> Session:
    """The same session in another process."""
    found = SessionManager(properties).get_session(session.session_id)
    assert found is not None
    return found


def test_values_of_any_type_are_shared(properties: dict[str, str], session: Session) -> None:
    session.put("history", [{"role": "user"}, (1, 2)])
    assert other(properties, session).get("history") == [{"role": "user"}, (1, 2)]
    assert session.get("none") is None
    assert session.get("none", 3) == 3


def test_arrays_are_mapped_and_shared(properties: dict[str, str], session: Session) -> None:
    written = session.get_as_numpy("cache", shape=(2, 3), dtype=np.int16, create=True)
    read = other(properties, session).get_as_numpy("cache", shape=(2, 3), dtype=np.int16)
    assert not read.any()
    written[1, 2] = 7
    assert read[1, 2] == 7
    with pytest.raises(FileNotFoundError):
        session.get_as_numpy("none", shape=(1,))


def test_ids_cannot_be_guessed_and_sessions_are_private(session: Session) -> None:
    assert uuid.UUID(session.session_id).version == 4
    assert Path(session.files_path).parent.stat().st_mode & 0o777 == 0o700
    assert Path(session.files_path).stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("key", ["", ".", "..", ".expires", "a\0b", "x" * 256])
def test_keys_that_are_no_names_are_refused(session: Session, key: str) -> None:
    with pytest.raises(ValueError, match="cannot be a key"):
        session.put(key, 1)
    with pytest.raises(ValueError, match="cannot be a key"):
        session.get_as_numpy(key, shape=(1,), create=True)


def test_keys_do_not_leave_the_session(session: Session) -> None:
    session.put("a/../../b", 1)
    session.put("/etc/passwd", 2)
    assert (session.get("a/../../b"), session.get("/etc/passwd")) == (1, 2)
    names = {path.name for path in Path(session.files_path).iterdir()}
    assert names == {".expires", "a-..-..-b", "-etc-passwd"}


@pytest.mark.parametrize("session_id", ["../sessions", "", "/tmp", "f2c64b3f-b206-4502-a08e-2f9ea652d85a", "x" * 1000])
def test_unknown_sessions_cannot_be_opened_or_closed(properties: dict[str, str], session_id: str) -> None:
    manager = SessionManager(properties)
    manager.create_session()
    with pytest.raises(ValueError, match="session"):
        manager.close_session(session_id)
    if session_id:
        with pytest.raises(ValueError, match="session not found"):
            manager.get_session(session_id)


def test_without_an_id_there_is_no_session(properties: dict[str, str]) -> None:
    manager = SessionManager(properties)
    assert manager.get_session(None) is manager.get_session("") is manager.get_session("NEW_SESSION") is None


def test_a_closed_session_is_gone(properties: dict[str, str], session: Session) -> None:
    seen = other(properties, session)
    SessionManager(properties).close_session(session.session_id)
    assert not Path(session.files_path).exists()
    assert seen.get("history") is None
    for use in (lambda: seen.put("a", 1), seen.remove):
        with pytest.raises(ValueError, match="session not found"):
            use()


def test_sessions_expire(properties: dict[str, str]) -> None:
    brief = SessionManager(properties | {"sessions_expiration": "0"}).create_session()
    with pytest.raises(ValueError, match="expired"):
        SessionManager(properties).get_session(brief.session_id)


def test_the_number_of_sessions_is_limited(properties: dict[str, str]) -> None:
    manager = SessionManager(properties)
    sessions = [manager.create_session() for _ in range(3)]
    with pytest.raises(QueueFull, match="3 sessions already"):
        manager.create_session()
    assert sessions[0].remove()
    manager.create_session()


def test_the_size_of_a_session_is_limited(session: Session) -> None:
    session.put("a", b"x" * 1500)
    session.put("a", b"y" * 1500)  # replaces the first
    for write in (
        lambda: session.put("b", b"x" * 500),
        lambda: session.get_as_numpy("b", shape=(500,), dtype="uint8", create=True),
        lambda: session.get_as_numpy("a", shape=(3000,), dtype="uint8"),
    ):
        with pytest.raises(ValueError, match="at most 2000 are allowed"):
            write()
    assert session.get("a") == b"y" * 1500
