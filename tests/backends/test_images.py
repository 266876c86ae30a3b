"""Images in chats: on every backend that supports them, answers match those of the library itself."""

from __future__ import annotations

import base64
import functools
import io
import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import openai
import PIL.Image
import pytest
import requests
import tiny_vision
import torch
import transformers
from picture_server import PictureServer
from serving import Server
from serving_properties import serving_properties

from backends.base import Backend, ModelFiles
from backends.media_preparer import MediaPreparer
from backends.transformers.backend import TransformersBackend
from backends.transformers.rolling import RollingRunner
from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.core.request import EncodedImage, EncodedPrompt, MediaPrompt, TokenRequest
from lmi_handlers.core.sampling_params import SamplingParams, StructuredOutputs
from lmi_handlers.model_files.cache_dir import default_cache_dir
from lmi_handlers.model_files.resolve import resolve_model
from lmi_handlers.text.bundle import build_text_bundle

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.model, pytest.mark.timeout(900)]

MAX_TOKENS = 16
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


def picture(seed: int, size: tuple[int, int] = (80, 60)) -> PIL.Image.Image:
    pixels = torch.randint(0, 256, (size[1], size[0], 3), generator=torch.Generator().manual_seed(seed))
    return PIL.Image.fromarray(pixels.to(torch.uint8).numpy())


TOO_LONG = re.compile(r"from 1 to 255 tokens|\b256\b")
"""Our limit for a prompt, or vLLM's for a prompt and its answer."""

NEW = map(picture, itertools.count(100))
"""Makes images that no cache has."""


PICTURES = [picture(seed) for seed in range(3)]


