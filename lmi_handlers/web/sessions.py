"""SageMaker's stateful sessions on the invoke routes.

`{"requestType": "NEW_SESSION"}` begins a session, `{"requestType": "CLOSE"}` ends the one that the request's header names,
and every other request may name one. Source: LMI's page on stateful sessions.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import msgspec
from flask import Response

from lmi_handlers.apis.base import Payload
from lmi_handlers.apis.decoding import decode_typed
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import UnsupportedFeature
from lmi_handlers.serving.conversation import continue_conversation
from lmi_handlers.serving.parsed import Change, Parsed, unchanged
from lmi_handlers.sessions.store import SessionStore, StoredSession
from lmi_handlers.web.exchange import Exchange
from lmi_handlers.web.identity import NEW_SESSION, SESSION_ID

NEW_SESSION_ID = "X-Amzn-SageMaker-New-Session-Id"
CLOSED_SESSION_ID = "X-Amzn-SageMaker-Closed-Session-Id"
"""Header of the answer that ends a session."""

REPLICA_VARIABLE = "LMI_REPLICA"
"""Environment variable with the name of this server among its replicas, if it is one. Session ids end with it."""


class _SessionRequest(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """A body that begins or ends a session."""

    request_type: Literal["NEW_SESSION", "CLOSE"]


class _SessionResult(msgspec.Struct):
    result: str


class Sessions:
    """The sessions of a model, in files that all web workers share."""

    def __init__(self, properties: ServingProperties, runtime_dir: Path) -> None:
        directory = runtime_dir / "sessions" if properties.sessions_path is None else Path(properties.sessions_path)
        self._store = SessionStore(
            directory,
            expiration=properties.sessions_expiration,
            limit=properties.max_sessions,
            replica=os.environ.get(REPLICA_VARIABLE, ""),
        )
        self._enabled = properties.enable_stateful_sessions
        self._history = properties.session_history
        self._max_messages = properties.max_messages

    def answer(self, exchange: Exchange, payload: Payload) -> Response | None:
        """Answer a body that begins or ends a session. Returns None for any other body. Raises `InvalidRequest`."""
        if b'"requestType"' not in payload.data or "requestType" not in payload.fields:
            return None
        exchange.counts = False
        self._check_enabled()
        if decode_typed(payload.data, _SessionRequest).request_type == NEW_SESSION:
            result = f"Session {self._begin(exchange).session_id} created"
        else:
            session_id = exchange.http.headers.get(SESSION_ID, "")
            self._store.close(session_id)
            exchange.headers[CLOSED_SESSION_ID] = session_id
            result = f"Session {session_id} closed"
        return exchange.document(msgspec.json.encode(_SessionResult(result)), "application/json")

    def entry(self, exchange: Exchange) -> Change:
        """Return the change with which a request enters its session, and continues its conversation if one is kept.

        Raises `InvalidRequest`.
        """
        session_id = exchange.http.headers.get(SESSION_ID)
        if not session_id:
            return unchanged
        self._check_enabled()
        session = None if session_id == NEW_SESSION else self._store.open(session_id)

        def enter(parsed: Parsed) -> Parsed:
            entered = session or self._begin(exchange)
            return continue_conversation(parsed, entered, self._max_messages) if self._history else parsed

        return enter

    def _begin(self, exchange: Exchange) -> StoredSession:
        session = self._store.create()
        for name in (SESSION_ID, NEW_SESSION_ID):  # SageMaker knows the first, clients of vLLM's containers both
            exchange.headers[name] = session.announcement
        return session

    def _check_enabled(self) -> None:
        if not self._enabled:
            raise UnsupportedFeature(
                "sessions are disabled (option.enable_stateful_sessions=false)", code="sessions_disabled"
            )
