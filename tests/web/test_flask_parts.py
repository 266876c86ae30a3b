"""Our parts of Flask do what Flask's do."""

from __future__ import annotations

from functools import partial

import pytest
from flask import Flask, Response, session
from werkzeug.datastructures import EnvironHeaders
from werkzeug.exceptions import BadHost
from werkzeug.test import create_environ

from lmi_handlers.web.flask_parts import LeanRequest, LeanResponse, NoSessions, url_adapter

ENVIRON = {
    "REQUEST_METHOD": "POST",
    "HTTP_X_REQUEST_ID": "7",
    "HTTP_ACCEPT": "",
    "HTTP_CONTENT_TYPE": "never/this",
    "CONTENT_TYPE": "text/plain",
    "CONTENT_LENGTH": "3",
    "X_API_KEY": "not a header",
}


@pytest.mark.parametrize(
    "name", ["X-Request-Id", "x-request-id", "Accept", "content-type", "Content-Length", "x-api-key"]
)
def test_headers_are_looked_up_as_by_werkzeug(name: str) -> None:
    headers, werkzeugs = LeanRequest(dict(ENVIRON)).headers, EnvironHeaders(dict(ENVIRON))
    assert headers.get(name) == werkzeugs.get(name)
    assert headers.get(name, "given") == werkzeugs.get(name, "given")
    assert headers.get(name, 0, int) == werkzeugs.get(name, 0, int)
    assert (name in headers) == (name in werkzeugs)


def test_a_streamed_response_has_the_headers_that_it_was_given() -> None:
    given = {"Pragma": "no-cache", "x-request-id": "7"}
    body = iter([b"record"])
    responses = [kind(body, 200, given, content_type="text/plain") for kind in (Response, LeanResponse)]
    werkzeugs, ours = (response.get_wsgi_response(ENVIRON)[1:] for response in responses)
    assert ours == werkzeugs


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"HTTP_HOST": "localhost:8080"},
        {"HTTP_HOST": "LOCALHOST:80"},
        {"HTTP_HOST": "[::1]:8080"},
        {"HTTP_HOST": "no name"},
        {"HTTP_HOST": "localhost:443", "wsgi.url_scheme": "https"},
        {"SCRIPT_NAME": "/base", "REQUEST_METHOD": "PUT"},
        {"SCRIPT_NAME": "/base/"},
        {"PATH_INFO": "/models//", "QUERY_STRING": "a=b&c=%20"},
        {"PATH_INFO": "/\xc3\xa9/\xff", "QUERY_STRING": "\xc3\xa9=\xff"},
        {"PATH_INFO": ""},
    ],
)
def test_a_route_is_found_by_what_flask_looks_at(given: dict[str, str]) -> None:
    environ = create_environ() | {"HTTP_HOST": "model", "PATH_INFO": "/invocations"} | given
    app = Flask(__name__)
    flasks = app.create_url_adapter(LeanRequest(dict(environ)))
    assert vars(url_adapter(app.url_map, LeanRequest(environ))) == vars(flasks)


def test_a_host_that_is_no_name_is_refused_as_by_flask() -> None:
    environ = create_environ() | {"HTTP_HOST": "a" * 64}
    app = Flask(__name__)
    for adapter in (app.create_url_adapter, partial(url_adapter, app.url_map)):
        with pytest.raises(BadHost):
            adapter(LeanRequest(environ))


def test_no_session_is_kept() -> None:
    app = Flask(__name__)
    app.session_interface = NoSessions()

    @app.get("/")
    def view() -> str:
        with pytest.raises(RuntimeError):
            session["known"] = True
        return "known" if session else "unknown"

    with app.test_client() as client:
        answers = [client.get("/") for _ in range(2)]
    assert [answer.text for answer in answers] == ["unknown", "unknown"]
    assert not any(answer.headers.getlist("Set-Cookie") for answer in answers)