def url(image: PIL.Image.Image) -> str:
    data = io.BytesIO()
    image.save(data, "PNG")
    return f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def image_part(address: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": address}}


def encoded(image: PIL.Image.Image) -> EncodedImage:
    data = io.BytesIO()
    image.save(data, "PNG")
    return EncodedImage(data.getvalue(), image.width * image.height, "here")


@pytest.fixture(scope="session")
def source() -> Path:
    cache_dir = default_cache_dir(os.environ)
    return resolve_model(None, model_dir=None, revision=None, cache_dir=cache_dir, report=lambda phase: None)


@pytest.fixture(scope="session")
def models(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Model folders by name."""
    made: dict[str, Path] = {}

    def path(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("vision") / name
            tiny_vision.MODELS[name](source, made[name])
        return made[name]

    return path


class Reference:
    """The library's own `generate` and processor."""

    def __init__(self, model: Any, processor: Any) -> None:
        self.model = model
        self.processor = processor

    def __call__(
        self, text: str, images: Sequence[PIL.Image.Image], max_tokens: int = MAX_TOKENS
    ) -> tuple[list[int], int]:
        """Return the greedily generated ids and the number of prompt tokens."""
        if images:
            inputs = self.processor(text=[text], images=[list(images)], return_tensors="pt", add_special_tokens=False)
        else:
            inputs = self.processor.tokenizer([text], return_tensors="pt", add_special_tokens=False)
        length = inputs["input_ids"].shape[1]
        ids = self.model.generate(**inputs, max_new_tokens=max_tokens, do_sample=False)[0].tolist()
        return ids[length:], length


@functools.cache
def reference(path: Path) -> Reference:
    model = transformers.AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32)
    return Reference(model, transformers.AutoProcessor.from_pretrained(path))  # type: ignore[no-untyped-call]


# Backends

NUMBERS = itertools.count()


def request(tokenizer: Any, text: str, images: Sequence[PIL.Image.Image], **params: Any) -> TokenRequest:
    return TokenRequest(
        request_id=f"r{next(NUMBERS)}",
        prompt=EncodedPrompt(
            tokenizer(text, add_special_tokens=False)["input_ids"],
            media_prompt=MediaPrompt(text, [encoded(image) for image in images]) if images else None,
        ),
        sampling_params=SamplingParams(**{"temperature": 0.0, "max_tokens": MAX_TOKENS, **params}),
    )


def run(backend: Backend, *wanted: TokenRequest) -> list[list[TokenOutput]]:
    for item in wanted:
        backend.add_request(item)
    outputs: dict[str, list[TokenOutput]] = {item.request_id: [] for item in wanted}
    running = set(outputs)
    while running:
        for output in backend.step():
            outputs[output.request_id].append(output)
            if output.finish_reason is not None:
                running.discard(output.request_id)
    return list(outputs.values())


def ids(outputs: list[TokenOutput]) -> list[int]:
    return [token_id for output in outputs for token_id in output.token_ids]


ENGINES: dict[str, dict[str, Any]] = {
    "transformers": {},
    "vllm": {"enforce_eager": True, "extra": {"kv_cache_memory_bytes": "256M"}},
}


class Loaded:
    def __init__(self, name: str, path: Path, tmp_path: Path, **more: Any) -> None:
        from backends import load_backend_class

        bundle = build_text_bundle(path, tmp_path)
        files = ModelFiles(path=path, eos_token_ids=bundle.eos_token_ids, vocab_size=bundle.vocab_size)
        options = serving_properties(dtype="fp32", max_model_len=256, **ENGINES[name], **more)
        self.backend = load_backend_class(name).load(files, options, lambda phase: None)
        self.reference = reference(path)
        self.tokenizer = self.reference.processor.tokenizer


VLLM = pytest.param("vllm", marks=pytest.mark.needs("vllm"))


@pytest.fixture(scope="module", params=["transformers", VLLM])
def loaded(
    request: pytest.FixtureRequest,
    models: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
    without_flask: None,
) -> Iterator[Loaded]:
    made = Loaded(request.param, models("idefics3"), tmp_path_factory.mktemp("bundle"))
    yield made
    made.backend.close()


CASES = [
    (CHAT.format("What is <image>?"), PICTURES[:1]),
    (CHAT.format("<image> or <image>"), PICTURES[1:3]),
    (CHAT.format("Just words."), []),
    (CHAT.format("<image>"), [picture(7, (11, 90))]),
    (CHAT.format("And a somewhat longer question, with its image behind: <image>"), PICTURES[2:]),
]


def test_answers_match_the_library(loaded: Loaded) -> None:
    expected = [loaded.reference(text, images) for text, images in CASES]
    assert len({tuple(tokens) for tokens, _ in expected}) == len(CASES), "the reference does not look at its images"
    one_by_one = [run(loaded.backend, request(loaded.tokenizer, *case))[0] for case in CASES]
    together = run(loaded.backend, *(request(loaded.tokenizer, *case) for case in CASES))
    for outputs, company, (tokens, length), (_, images) in zip(one_by_one, together, expected, CASES, strict=True):
        assert ids(outputs) == ids(company) == tokens
        assert outputs[0].num_prompt_tokens == (length if images else None)


def test_samples_of_one_prompt(loaded: Loaded) -> None:
    text, images = CASES[0]
    first = request(loaded.tokenizer, text, images)
    again = msgspec.structs.replace(first, request_id="again")
    both = run(loaded.backend, first, again)
    assert ids(both[0]) == ids(both[1]) == loaded.reference(text, images)[0]


def test_cut_answers_about_images_continue(loaded: Loaded) -> None:
    expected = [loaded.reference(text, images) for text, images in CASES]
    continued = [
        msgspec.structs.replace(request(loaded.tokenizer, *case), generated=tuple(tokens[:5]))
        for case, (tokens, _) in zip(CASES, expected, strict=True)
    ]
    for outputs, (tokens, length), (_, images) in zip(run(loaded.backend, *continued), expected, CASES, strict=True):
        assert ids(outputs) == tokens[5:]
        assert outputs[0].num_prompt_tokens == (length if images else None)


def test_grammar_with_an_image(loaded: Loaded) -> None:
    text, images = CASES[0]
    wanted = request(loaded.tokenizer, text, images, structured_outputs=StructuredOutputs(regex="(yes|no)"))
    (outputs,) = run(loaded.backend, wanted)
    tokens = [token for token in ids(outputs) if token not in (2,)]
    assert loaded.tokenizer.decode(tokens) in ("yes", "no")


@pytest.mark.parametrize(
    ("text", "images"),
    [
        (CHAT.format("no mark"), PICTURES[:1]),
        (CHAT.format("<image>"), PICTURES[:2]),
    ],
)
def test_mismatched_text_and_images_fail_alone(loaded: Loaded, text: str, images: list[PIL.Image.Image]) -> None:
    wrong, right = run(loaded.backend, request(loaded.tokenizer, text, images), request(loaded.tokenizer, *CASES[0]))
    assert wrong[-1].finish_reason is FinishReason.ERROR
    assert wrong[-1].invalid_request
    assert ids(right) == loaded.reference(*CASES[0])[0]


def test_prompt_that_is_too_long_with_its_images(loaded: Loaded) -> None:
    text, new = CHAT.format("<image>" * 12), next(NEW)
    wanted = request(loaded.tokenizer, text, [new] * 12)
    assert len(wanted.prompt.token_ids) < 256
    (outputs,) = run(loaded.backend, wanted)
    assert outputs[-1].invalid_request
    assert TOO_LONG.search(outputs[-1].error or "")
    text = CHAT.format("<image>")
    assert ids(run(loaded.backend, request(loaded.tokenizer, text, [new]))[0]) == loaded.reference(text, [new])[0]


def test_abort_while_images_are_prepared(loaded: Loaded) -> None:
    text, new = CHAT.format("<image>"), next(NEW)
    wanted = [request(loaded.tokenizer, text, [new]) for _ in range(4)]
    for item in wanted:
        loaded.backend.add_request(item)
    for item in wanted:
        loaded.backend.abort(item.request_id)
    assert ids(run(loaded.backend, request(loaded.tokenizer, text, [new]))[0]) == loaded.reference(text, [new])[0]
    assert loaded.backend.num_preparing == 0


def test_broken_file_fails_alone(loaded: Loaded) -> None:
    text, images = CASES[0]
    broken = request(loaded.tokenizer, text, images)
    file = encoded(images[0])
    assert broken.prompt.media_prompt is not None
    broken.prompt.media_prompt.images[0] = EncodedImage(file.data[:-100], file.pixels, "there")
    wrong, right = run(loaded.backend, broken, request(loaded.tokenizer, text, images))
    assert (wrong[-1].invalid_request, wrong[-1].invalid_field) == (True, "there")
    assert ids(right) == loaded.reference(text, images)[0]


def test_text_only_model_batches_texts(models: Callable[[str], Path], tmp_path: Path) -> None:
    made = Loaded("transformers", models("idefics3"), tmp_path, limit_mm_per_prompt='{"image": 0}')
    assert isinstance(made.backend, TransformersBackend)
    assert isinstance(made.backend._runner, RollingRunner)
    assert not made.backend.capabilities.takes_images
    text = CHAT.format("Just words.")
    assert ids(run(made.backend, request(made.tokenizer, text, []))[0]) == made.reference(text, [])[0]
    made.backend.close()


def test_model_whose_image_token_is_an_ordinary_word(models: Callable[[str], Path], tmp_path: Path) -> None:
    made = Loaded("transformers", models("llava"), tmp_path)
    text, images = "USER: What is <image>\n?\nASSISTANT:", PICTURES[:1]
    assert ids(run(made.backend, request(made.tokenizer, text, images))[0]) == made.reference(text, images)[0]
    made.backend.close()


@pytest.fixture(scope="module")
def processor(source: Path) -> tiny_vision.Qwen2VLImages:
    return tiny_vision.Qwen2VLImages(source)


def test_positions_in_three_dimensions(processor: tiny_vision.Qwen2VLImages) -> None:
    model = tiny_vision.qwen2_vl(processor)
    mark = "<|vision_start|><|image_pad|><|vision_end|>"
    cases = [(text.replace("<image>", mark), images) for text, images in CASES]
    expect = Reference(model, processor)
    expected = [expect(*case)[0] for case in cases]
    backend = TransformersBackend(model, processor=processor)
    together = run(backend, *(request(processor.tokenizer, *case) for case in cases))
    backend.close()
    assert [ids(outputs) for outputs in together] == expected


def test_interleaved_samples_share_decoded_images() -> None:
    """Each prompt's images are decoded once, unless too many other prompts come in between."""
    processed: list[str] = []
    preparer = MediaPreparer(lambda wanted, _: processed.append(wanted.request_id))
    prompts = [MediaPrompt("<image>", [encoded(picture(seed, (8, 8)))]) for seed in range(9)]

    def prepare(prompt: MediaPrompt, sample: int) -> None:
        name = f"{prompts.index(prompt)}-{sample}"
        future = preparer.submit(
            TokenRequest(
                request_id=name, prompt=EncodedPrompt([1], media_prompt=prompt), sampling_params=SamplingParams()
            )
        )
        assert future is not None
        future.result(timeout=60)

    try:
        for sample in range(3):
            for prompt in prompts[:2]:
                prepare(prompt, sample)
        assert processed == ["0-0", "1-0"]
        for prompt in (*prompts, prompts[0]):
            prepare(prompt, 3)
        assert processed[-1] == "0-3"
    finally:
        preparer.close()


class Broken(tiny_vision.Qwen2VLImages):
    """A processor that is out of memory."""

    def __init__(self, whole: tiny_vision.Qwen2VLImages) -> None:
        self.tokenizer, self.image_processor = whole.tokenizer, whole.image_processor

    def __call__(self, **_options: Any) -> Any:
        raise torch.OutOfMemoryError("no more")


def test_image_errors_affect_one_prompt_only(processor: tiny_vision.Qwen2VLImages) -> None:
    model = tiny_vision.qwen2_vl(processor)
    mark = "<|vision_start|><|image_pad|><|vision_end|>"
    good: tuple[str, list[PIL.Image.Image]] = (CHAT.format("Just words."), [])
    expected = Reference(model, processor)(*good)[0]
    video = request(processor.tokenizer, CHAT.format(f"{mark} <|video_pad|>"), PICTURES[:1])
    backend = TransformersBackend(model, processor=processor)
    wrong, right = run(backend, video, request(processor.tokenizer, *good))
    backend.close()
    assert wrong[-1].finish_reason is FinishReason.ERROR
    assert ids(right) == expected
    backend = TransformersBackend(model, processor=Broken(processor))
    wrong, right = run(
        backend, request(processor.tokenizer, CHAT.format(mark), PICTURES[:1]), request(processor.tokenizer, *good)
    )
    backend.close()
    assert (wrong[-1].finish_reason, wrong[-1].invalid_request) == (FinishReason.ERROR, False)
    assert ids(right) == expected


# Over HTTP


@pytest.fixture(scope="module")
def server(
    models: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory, pictures: PictureServer
) -> Iterator[Server]:
    properties = (
        f"option.rolling_batch=scheduler\noption.model_id={models('idefics3')}\noption.dtype=fp32\n"
        f"option.max_model_len=256\noption.allowed_media_domains=localhost:{pictures.server_port}\n"
        "option.allowed_media_networks=127.0.0.0/8,::1/128\noption.max_image_pixels=100000\n"
    )
    environ = {"SSL_CERT_FILE": str(pictures.authority)}
    running = Server(tmp_path_factory.mktemp("images") / "m", properties, environ=environ)
    yield running.wait_ready(timeout=300)
    running.stop()


@pytest.fixture(scope="module")
def expect(models: Callable[[str], Path]) -> Reference:
    return reference(models("idefics3"))


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0) as client:
        yield client


