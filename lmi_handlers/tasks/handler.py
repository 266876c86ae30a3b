"""The function that answers a task's requests: each is checked alone, then those with equal parameters are computed together."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Iterator

import msgspec

from lmi_handlers.config.custom_code import CustomCode
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.plugins import importing
from lmi_handlers.custom_code.encode_decode import encode
from lmi_handlers.custom_code.failures import MustBeReplaced
from lmi_handlers.custom_code.inputs import Input
from lmi_handlers.custom_code.outputs import Output
from lmi_handlers.model_files.cache_dir import default_cache_dir
from lmi_handlers.model_files.pickled import check_weights
from lmi_handlers.model_files.resolve import resolve_model
from lmi_handlers.tasks.body import Body, read_body
from lmi_handlers.tasks.loading import use_device
from lmi_handlers.tasks.task import Task
from lmi_handlers.workers.environment import withhold_credentials

_TEXT = "lmi_handlers.tasks.text:"
_LOCATIONS = {
    "text-classification": _TEXT + "TextClassification",
    "sentiment-analysis": _TEXT + "TextClassification",
    "token-classification": _TEXT + "TokenClassification",
    "ner": _TEXT + "TokenClassification",
    "zero-shot-classification": _TEXT + "ZeroShotClassification",
    "fill-mask": _TEXT + "FillMask",
    "question-answering": "lmi_handlers.tasks.question_answering:QuestionAnswering",
    "summarization": "lmi_handlers.tasks.text_to_text:TextToText",
    "translation": "lmi_handlers.tasks.text_to_text:TextToText",
    "text2text-generation": "lmi_handlers.tasks.text_to_text:TextToText",
    "feature-extraction": "lmi_handlers.tasks.features:FeatureExtraction",
    "sentence-similarity": "lmi_handlers.tasks.features:SentenceSimilarity",
    "image-classification": "lmi_handlers.tasks.media:ImageClassification",
    "audio-classification": "lmi_handlers.tasks.media:AudioClassification",
    "automatic-speech-recognition": "lmi_handlers.tasks.speech:SpeechRecognition",
}

_POISONED = "CUDA error"
"""After such an error, no further computation in the same process succeeds."""

_CSV = "text/csv"
_LINES = "application/jsonlines"

logger = logging.getLogger(__name__)


Outcome = Output | Exception


def load(code: CustomCode) -> Callable[[Input], list[Outcome] | None]:
    """Return the function. Its first call loads the model."""
    return TaskHandler(code)


class TaskHandler:
    """Answers batches of requests. A request that fails fails alone."""

    def __init__(self, code: CustomCode) -> None:
        self._code = code
        self._task: Task | None = None

    def __call__(self, inputs: Input) -> list[Outcome] | None:
        if self._task is None:
            self._task = _load_task(self._code, int(inputs.get_property("device_id") or -1))
            return None
        requests = inputs.get_batches()
        self._task.is_unwanted = inputs.is_aborted
        answers: dict[int, Outcome] = {}
        groups: dict[bytes, dict[int, Body]] = {}
        for place, request in enumerate(requests):
            body = _read(request, self._task)
            if isinstance(body, Body):
                groups.setdefault(msgspec.json.encode(body.parameters), {})[place] = body
            else:
                answers[place] = body
        for group in groups.values():
            answers |= _answer(self._task, requests, group)
        return [answers[place] for place in range(len(requests))]


def _answer(task: Task, requests: list[Input], group: dict[int, Body]) -> dict[int, Outcome]:
    """Return the answers to requests with equal parameters. If they fail together, each is tried alone."""
    items = [item for body in group.values() for item in body.items]
    parameters = next(iter(group.values())).parameters
    try:
        streams = {place: task.stream(body.items, parameters) for place, body in group.items()}
        if len(requests) == 1 and (stream := streams[0]) is not None:
            return {0: Output().add_property("Content-Type", _LINES).add_stream_content(stream, _line)}
        if None not in streams.values():  # a batch cannot stream
            return {place: _joined(stream) for place, stream in streams.items() if stream is not None}
        results = iter(task.run(items, parameters))
        return {
            place: _output(task, requests[place], body, [next(results) for _ in body.items])
            for place, body in group.items()
        }
    except Exception as error:
        if _POISONED in str(error):
            raise MustBeReplaced(f"this process must be replaced: {error}") from error
        if len(group) == 1:
            return dict.fromkeys(group, error)
        logger.warning("a batch failed; its requests are tried one by one", extra={"cause": str(error)})
    alone = (_answer(task, requests, {place: body}) for place, body in group.items())
    return {place: answer for answers in alone for place, answer in answers.items()}


def _joined(stream: Iterator[object]) -> Output:
    return Output().add(b"".join(map(_line, stream))).add_property("Content-Type", _LINES)


def _line(item: object) -> bytes:
    return msgspec.json.encode(item) + b"\n"


def _read(request: Input, task: Task) -> Body | Exception:
    try:
        return read_body(request, task)
    except Exception as error:  # noqa: BLE001  the others in its batch must not notice
        return error


def _output(task: Task, request: Input, body: Body, results: list[object]) -> Output:
    is_csv = _CSV in (request.get_property("accept") or "")
    output = Output()
    answer = results[0] if body.single and task.unwraps else results
    if task.compact and not is_csv:
        return output.add(msgspec.json.encode(answer)).add_property("Content-Type", "application/json")
    try:
        encode(output, answer, _CSV if is_csv else None)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if not is_csv:
            raise
        raise InvalidRequest(f"this answer cannot be written as {_CSV}", field="Accept") from error
    return output


def _load_task(code: CustomCode, device: int) -> Task:
    properties = code.options
    assert properties is not None  # noqa: S101  `preflight.configuration` sets them for a task
    name = "translation" if code.function.startswith("translation_") else code.function
    path = resolve_model(
        properties.model_id,
        model_dir=properties.model_folder,
        revision=properties.revision,
        cache_dir=default_cache_dir(os.environ),
        report=logger.info,
        allow_pickle=properties.allow_pickle,
    )
    check_weights(path, properties)
    if properties.trust_remote_code:
        withhold_credentials()
    module, _, attribute = _LOCATIONS[name].partition(":")
    with importing():
        kind: type[Task] = getattr(importlib.import_module(module), attribute)
    use_device(device)
    return kind.load(code.function, path, properties)
