"""Sounds in chats on vLLM: answers match those of the library, and vLLM gets what its own chats would give it."""

from __future__ import annotations

import base64
import io
import os
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import requests
import tiny_vision
import torch
import transformers
from serving import Server

from lmi_handlers.model_files.cache_dir import default_cache_dir
from lmi_handlers.model_files.resolve import resolve_model

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.model,
    pytest.mark.needs("vllm"),
    pytest.mark.timeout(900),
]

RATE = 16_000
MAX_TOKENS = 12
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
PROPERTIES = (
    "option.rolling_batch=vllm\noption.dtype=fp32\noption.enforce_eager=true\noption.kv_cache_memory_bytes=256M\n"
    'option.max_model_len=1024\noption.max_audio_seconds=2\noption.limit_mm_per_prompt={"audio": 3}\n'
)
MARK = "<|audio_bos|><|AUDIO|><|audio_eos|>"


def tone(hertz: float, seconds: float = 0.5, rate: int = RATE) -> bytes:
    """Return a WAV file."""
    samples = np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate) * 20_000
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((1, 2, rate, 0, "NONE", "not compressed"))
        sound.writeframes(samples.astype("<i2").tobytes())
    return file.getvalue()


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def input_audio(data: bytes) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": "wav"}}


def audio_url(data: bytes) -> dict[str, Any]:
    return {"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{base64.b64encode(data).decode()}"}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache_dir = default_cache_dir(os.environ)
    source = resolve_model(None, model_dir=None, revision=None, cache_dir=cache_dir, report=lambda phase: None)
    path = tmp_path_factory.mktemp("hearing") / "qwen2_audio"
    tiny_vision.MODELS["qwen2_audio"](source, path)
    return path


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("sounds") / "m", f"{PROPERTIES}option.model_id={model}\n")
    yield running.wait_ready(timeout=300)
    running.stop()


class Reference:
    """The library's own `generate` and processor."""

    def __init__(self, path: Path) -> None:
        self.model: Any = transformers.Qwen2AudioForConditionalGeneration.from_pretrained(path, dtype=torch.float32)
        self.processor = transformers.AutoProcessor.from_pretrained(path)  # type: ignore[no-untyped-call]

    def __call__(self, prompt: str, *sounds: bytes) -> tuple[str, int]:
        """Return the greedily generated text and the number of prompt tokens."""
        samples = [np.frombuffer(sound[44:], "<i2").astype(np.float32) / 2**15 for sound in sounds]
        inputs = self.processor(
            text=[prompt], audio=samples, sampling_rate=RATE, return_tensors="pt", add_special_tokens=False
        )
        length = inputs["input_ids"].shape[1]
        ids = self.model.generate(**inputs, max_new_tokens=MAX_TOKENS, do_sample=False)[0, length:]
        return self.processor.tokenizer.decode(ids, skip_special_tokens=True), length


@pytest.fixture(scope="module")
def expect(model: Path) -> Reference:
    return Reference(model)


def ask(server: Server, *parts: dict[str, Any], **more: Any) -> requests.Response:
    body = {"messages": [{"role": "user", "content": list(parts)}], "temperature": 0, "max_tokens": MAX_TOKENS, **more}
    return server.invoke(body, path="/v1/chat/completions")


def answered(response: requests.Response) -> tuple[str, int]:
    assert response.status_code == 200, response.text
    answer = response.json()
    return answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens"]


def test_answers_match_the_library(server: Server, expect: Reference) -> None:
    low, high = tone(220), tone(1760, 0.8)
    one, other = (expect(CHAT.format(f"What is {MARK}?"), sound) for sound in (low, high))
    assert one != other, "the reference does not hear"
    assert answered(ask(server, text("What is "), input_audio(low), text("?"))) == one
    assert answered(ask(server, text("What is "), audio_url(high), text("?"))) == other
    both = expect(CHAT.format(f"{MARK} or {MARK}"), low, high)
    assert answered(ask(server, input_audio(low), text(" or "), input_audio(high))) == both


