"""Our parts of Flask do what Flask's do."""

from __future__ import annotations

import pytest
from flask import Response
from werkzeug.datastructures import EnvironHeaders

from lmi_handlers.web.flask_parts import LeanRequest, LeanResponse

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
