"""Who may ask: browsers' origins (CORS) and the API key, for every route alike."""

from __future__ import annotations

import hmac
import os

from flask import Flask, Response, request

ANY_ORIGIN = "*"


class AccessControl:
    """Answers every `OPTIONS`, marks every response for browsers, and with `api_key` turns away each POST without it.

    `allowed_origin` is `*` or origins separated by commas. The key comes as `Authorization: Bearer <key>`. GETs stay open:
    they tell health, metrics and names.
    """

    def __init__(self, allowed_origin: str, api_key: str | None) -> None:
        self._origins = {origin.strip() for origin in allowed_origin.split(",")}
        self._key = os.fsencode(api_key) if api_key else None

    def install(self, app: Flask) -> None:
        """Stand in front of every route of `app`, unknown ones included."""
        app.before_request(self._admit)
        app.after_request(self._mark)

    def _admit(self) -> Response | None:
        if request.method == "OPTIONS":
            allowed = "content-type" if self._key is None else "content-type,authorization"
            return Response(
                headers={"Access-Control-Allow-Methods": "GET,POST", "Access-Control-Allow-Headers": allowed}
            )
        if self._key is not None and request.method == "POST" and not self._has_key(self._key):
            return Response(status=401)
        return None

    @staticmethod
    def _has_key(key: bytes) -> bool:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        # WSGI hands over a header's bytes as Latin-1 text.
        return scheme.lower() == "bearer" and hmac.compare_digest(given.encode("latin-1"), key)

    def _mark(self, response: Response) -> Response:
        origin = request.headers.get("Origin", "")
        if ANY_ORIGIN in self._origins:
            response.headers["Access-Control-Allow-Origin"] = ANY_ORIGIN
        elif origin in self._origins:
            response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Vary"] = "origin, access-control-request-method, access-control-request-headers"
        return response
