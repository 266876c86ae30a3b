"""`lmi run`: calls a model's own code once, without a server, and prints the answer."""

from __future__ import annotations

import http
import mimetypes
import sys
import uuid
from collections.abc import Iterable, Mapping
from typing import BinaryIO, NoReturn

from lmi_handlers.apis.lmi.dynamic import LmiDynamicDialect
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import ConfigError, LMIError, PayloadTooLarge
from lmi_handlers.core.log import fail, tell
from lmi_handlers.core.terminal import ByteWriter, show_error
from lmi_handlers.custom_code.messages import BodyChunk, End, Head, failure_of
from lmi_handlers.custom_code.once import call_once
from lmi_handlers.custom_code.runner import CodeError
from lmi_handlers.preflight.checks import mistakes
from lmi_handlers.preflight.configuration import examine_configuration
from lmi_handlers.web.custom_code import invoke_of, response_headers

_TYPES = {".npy": "application/x-npy", ".npz": "tensor/npz", ".jsonl": "application/jsonlines"}
"""Content types that Python does not know."""


def run(
    environ: Mapping[str, str], content: BinaryIO, *, content_type: str | None, headers: Iterable[str], include: bool
) -> NoReturn:
    """Print the answer, and exit with status 0, or with 1 if its status is 400 or more or the code does not load."""
    try:
        configuration = examine_configuration(environ)
    except ConfigError as error:
        fail(str(error))
    if causes := mistakes(configuration, environ):
        fail(*causes)
    code, properties = configuration.custom_code, configuration.properties
    if code is None:
        fail(
            f"lmi run calls a model's own code, and this model is served by the backend {configuration.selection.name}: "
            "start lmi serve, and send the request to /invocations"
        )
    given = {"Content-Type": content_type or _guess_type(content.name), **dict(map(_header, headers))}
    answer = _Answer(properties, include=include)
    try:
        data = content.read()
        if len(data) > properties.max_request_size:
            raise PayloadTooLarge(f"the input is larger than max_request_size ({properties.max_request_size} bytes)")
        call_once(code, properties, invoke_of(str(uuid.uuid4()), given.items(), (), data), answer.deliver)
    except LMIError as error:
        answer.refuse(error)
    except CodeError as error:
        if error.traceback:
            show_error(error.traceback)
        fail(str(error))
    sys.exit(answer.status >= 400)


class _Answer:
    """Prints an answer as it comes. `status` is what a client would get, or 424 for a stream that fails."""

    def __init__(self, properties: ServingProperties, *, include: bool) -> None:
        self._dialect = LmiDynamicDialect(properties, {})
        self._include = include
        self._output = ByteWriter()
        self.status = 0

    def deliver(self, message: Head | BodyChunk | End) -> None:
        """Print a part."""
        if isinstance(message, Head):
            content_type, headers = response_headers(message)
            self._begin(message.code, {**({"Content-Type": content_type} if content_type else {}), **headers})
        elif isinstance(message, BodyChunk):
            self._output.write(message.data)
        elif (error := failure_of(message)) is not None:
            tell("error", str(error))
            if self.status:
                self.status = 424
            else:
                self.refuse(error)

    def refuse(self, error: LMIError) -> None:
        """Print the answer to a request that fails before its answer has begun."""
        rendered = self._dialect.error(error)
        self._begin(rendered.status, {"Content-Type": rendered.content_type})
        self._output.write(rendered.body)

    def _begin(self, status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        if self._include:
            reasons = {known.value: known.phrase for known in http.HTTPStatus}
            lines = [
                f"HTTP/1.1 {status} {reasons.get(status, '')}",
                *(f"{name}: {text}" for name, text in headers.items()),
            ]
            show_error("\n".join([*lines, ""]))


def _guess_type(name: str) -> str:
    suffix = name[name.rfind(".") :].lower()
    return _TYPES.get(suffix) or mimetypes.guess_type(name)[0] or "application/json"


def _header(text: str) -> tuple[str, str]:
    """Return name and value. The name is written as the server writes it."""
    name, colon, value = text.partition(":")
    if not name.strip() or not colon:  # it may be a secret
        fail("--header must be NAME:VALUE, got one without a name or a colon")
    return name.strip().title(), value.strip()
