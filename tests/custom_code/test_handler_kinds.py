"""The kinds of handlers that are published run, or fail with one sentence: each in a process like the pool's.

Others are in test_published_handlers.py, test_hugging_face_handlers.py, test_sagemaker_scripts.py and
test_handler_adapters.py.
"""

from __future__ import annotations

import io
import json
import wave
from pathlib import Path

import pytest
from handler_kinds import KINDS, SIBLINGS, SOUND, Kind

from lmi_handlers.core.errors import LMIError
from lmi_handlers.custom_code.messages import BodyChunk, End, Head, failure_of
from lmi_handlers.custom_code.once import call_once, load_once
from lmi_handlers.custom_code.runner import CodeError
from lmi_handlers.preflight.checks import mistakes
from lmi_handlers.preflight.configuration import Configuration, read_configuration
from lmi_handlers.web.custom_code import invoke_of


def configured(directory: Path, kind: Kind) -> Configuration:
    """Write the files of a handler, and read its configuration."""
    for name, text in {"serving.properties": kind.properties, **SIBLINGS, kind.file: kind.code}.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    environ = {"LMI_MODEL_DIR": str(directory)}
    configuration = read_configuration(environ)
    assert mistakes(configuration, environ) == ()
    return configuration


def answer(directory: Path, kind: Kind) -> tuple[int, bytes]:
    """Status and content of the answer to the request."""
    configuration = configured(directory, kind)
    assert configuration.custom_code is not None
    status, content = 0, b""
    failure: LMIError | None = None

    def deliver(message: Head | BodyChunk | End) -> None:
        nonlocal status, content, failure
        match message:
            case Head():
                status = message.code
            case BodyChunk():
                content += message.data
            case End():
                failure = failure_of(message)

    headers = {"Content-Type": kind.content_type, **kind.headers}
    invoke = invoke_of("request", headers.items(), kind.query.items(), kind.body)
    call_once(configuration.custom_code, configuration.properties, invoke, deliver)
    assert failure is None
    return status, content


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if not kind.refusal])
def test_it_runs(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    status, content = answer(tmp_path, kind)
    assert (status, content if isinstance(kind.answer, bytes) else json.loads(content)) == (kind.status, kind.answer)


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.refusal])
def test_it_says_why_it_cannot_run(name: str, tmp_path: Path) -> None:
    configuration = configured(tmp_path, KINDS[name])
    assert configuration.custom_code is not None
    with pytest.raises(CodeError) as refused:
        load_once(configuration.custom_code, configuration.properties)
    assert KINDS[name].refusal in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_sound(tmp_path: Path) -> None:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(bytes(8000))
    status, content = answer(tmp_path, Kind(SOUND, body=file.getvalue(), content_type="audio/wav"))
    assert (status, json.loads(content)) == (200, {"text": "0.5 s of audio/wav"})
