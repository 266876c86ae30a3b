"""Tests of the example. `BackendContract` brings the checks that every backend must pass."""

from __future__ import annotations

from lmi_handlers_shout.formatter import ShoutDocument, ShoutLines

from lmi_handlers.core.errors import RequestFailed
from lmi_handlers.core.outputs import TextDelta
from lmi_handlers.core.request import GenerationRequest
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.testing import BackendContract

REQUEST = GenerationRequest(request_id="r", prompts=("hi",), sampling_params=SamplingParams())


class TestShout(BackendContract):
    name = "shout"


def test_lines() -> None:
    formatter = ShoutLines(REQUEST, (2,))
    assert formatter.feed(TextDelta(text="H")) + formatter.feed(TextDelta(text="")) == b'{"index":0,"text":"H"}\n'
    assert formatter.finish() == b""
    assert formatter.error(RequestFailed("out of breath")) == b'{"error":"out of breath"}\n'


def test_document() -> None:
    formatter = ShoutDocument(REQUEST, (2,))
    assert formatter.feed(TextDelta(text="HI")) + formatter.feed(TextDelta(text="!")) == b""
    assert formatter.finish() == b'{"index":0,"text":"HI!"}'
