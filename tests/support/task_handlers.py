"""Handlers of tasks in the process of the test, and requests to them."""

from __future__ import annotations

import base64
import io
import json
import wave
from functools import partial
from pathlib import Path
from typing import Any

from tiny_tasks import save_task_model
from tiny_whisper import save_whisper

from lmi_handlers.config.custom_code import CustomCode
from lmi_handlers.config.options import ServingProperties
from lmi_handlers.custom_code.inputs import Input
from lmi_handlers.custom_code.outputs import Output
from lmi_handlers.tasks.handler import Outcome, TaskHandler
from lmi_handlers.tasks.media import AudioClassification, ImageClassification
from lmi_handlers.tasks.speech import SpeechRecognition

RATE = 16_000


class TaskLoader:
    """Loads small models below `directory`, each once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._loaded: dict[tuple[str, str], tuple[TaskHandler, Path]] = {}

    def __call__(self, name: str, task: str, **changes: Any) -> tuple[TaskHandler, Path]:
        """Return the handler for a model of class `name` and its checkpoint. `changes` are of its configuration."""
        if (name, task) not in self._loaded:
            save = save_whisper if name.startswith("Whisper") else partial(save_task_model, name)
            path = save(self._directory / f"{name}-{task}", **changes)
            options = ServingProperties(model_id=str(path), task=task)
            handler = TaskHandler(
                CustomCode(path="", function=task, directory=str(path), properties={}, options=options)
            )
            handler(Input({"device_id": "-1"}))
            self._loaded[name, task] = handler, path
        return self._loaded[name, task]

    def close(self) -> None:
        for handler, _ in self._loaded.values():
            match handler._task:
                case ImageClassification():
                    handler._task._decoder.close()
                case AudioClassification() | SpeechRecognition():
                    handler._task._reader.close()


def ask(handler: TaskHandler, *bodies: Any) -> list[Any]:
    """The answers to one batch of JSON bodies: JSON values, or errors."""
    return [value_of(answer) for answer in answers(handler, *map(as_json, bodies))]


def answers(handler: TaskHandler, *requests: Input) -> list[Outcome]:
    found = handler(Input.of_batch(list(requests)))
    assert found is not None
    return found


def as_json(body: Any) -> Input:
    return of_type("application/json", json.dumps(body).encode())


def of_type(content_type: str, data: bytes, **headers: str) -> Input:
    return Input({"Content-Type": content_type, **headers}, [("data", data)])


def value_of(answer: Outcome) -> Any:
    return json.loads(answer.data()) if isinstance(answer, Output) else answer


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def wav(frames: bytes, *, rate: int = RATE, width: int = 2, channels: int = 1) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setframerate(rate)
        sound.setsampwidth(width)
        sound.setnchannels(channels)
        sound.writeframes(frames)
    return file.getvalue()
