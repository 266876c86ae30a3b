"""The API: a route, what it reads, and what it writes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from formatters.base import encode
from lmi_handlers.apis.api import Api, Context
from lmi_handlers.apis.base import Dialect, Payload, Reply
from lmi_handlers.apis.decoding import decode_typed
from lmi_handlers.apis.routes import JSON, JSON_LINES, Generation, Route
from lmi_handlers.core.errors import EngineNotReady, InvalidRequest, LMIError, QueueFull
from lmi_handlers.core.request import GenerationRequest, Prompt
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.serving.parsed import Parsed
from lmi_handlers_shout.formatter import Shout, ShoutDocument, ShoutError, ShoutLines

STATUS = {InvalidRequest: 400, QueueFull: 429, EngineNotReady: 503}


class ShoutBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body: `{"text": "hello", "stream": true}`."""

    text: str
    max_tokens: int | None = None
    stream: bool = False


class ShoutDialect(Dialect):
    """Turns bodies into requests, and errors into responses."""

    error_type = ShoutError

    def parse(self, payload: Payload) -> Parsed:
        """Choose the formatter too. Raises `InvalidRequest`."""
        body = decode_typed(payload.data, ShoutBody)
        request = GenerationRequest(
            request_id=payload.request_id,
            prompts=(Prompt(body.text),),
            sampling_params=SamplingParams(max_tokens=body.max_tokens),
            stream=body.stream,
        )
        formatter = ShoutLines if body.stream else ShoutDocument
        # `alias` gives the body's name for a field of `SamplingParams`. Here they are the same.
        return Parsed(request, formatter, alias=str, prompt_field="text")

    def error(self, error: LMIError) -> Reply:
        """Render an error that occurs before the first byte of the answer."""
        status = next((status for kind, status in STATUS.items() if isinstance(error, kind)), 500)
        return Reply(status, encode(ShoutError(str(error))))


class ShoutApi(Api):
    """`POST /shout`. The types are for the OpenAPI document."""

    def __init__(self, context: Context) -> None:
        """`context` has the options and the loaded model, which this API does not need."""

    def routes(self) -> Sequence[Route]:
        """Return the API's own routes."""
        endpoint = Generation(
            dialects=(ShoutDialect(),),
            bodies={JSON: (ShoutBody,)},
            answers={JSON: (Shout,), JSON_LINES: (Shout, ShoutError)},
        )
        return [Route(method="POST", path="/shout", name="shout", tag="Shout", summary="Shout.", endpoint=endpoint)]