def test_openais_client(server: Server, expect: Reference) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0) as client:
        content: Any = [input_audio(tone(220)), text("!")]
        chunks = list(
            client.chat.completions.create(
                model="tgi",
                messages=[{"role": "user", "content": content}],
                temperature=0,
                max_tokens=MAX_TOKENS,
                stream=True,
            )
        )
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert said == expect(CHAT.format(f"{MARK}!"), tone(220))[0]


def test_vllms_own_chats_give_it_the_same(model: Path) -> None:
    """Its parser, its template and its processor's input, for the same body."""
    from vllm.config import ModelConfig
    from vllm.renderers.chat_utils import parse_chat_messages

    from backends.sounds import SoundReader

    content = [text("What is "), input_audio(tone(220)), text(" and "), audio_url(tone(440, 0.3))]
    messages: Any = [{"role": "user", "content": content}]
    parts, data, _ = parse_chat_messages(messages, ModelConfig(model=str(model)), "openai")
    assert [part["type"] for part in parts[0]["content"]] == ["text", "audio", "text", "audio"]
    assert data is not None
    reader = SoundReader(RATE)
    try:
        ours = reader.read([tone(220), tone(440, 0.3)])
    finally:
        reader.close()
    for (samples, rate), read in zip(data["audio"], ours, strict=True):
        assert rate == RATE
        # Without soundfile, vLLM 0.32 leaves the samples of a WAV file as integers.
        np.testing.assert_array_equal(samples / np.float32(2**15 if abs(samples).max() > 1 else 1), read)


def test_sounds_of_other_rates(server: Server, expect: Reference) -> None:
    _, length = expect(CHAT.format(f"{MARK}!"), tone(220))
    assert answered(ask(server, input_audio(tone(220, rate=8_000)), text("!")))[1] == length


def test_bad_sounds_fail_alone(server: Server) -> None:
    good = answered(ask(server, input_audio(tone(220)), text("!")))
    assert refused(ask(server, input_audio(b"no sound"))) == "messages[0].content[0].input_audio"
    assert refused(ask(server, input_audio(tone(220, 2.5)))) == "messages[0].content[0].input_audio"
    long = input_audio(tone(220, 1.5))
    assert refused(ask(server, long, long)) == "messages[0].content[1].input_audio"
    assert refused(ask(server, *[input_audio(tone(220, 0.1))] * 4)) == "messages[0].content[3].input_audio"
    url = {"type": "audio_url", "audio_url": {"url": "https://example.com/a.wav"}}
    assert refused(ask(server, url)) == "messages[0].content[0].audio_url"
    assert refused(ask(server, {"type": "input_audio", "input_audio": {}})) is not None
    assert refused(ask(server, text("<|AUDIO|>"))) == "messages"
    assert refused(ask(server, text("<|AUDIO|>"), input_audio(tone(220)))) == "messages"
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    assert refused(ask(server, image)) == "messages[0].content"
    assert answered(ask(server, input_audio(tone(220)), text("!"))) == good


def refused(response: requests.Response) -> str | None:
    """Return the field that the error names."""
    assert response.status_code == 400, response.text
    field: str | None = response.json()["error"]["param"]
    return field


def test_template_that_reads_only_text(model: Path, expect: Reference, tmp_path: Path) -> None:
    """It gets vLLM's marks of the sounds."""
    template = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\\n{% endfor %}"
    started = Server(tmp_path / "m", f"{PROPERTIES}option.model_id={model}\noption.chat_template={template}\n")
    try:
        server = started.wait_ready(timeout=300)
        sounds = [tone(220), tone(1760)]
        found = answered(ask(server, input_audio(sounds[0]), text("or "), input_audio(sounds[1]), text("?")))
    finally:
        started.stop()
    assert found == expect(f"user: Audio 1: {MARK}\nor Audio 2: {MARK}\n?\n", *sounds)