def ask(server: Server, *parts: dict[str, Any], **more: Any) -> requests.Response:
    body = {"messages": [{"role": "user", "content": list(parts)}], "temperature": 0, "max_tokens": MAX_TOKENS, **more}
    return server.invoke(body, path="/v1/chat/completions")


def test_chat_with_images(client: openai.OpenAI, expect: Reference) -> None:
    tokens, length = expect(CHAT.format("What is <image>?"), PICTURES[:1])
    text = expect.processor.tokenizer.decode(tokens, skip_special_tokens=True)
    content: Any = [text_part("What is "), image_part(url(PICTURES[0])), text_part("?")]
    messages: Any = [{"role": "user", "content": content}]
    answer = client.chat.completions.create(model="tgi", messages=messages, temperature=0, max_tokens=MAX_TOKENS, n=2)
    assert [choice.message.content for choice in answer.choices] == [text, text]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == length
    stream = client.chat.completions.create(
        model="tgi",
        messages=messages,
        temperature=0,
        max_tokens=MAX_TOKENS,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == length


def test_name_of_a_model_in_a_folder(server: Server, client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == server.name
    assert model.root == server.name, "no path of the machine"
    assert client.models.retrieve(model.id) == model


def test_images_in_the_history(server: Server, expect: Reference) -> None:
    text = "<|im_start|>user\n<image><|im_end|>\n<|im_start|>assistant\nA red one.<|im_end|>\n" + CHAT.format(
        "And <image>"
    )
    tokens, _ = expect(text, PICTURES[1:])
    messages = [
        {"role": "user", "content": [image_part(url(PICTURES[1]))]},
        {"role": "assistant", "content": "A red one."},
        {"role": "user", "content": [text_part("And "), image_part(url(PICTURES[2]))]},
    ]
    answer = server.invoke(
        {"messages": messages, "temperature": 0, "max_tokens": MAX_TOKENS}, path="/invocations"
    ).json()
    expected = expect.processor.tokenizer.decode(tokens, skip_special_tokens=True)
    # A random answer may end in the middle of a character, which ours leaves out.
    assert answer["choices"][0]["message"]["content"] == expected.removesuffix("\ufffd")


def test_template_for_content_parts_accepts_text(server: Server, expect: Reference) -> None:
    tokens, _ = expect(CHAT.format("Just words."), [])
    answer = ask(server, text_part("Just "), text_part("words.")).json()
    expected = expect.processor.tokenizer.decode(tokens, skip_special_tokens=True)
    # A random answer may end in the middle of a character, which ours leaves out.
    assert answer["choices"][0]["message"]["content"] == expected.removesuffix("\ufffd")


def test_image_is_fetched_from_an_allowed_host(server: Server, pictures: PictureServer) -> None:
    there = f"https://localhost:{pictures.server_port}/red.png"
    fetched = ask(server, image_part(there))
    assert fetched.status_code == 200, fetched.text
    same = ask(server, image_part(url(PIL.Image.new("RGB", (4, 3), (200, 16, 8)))))
    assert fetched.json()["choices"] == same.json()["choices"]


@pytest.mark.parametrize(
    ("address", "cause"),
    [
        ("https://169.254.169.254/latest/meta-data/", "are not allowed"),
        ("https://[::ffff:169.254.169.254]/", "plain https"),
        ("http://localhost/red.png", "plain https"),
        ("https://localhost/red.png", "are not allowed"),
        ("https://2852039166/", "are not allowed"),
        ("https://ok@localhost/", "plain https"),
        ("file:///etc/passwd", "plain https"),
        ("https://localhost:{port}/redirect", "redirects are not followed"),
        ("https://localhost:{port}\\@169.254.169.254/", "plain https"),
        ("data:text/html;base64,PGI+", "not a readable image"),
        ("data:image/png,abc", "base64"),
    ],
)
def test_rejected_addresses(
    server: Server,
    pictures: PictureServer,
    address: str,
    cause: str,
) -> None:
    answer = ask(server, text_part("What is this? "), image_part(address.replace("{port}", str(pictures.server_port))))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert cause in error["message"]
    assert error["param"] == "messages[0].content[1].image_url"
    assert "127.0.0.1" not in error["message"]


def test_too_large_or_too_many_images(server: Server) -> None:
    large = ask(server, image_part(url(picture(1, (400, 300)))))
    assert (large.status_code, "400 x 300 pixels" in large.text) == (400, True)
    many = ask(server, *[image_part(url(PICTURES[0]))] * 17)
    assert (many.status_code, "limit_mm_per_prompt" in many.text) == (400, True)
    long = ask(server, *[image_part(url(PICTURES[0]))] * 12)
    assert long.status_code == 400
    assert TOO_LONG.search(long.text)


def test_bad_image_fails_only_its_request(server: Server) -> None:
    good = ask(server, image_part(url(PICTURES[0]))).json()["choices"]
    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(
                lambda number: ask(
                    server, image_part(url(PICTURES[0]) if number % 2 else "data:image/png;base64,AAAA")
                ),
                range(12),
            )
        )
    assert [answer.status_code for answer in answers] == [400, 200] * 6
    assert all(answer.json()["choices"] == good for answer in answers[1::2])


def test_image_token_in_the_text_is_not_an_image(server: Server) -> None:
    for parts in ([text_part("<image>")], [text_part("<image>"), image_part(url(PICTURES[0]))]):
        answer = ask(server, *parts)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages")
    answer = server.invoke({"inputs": "An <image>"})
    assert "which marks an image" in answer.json()["error"]


@pytest.mark.long
def test_template_for_text(
    models: Callable[[str], Path], start_server: Callable[..., Server], expect: Reference
) -> None:
    path = models("llava")
    server = start_server(f"option.rolling_batch=scheduler\noption.model_id={path}\noption.dtype=fp32\n")
    tokens, _ = reference(path)("USER: What is <image>\n?\nASSISTANT:", PICTURES[:1])
    answer = ask(server, text_part("What is "), image_part(url(PICTURES[0])), text_part("?")).json()
    expected = expect.processor.tokenizer.decode(tokens, skip_special_tokens=True)
    # A random answer may end in the middle of a character, which ours leaves out.
    assert answer["choices"][0]["message"]["content"] == expected.removesuffix("\ufffd")
