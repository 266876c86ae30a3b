"""A third party's API: `POST /say` takes `{"say": "text"}`. It is only found through its entry point."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from scripted_formatter import CsvFormatter

from lmi_handlers.apis.api import Api, Context
from lmi_handlers.apis.base import Dialect, Payload, Reply
from lmi_handlers.apis.decoding import decode_typed
from lmi_handlers.apis.documentation import Documentation
from lmi_handlers.apis.routes import Route, generation
from lmi_handlers.core.errors import InvalidRequest, LMIError
from lmi_handlers.core.request import GenerationRequest, Prompt
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.serving.parsed import Parsed


class SayBody(msgspec.Struct):
    say: str
    tokens: int = 3


class SayError(msgspec.Struct):
    sorry: str


class SayDialect(Dialect):
    error_type = SayError

    def parse(self, payload: Payload) -> Parsed:
        body = decode_typed(payload.data, SayBody)
        params = SamplingParams(max_tokens=body.tokens)
        request = GenerationRequest(request_id=payload.request_id, prompts=(Prompt(body.say),), sampling_params=params)
        return Parsed(request, CsvFormatter, str)

    def error(self, error: LMIError) -> Reply:
        return Reply(400 if isinstance(error, InvalidRequest) else 500, msgspec.json.encode(SayError(str(error))))


class SayApi(Api):
    prefixes = ("/say",)
    documentation = Documentation(examples={SayBody: {"say": "hello"}}, bounds={"SayBody": {"tokens": {"minimum": 1}}})

    def __init__(self, context: Context) -> None:
        self._say = generation(SayDialect(), SayBody, {CsvFormatter.content_type: (str,)})
        self.native = self._say

    def routes(self) -> Sequence[Route]:
        return [Route("POST", "/say", "say", "Say", "Answer in CSV.", self._say)]

    def router_error(self, status: int, kind: str, message: str) -> object:
        return SayError(message)
