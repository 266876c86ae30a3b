"""OpenAI's routes for speech: the unmodified client, all formats, and forms that are refused."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest
import requests
from facts import says
from hypothesis import given
from hypothesis import strategies as st
from openapi_spec_validator import validate
from serving import Server
from task_handlers import encoded, wav
from tiny_whisper import save_whisper, sound

from formatters.openai.transcriptions import Heard, TranscriptionSegment, TranscriptionWord, transcript
from lmi_handlers.apis.openai.transcriptions import SpeechDialect, TranscriptionBody, TranslationBody
from lmi_handlers.core.errors import InvalidRequest, ModelNotFound, UnsupportedFeature
from lmi_handlers.web.speech import events

FILE = wav(sound(3).tobytes())
LONG = wav(sound(40, seed=4).tobytes())
CUE = r"00:00:\d\d{0}\d{{3}} --> 00:00:\d\d{0}\d{{3}}\n.*\n\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = save_whisper(tmp_path_factory.mktemp("speech") / "m")
    server = Server(directory, "option.served_model_name=whisper-1\n", environ={"OMP_NUM_THREADS": "1"})
    yield server.wait_ready()
    server.stop()


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
        yield client


def transcribe(client: Any, file: bytes = FILE, **options: Any) -> Any:
    return client.audio.transcriptions.create(file=("a.wav", file), model="whisper-1", **options)


def test_formats(client: Any) -> None:
    plain = transcribe(client)
    verbose = transcribe(client, response_format="verbose_json")
    assert plain.usage.seconds == 3
    assert (verbose.task, verbose.duration) == ("transcribe", 3.0)
    assert verbose.language in ("english", "german", "french")
    assert verbose.words is None
    assert verbose.segments[0].no_speech_prob < 1
    assert verbose.segments[-1].end <= 3
    assert plain.text == verbose.text == "".join(segment.text for segment in verbose.segments).strip()
    assert transcribe(client, response_format="text") == f"{plain.text}\n"
    srt, vtt = (transcribe(client, response_format=kind) for kind in ("srt", "vtt"))
    count = len(verbose.segments)
    assert re.fullmatch("".join(rf"{number}\n{CUE.format(',')}" for number in range(1, count + 1)), srt)
    assert re.fullmatch(rf"WEBVTT\n\n({CUE.format('[.]')}){{{count}}}", vtt)


def test_words(client: Any) -> None:
    options: dict[str, Any] = {
        "response_format": "verbose_json",
        "language": "de",
        "prompt": "quilter",
        "temperature": 0,
    }
    words = transcribe(client, timestamp_granularities=["word"], **options)
    both = transcribe(client, timestamp_granularities=["word", "segment"], **options)
    assert words.segments is None
    assert words.language == "german"
    assert words.words == both.words
    assert all(0 <= word.start <= word.end <= 3 for word in both.words)
    assert both.segments


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # the client's own
def test_translation(client: Any) -> None:
    options: dict[str, Any] = {"file": ("a.wav", FILE), "model": "whisper-1"}
    verbose = client.audio.translations.create(**options, response_format="verbose_json")
    assert verbose.to_dict()["task"] == "translate"
    assert client.audio.translations.create(**options).text == verbose.text
    assert client.audio.translations.create(**options).text != transcribe(client).text


def test_stream(client: Any) -> None:
    whole = transcribe(client, LONG).text
    *deltas, done = list(transcribe(client, LONG, stream=True))
    assert [event.type for event in deltas] == ["transcript.text.delta"] * 2
    assert done.type == "transcript.text.done"
    assert done.text == whole
    assert "".join(event.delta for event in deltas).strip() == whole


def test_the_invoke_route_hears_the_same(server: Server, client: Any) -> None:
    body = {"inputs": encoded(FILE), "parameters": {"return_timestamps": True}}
    answer = requests.post(f"{server.url}/invocations", json=body, timeout=60)
    assert answer.json()["text"].strip() == transcribe(client).text


@pytest.mark.parametrize(
    ("file", "options", "status", "param", "facts"),
    [
        (b"nonsense", {}, 400, "file", "file: not WAV"),
        (wav(b""), {"stream": True}, 400, "file", "file: no samples"),
        (FILE, {"language": "klingon"}, 400, "language", "klingon"),
        (FILE, {"model": "other"}, 404, None, "other"),
        (FILE, {"response_format": "docx"}, 400, "response_format", "docx"),
        (FILE, {"temperature": 7}, 400, "temperature", "<= 1.0"),
        (FILE, {"timestamp_granularities": ["word"]}, 400, "timestamp_granularities", "verbose_json"),
        (FILE, {"stream": True, "response_format": "srt"}, 400, "stream", "srt"),
        (FILE, {"include": ["logprobs"]}, 400, "include", "log probabilities"),
        (bytes(26 << 20), {}, 413, "file", "26214400"),
    ],
)
def test_errors(client: Any, file: bytes, options: dict[str, Any], status: int, param: str | None, facts: str) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        client.audio.transcriptions.create(**{"file": ("a.wav", file), "model": "whisper-1"} | options)
    assert caught.value.status_code == status
    assert (caught.value.body["param"], says(caught.value.body["message"], facts)) == (param, True)


def test_bodies_that_are_no_forms(server: Server) -> None:
    url = f"{server.url}/v1/audio/transcriptions"
    assert requests.post(url, json={"file": "x"}, timeout=60).status_code == 415
    damaged = {"Content-Type": "multipart/form-data; boundary=x"}
    for body in (
        b"",
        b"--x\r\n",
        b"--x--\r\n",
        b"--x\r\nContent-Disposition: form-data; name=file\r\n\r\n",
        os.urandom(99),
    ):
        answer = requests.post(url, data=body, headers=damaged, timeout=60)
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"
    form: dict[str, Any] = {"model": (None, "whisper-1"), "unknown": (None, "1"), "file": ("a", FILE)}
    answer = requests.post(url, files=form, timeout=60)
    assert (answer.status_code, answer.headers["x-lmi-ignored-parameters"]) == (200, "unknown")


def test_errors_of_the_router_are_openais(server: Server) -> None:
    for path, status in (("/v1/audio/transcriptions", 405), ("/v1/audio", 404)):
        answer = requests.get(server.url + path, timeout=60)
        assert (answer.status_code, answer.json()["error"]["type"]) == (status, "invalid_request_error")


def test_document(server: Server) -> None:
    document = requests.get(f"{server.url}/openapi.json", timeout=60).json()
    validate(document)
    operation = document["paths"]["/v1/audio/transcriptions"]["post"]
    assert "multipart/form-data" in operation["requestBody"]["content"]
    assert {"application/json", "text/plain", "text/event-stream"} <= operation["responses"]["200"]["content"].keys()


NAMES = [*TranscriptionBody.__struct_fields__, "include[]", "timestamp_granularities[]", "x"]
VALUES = [b"whisper-1", b"json", b"srt", b"word", b"segment", b"0.5", b"nan", b"true", b"auto", b""]


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES) | st.binary(max_size=9)), max_size=8))
def test_any_form_is_read_or_refused(parts: list[tuple[str, bytes]]) -> None:
    for kind in (TranscriptionBody, TranslationBody):
        try:
            body, sound, ignored = SpeechDialect(kind, ["whisper-1"]).read(parts)
        except (InvalidRequest, ModelNotFound):
            continue
        assert isinstance(body, kind)
        assert 0 <= body.temperature <= 1
        assert sound == dict(parts)["file"]
        assert not {*ignored} & {*kind.__struct_fields__}


def test_a_translation_cannot_stream() -> None:
    with pytest.raises(UnsupportedFeature):
        SpeechDialect(TranslationBody, []).read([("file", b"x"), ("stream", b"true")])


def test_an_event_does_not_wait_for_the_next_piece() -> None:
    whole = {"text": " a b", "language": "english", "duration": 40.0, "segments": [], "words": []}
    chunks = iter([b'{"text":" a"}\n', b'{"text":" b"}\n' + json.dumps(whole).encode() + b"\n"])
    told = events(chunks)
    assert json.loads(next(told).removeprefix(b"data: ")) == {"type": "transcript.text.delta", "delta": "a"}
    second = next(chunks)
    assert second.startswith(b'{"text":" b"}')


def test_subtitles() -> None:
    segment = TranscriptionSegment(0, 0, 59.999, 3723.5, " a\n\nb --> c", [1], 0.0, -1.0, 1.0, 0.1)
    heard = Heard(" a", "english", 3723.5, [segment], [TranscriptionWord("a", 0.0, 1.0)])
    assert transcript(heard, "srt", "transcribe") == b"1\n00:00:59,999 --> 01:02:03,500\na b -> c\n\n"
    assert transcript(heard, "vtt", "transcribe") == b"WEBVTT\n\n00:00:59.999 --> 01:02:03.500\na b -> c\n\n"
    assert transcript(heard, "text", "transcribe") == b"a\n"
    assert json.loads(transcript(heard, "json", "transcribe")) == {
        "text": "a",
        "usage": {"type": "duration", "seconds": 3724},
    }
