"""What happens in a web worker between a parsed request and its answer."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import time
from pathlib import Path

import PIL.Image
import pytest
from capabilities import capabilities
from engine_thread import Engine
from facts import raises
from waiting import wait_until

from formatters.lmi.rolling import JsonFormatter
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.core.deadline import Cutoff, Deadline
from lmi_handlers.core.errors import EngineNotReady, InvalidRequest, TextDeadline
from lmi_handlers.core.request import ChatPrompt, GenerationRequest, ImageSource, Prompt
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.core.usage import Usage
from lmi_handlers.engine.messages import Loading, Ready
from lmi_handlers.engine.status import EngineState
from lmi_handlers.serving.explanation import ChosenDialect
from lmi_handlers.serving.parsed import LengthCheck, Parsed, check_length
from lmi_handlers.serving.served_model import ServedModel
from lmi_handlers.text.bundle import TOKENIZER_FILE, build_byte_bundle


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    build_byte_bundle(tmp_path)
    (tmp_path / "metrics").mkdir()
    return Engine(tmp_path / "engine.sock")


def start(engine: Engine, ready: Ready) -> ServedModel:
    model = ServedModel(ServingProperties(), [engine.path])
    engine.server.announce(ready)
    model.start()
    wait_until(lambda: model.state is EngineState.READY)
    return model


def submit(model: ServedModel, prompt: Prompt, check: LengthCheck, generated: tuple[int, ...] = ()) -> None:
    params = SamplingParams(max_tokens=4)
    request = GenerationRequest(request_id="r", prompts=(prompt,), sampling_params=params, generated=generated)
    parsed = Parsed(request, JsonFormatter, str, check)
    model.start_generation(parsed, Usage(started=time.monotonic()), Deadline(time.monotonic() + 60))


def test_tokenizer_is_loaded_while_the_engine_loads_and_once_while_it_stays_the_same(
    engine: Engine, tmp_path: Path
) -> None:
    model = ServedModel(ServingProperties(), [engine.path])
    for phase in ("loading weights", "checking the model"):
        engine.server.announce(Loading(phase, 0.0, str(tmp_path)))
    model.start()
    wait_until(lambda: model.phase == "checking the model")
    engine.server.announce(Loading("warming up", 0.0, str(tmp_path)))
    wait_until(lambda: model.phase == "warming up")  # so the announcement before has been handled
    (tmp_path / TOKENIZER_FILE).unlink()
    engine.server.announce(Ready(str(tmp_path), capabilities(vocab_size=257)))
    wait_until(lambda: model.state is EngineState.READY)
    first = model.loaded
    build_byte_bundle(tmp_path)
    engine.server.announce(Ready(str(tmp_path), capabilities(vocab_size=257, adapters=("a",))))
    wait_until(lambda: model.loaded is not first)
    assert model.loaded.tokenizer is first.tokenizer
    build_byte_bundle(tmp_path, chat_template="another")
    engine.server.announce(Ready(str(tmp_path), capabilities(vocab_size=257)))
    wait_until(lambda: model.loaded.bundle.chat_template == "another")
    assert model.loaded.tokenizer is not first.tokenizer


def test_request_that_was_checked_for_another_engine_is_rejected(engine: Engine, tmp_path: Path) -> None:
    """The engine may be restarted with other limits while images are fetched."""
    first, second = (Ready(str(tmp_path), capabilities(vocab_size=257, max_model_len=limit)) for limit in (100, 50))
    model = start(engine, first)

    def restart(request: GenerationRequest, position: int, tokens: int, limits: Capabilities) -> None:
        engine.server.announce(second)
        wait_until(lambda: model.loaded.capabilities == second.capabilities)

    with raises(EngineNotReady, "restarted prepared"):
        submit(model, Prompt("hi"), restart)


@pytest.mark.parametrize("content", ["é", (195, 169), (-1, 5)])
def test_token_that_the_model_does_not_have_is_rejected(
    engine: Engine, tmp_path: Path, content: str | tuple[int, ...]
) -> None:
    """A tokenizer may know more tokens than its model, which would then fail for all requests."""
    model = start(engine, Ready(str(tmp_path), capabilities(vocab_size=128)))
    with raises(InvalidRequest, "inputs: 0 127"):
        submit(model, Prompt(content), check_length)


@pytest.mark.parametrize(
    ("generated", "facts", "code"),
    [
        ((97, 300), "tokens", "invalid_continuation"),
        ((97, 256), "256", "continuation_finished"),
        ((97,) * 4, "4 tokens", "continuation_finished"),
        ((97,) * 3, "10", "continuation_finished"),
    ],
)
def test_continuation_is_checked_before_the_engine_gets_it(
    engine: Engine, tmp_path: Path, generated: tuple[int, ...], facts: str, code: str
) -> None:
    model = start(engine, Ready(str(tmp_path), capabilities(vocab_size=257, max_model_len=10, continues=True)))
    with raises(InvalidRequest, facts, code=code):
        submit(model, Prompt("abcdefg"), check_length, generated)


def picture(color: int) -> ImageSource:
    file = io.BytesIO()
    PIL.Image.new("L", (4, 3), color).save(file, "PNG")
    return ImageSource(f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}", "messages")


def test_answer_about_an_image_is_continued_with_that_image_only(tmp_path: Path) -> None:
    build_byte_bundle(tmp_path, chat_template="{% for part in messages[0].content %}{{ part.text or '~' }}{% endfor %}")
    (tmp_path / "metrics").mkdir()
    engine = Engine(tmp_path / "engine.sock", tokens_per_second=20)
    engine.ready = Ready(str(tmp_path), capabilities(vocab_size=257, takes_images=True, continues=True))
    model = ServedModel(ServingProperties(), [engine.path], continuation_key=b"k" * 32)
    engine.start()
    model.start()
    wait_until(lambda: model.state is EngineState.READY)

    def parsed(color: int, token: str | None, max_tokens: int) -> Parsed:
        content = [{"type": "image"}, {"type": "text", "text": "abc" * 20}]
        chat = ChatPrompt(messages=[{"role": "user", "content": content}], images=(picture(color),))
        request = GenerationRequest(
            request_id="r", prompts=(Prompt(chat),), sampling_params=SamplingParams(max_tokens=max_tokens)
        )
        return Parsed(request, JsonFormatter, str, check_length, continuation=token)

    def explain(color: int, token: str | None, max_tokens: int) -> None:
        now = time.monotonic()
        asked = parsed(color, token, max_tokens)
        model.explain(asked, None, ChosenDialect("lmi", None), Usage(started=now), Deadline(now + 60))

    def answer(color: int, seconds: float, token: str | None = None) -> tuple[str, Usage]:
        """Return the text of an answer that ends after so many seconds."""
        now = time.monotonic()
        usage, deadline = Usage(started=now), Deadline(now + 60, cutoff=Cutoff(now + seconds, "option"))
        generation = model.start_generation(parsed(color, token, 40), usage, deadline)
        return json.loads(b"".join(generation))["generated_text"], usage

    try:
        first, token = "", None
        while token is None:  # on a busy machine, the deadline may pass before there is any text, or too late
            with contextlib.suppress(TextDeadline):
                first, usage = answer(1, 1.0)
                token = usage.continuation
        with raises(InvalidRequest, "prompt", code="continuation_of_other_prompt"):
            answer(2, 50, token)
        for color in (1, 2):  # images are not loaded
            explain(color, token, 40)
        with raises(InvalidRequest, "sampling", code="continuation_of_other_sampling"):
            explain(1, token, 39)
        rest, usage = answer(1, 50, token)
        assert (first + rest, usage.continuation) == (("~" + "abc" * 20)[:40], None)
    finally:
        model.close()
        engine.stop()


def test_answers_of_other_weights_are_neither_joined_nor_continued(tmp_path: Path) -> None:
    """An adapter may be replaced under its name, and a model between two starts."""
    build_byte_bundle(tmp_path)
    (tmp_path / "metrics").mkdir()
    engine = Engine(tmp_path / "engine.sock", tokens_per_second=20)
    model = ServedModel(ServingProperties(), [engine.path], continuation_key=b"k" * 32)

    def serve(adapter: str, weights: str = "w") -> None:
        digests = {"adapter_digests": {"a": adapter}, "weights_digest": weights}
        engine.ready = Ready(str(tmp_path), capabilities(vocab_size=257, adapters=("a",), continues=True, **digests))
        engine.server.announce(engine.ready)
        wait_until(lambda: model.state is EngineState.READY and model.loaded.capabilities == engine.ready.capabilities)

    def answer(
        text: str,
        seconds: float,
        *,
        identity: bytes | None = None,
        token: str | None = None,
        check: LengthCheck = check_length,
    ) -> Usage:
        params = SamplingParams(max_tokens=40)
        request = GenerationRequest(
            request_id="r", prompts=(Prompt(text, "a"),), sampling_params=params, identity=identity
        )
        parsed = Parsed(request, JsonFormatter, str, check, continuation=token)
        usage, now = Usage(started=time.monotonic()), time.monotonic()
        list(model.start_generation(parsed, usage, Deadline(now + 60, cutoff=Cutoff(now + seconds, "option"))))
        return usage

    engine.start()
    model.start()
    try:
        serve("1")
        joined = [answer("abc", 50, identity=b"i").joined for _ in range(2)]
        for files in ("2", "1"):
            serve(files)
            joined.append(answer("abc", 50, identity=b"i").joined)
        assert joined == [False, True, False, True]
        # One whose adapter is replaced while it is prepared is for the successor.
        joined = [answer("abc", 50, identity=b"j", check=lambda *_: serve("2")).joined]
        for files in ("2", "1"):
            serve(files)
            joined.append(answer("abc", 50, identity=b"j").joined)
        assert joined == [False, True, False]
        token = None
        while token is None:
            with contextlib.suppress(TextDeadline):
                token = answer("abc" * 20, 1.0).continuation
        for adapter, weights, code in (("2", "w", "adapter"), ("1", "v", "model")):
            serve(adapter, weights)
            with raises(InvalidRequest, code, code=f"continuation_of_other_{code}"):
                answer("abc" * 20, 50, token=token)
        serve("1")
        assert answer("abc" * 20, 50, token=token).continued_tokens
    finally:
        model.close()
        engine.stop()
