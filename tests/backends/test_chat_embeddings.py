"""Embeddings beside chats, from one model: they equal the library's, and answers stay as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
import requests
import torch
import transformers
from facts import raises, says
from openapi_documents import document
from serving import Server
from tiny_models import EOS, VOCAB_SIZE, make_model

from backends.transformers.backend import TransformersBackend
from lmi_handlers.core.capabilities import check_task
from lmi_handlers.core.errors import UnsupportedFeature
from lmi_handlers.core.outputs import TokenOutput
from lmi_handlers.core.pooling_params import PoolingParams
from lmi_handlers.core.request import EncodedPrompt, TokenRequest
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.preflight.checks import mistakes
from lmi_handlers.preflight.configuration import read_configuration

PROMPTS = [[5, 9, 2, 7], [8], [3, 3, 4, 10, 6, 1, 9]]


def request(name: str, ids: list[int], params: PoolingParams | None = None) -> TokenRequest:
    return TokenRequest(
        request_id=name,
        prompt=EncodedPrompt([token % VOCAB_SIZE for token in ids]),
        sampling_params=SamplingParams(temperature=0, max_tokens=8, ignore_eos=True),
        pooling_params=params,
    )


def run(backend: TransformersBackend, *requests: TokenRequest) -> dict[str, list[TokenOutput]]:
    found: dict[str, list[TokenOutput]] = {each.request_id: [] for each in requests}
    for each in requests:
        backend.add_request(each)
    while not all(outputs and outputs[-1].finish_reason for outputs in found.values()):
        for output in backend.step():
            found[output.request_id].append(output)
    return found


def generated(outputs: list[TokenOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_vectors_beside_answers(kind: str, pooling: Any) -> None:
    """Answers are generated in the same steps. They equal those without the option."""
    model = make_model(kind)
    expected = []
    for ids in PROMPTS:
        with torch.inference_mode():
            hidden = model.base_model(torch.tensor([[token % VOCAB_SIZE for token in ids]])).last_hidden_state[0]
        expected.append(hidden[-1] if pooling == "last" else hidden.mean(dim=0))
    plain = TransformersBackend(make_model(kind), eos_token_ids=(EOS,))
    chats = [request(f"chat {number}", ids) for number, ids in enumerate(PROMPTS)]
    answers = run(plain, *chats)
    plain.close()
    backend = TransformersBackend(model, eos_token_ids=(EOS,), chat_embeddings=pooling)
    try:
        texts = [request(f"text {n}", ids, PoolingParams(normalize=False)) for n, ids in enumerate(PROMPTS)]
        backend.add_request(request("gone", [1, 2], PoolingParams()))
        backend.abort("gone")
        found = run(backend, chats[0], *texts, *chats[1:])
    finally:
        backend.close()
    for number, vector in enumerate(expected):
        [output] = found[f"text {number}"]
        assert output.embedding is not None
        torch.testing.assert_close(
            torch.frombuffer(bytearray(output.embedding), dtype=torch.float32), vector, rtol=1e-4, atol=1e-4
        )
        assert texts[number].meter.engine_time > 0
    for chat in chats:
        assert generated(found[chat.request_id]) == generated(answers[chat.request_id])
    capabilities = backend.capabilities
    assert (capabilities.embedding_size, capabilities.generates) == (len(expected[0]), True)
    check_task(None, capabilities)
    check_task(PoolingParams(), capabilities)
    with raises(UnsupportedFeature, "option.task=text-ranking"):
        check_task(PoolingParams(task="classify"), capabilities)


def test_routes() -> None:
    assert "/v1/embeddings" not in document()["paths"]
    paths = document(chat_embeddings="mean")["paths"]
    assert {"/v1/embeddings", "/v1/chat/completions"} <= paths.keys()
    assert "/embed" not in paths


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"ROLLING_BATCH": "echo"}, "option.chat_embeddings echo"),
        ({"ROLLING_BATCH": "scheduler", "ENABLE_LORA": "true"}, "option.chat_embeddings option.enable_lora"),
        ({"ROLLING_BATCH": "scheduler", "TASK": "text-embedding"}, "option.chat_embeddings option.task=text-embedding"),
        ({"TASK": "text-classification"}, "option.chat_embeddings option.task=text-classification"),
    ],
)
def test_refused(tiny_llama: Path, options: dict[str, str], facts: str) -> None:
    environ = {f"OPTION_{name}": value for name, value in options.items()}
    environ |= {"OPTION_CHAT_EMBEDDINGS": "last", "LMI_MODEL_DIR": str(tiny_llama)}
    assert any(says(mistake, facts) for mistake in mistakes(read_configuration(environ), environ))


def test_refused_beside_own_code(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def handle(inputs):\n    return inputs\n")
    environ = {"OPTION_CHAT_EMBEDDINGS": "last", "LMI_MODEL_DIR": str(tmp_path)}
    (mistake,) = mistakes(read_configuration(environ), environ)
    assert says(mistake, "option.chat_embeddings")


def test_openais_client(tiny_llama: Path, tmp_path: Path) -> None:
    started = Server(
        tmp_path / "m",
        f"option.model_id={tiny_llama}\noption.rolling_batch=scheduler\noption.dtype=fp32\noption.chat_embeddings=mean\n",
    )
    try:
        server = started.wait_ready()
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0) as client:
            one, other = client.embeddings.create(model="tgi", input=["Hello", "Bye now"], encoding_format="float").data
            text = client.completions.create(model="tgi", prompt="Hello", max_tokens=3, temperature=0).choices[0].text
        wrong = server.invoke({"input": [[10**6]]}, path="/v1/embeddings")
    finally:
        started.stop()
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_llama)
    for found, words in ((one, "Hello"), (other, "Bye now")):
        with torch.inference_mode():
            hidden = model.base_model(**tokenizer(words, return_tensors="pt")).last_hidden_state[0]
        expected = torch.nn.functional.normalize(hidden.mean(dim=0), dim=0)
        torch.testing.assert_close(torch.tensor(found.embedding), expected, rtol=1e-4, atol=1e-4)
    assert isinstance(text, str)
    assert wrong.status_code == 400


def test_a_404_names_the_option(echo_server: Server) -> None:
    answer = requests.post(f"{echo_server.url}/v1/embeddings", json={"input": "a"}, timeout=60)
    assert answer.status_code == 404
    assert "option.chat_embeddings" in answer.text
