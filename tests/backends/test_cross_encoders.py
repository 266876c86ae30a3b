"""Classification on transformers: the scores are those that the library computes for each input alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from facts import raises, says
from serving import StartServer
from tiny_cross_encoders import make_classifier, save_classifier
from tiny_embedders import save_embedder
from tiny_models import EOS, MAX_LEN
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from backends.transformers.heads import Classifier, load_head
from backends.transformers.pooling_backend import PoolingBackend
from formatters.pooling import numbers
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import ConfigError, InvalidRequest
from lmi_handlers.core.pooling_params import PoolingParams
from lmi_handlers.core.request import EncodedPrompt, TokenRequest
from lmi_handlers.core.sampling_params import SamplingParams

TOLERANCE = 1e-4
QUERY = "what is a panda?"
TEXTS = ["hi", "The giant panda is a bear of China.", "", "x" * 200, "what is a panda?", "no"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small gain nothing from threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def expected(path: Path, inputs: list[Any], *, side: str = "right") -> torch.Tensor:
    """What the library computes for each input alone: `[inputs, labels]`. A tuple is a pair of texts."""
    tokenizer = AutoTokenizer.from_pretrained(path, truncation_side=side)
    model = AutoModelForSequenceClassification.from_pretrained(path).eval()
    rows = []
    for item in inputs:
        texts = (
            [[text] for text in item] if isinstance(item, tuple) else [[item]]
        )  # alone, "" would not count as a text
        encoded = tokenizer(*texts, truncation=True, max_length=MAX_LEN, return_tensors="pt")
        with torch.inference_mode():
            rows.append(model(**encoded).logits[0])
    return torch.stack(rows)


def close(found: object, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(torch.tensor(found), wanted, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize(
    "name", ["bert", "roberta", "distilbert", "modernbert", "qwen3", "gemma3", "llama_without_padding_token", "bart"]
)
def test_pairs_in_a_batch_score_as_each_alone(name: str) -> None:
    model = make_classifier(name)
    has_types = name in ("bert", "roberta", "gemma3")
    prompts = [
        EncodedPrompt([*(5 + i % 90 for i in range(n - 1)), EOS], token_type_ids=[0] * 4 + [1] * (n - 4))
        for n in (9, 50, 7, 7)
    ]
    prompts[1].token_ids[20] = prompts[2].token_ids[3] = EOS  # BART's class takes no others beside these
    prompts[3].token_ids[-1] = EOS if name == "bart" else 0
    alone = []
    for prompt in prompts:
        types = {"token_type_ids": torch.tensor([prompt.token_type_ids])} if has_types else {}
        with torch.inference_mode():
            alone.append(model(input_ids=torch.tensor([prompt.token_ids]), **types).logits[0])
    backend = PoolingBackend(Classifier(model), max_model_len=MAX_LEN)
    assert (backend.capabilities.pooling_tasks, backend.capabilities.labels) == (("classify",), ("LABEL_0",))
    found = scores(backend, prompts)
    for row, wanted in zip(found, alone, strict=True):
        close(row, wanted)
    close(scores(backend, prompts[-1:])[0], alone[-1])


def scores(backend: PoolingBackend, prompts: list[EncodedPrompt]) -> list[list[float]]:
    """The model's own scores of all prompts, which share batches."""
    params = PoolingParams(task="classify", activation="none")
    for place, prompt in enumerate(prompts):
        request = TokenRequest(
            request_id=str(place), prompt=prompt, sampling_params=SamplingParams(), pooling_params=params
        )
        backend.add_request(request)
    found: dict[str, list[float]] = {}
    while len(found) < len(prompts):
        found |= {output.request_id: numbers(output.embedding or b"") for output in backend.step()}
    return [found[str(place)] for place in range(len(prompts))]


def test_a_text_that_an_encoder_decoder_model_cannot_score_is_rejected() -> None:
    backend = PoolingBackend(Classifier(make_classifier("bart")), max_model_len=MAX_LEN)
    with raises(InvalidRequest, "model's end-of-sequence token"):
        scores(backend, [EncodedPrompt([5, 6])])
    assert len(scores(backend, [EncodedPrompt([5, 6, EOS])])) == 1


@pytest.mark.parametrize("name", ["bert", "qwen3"])
def test_server_scores_pairs_as_the_model_does(name: str, tmp_path: Path, start_server: StartServer) -> None:
    path = save_classifier(name, tmp_path / name)
    server = start_server(f"option.model_id={path}\noption.task=text-ranking\n")
    for side in ("right", "left"):
        scores = expected(path, [(QUERY, text) for text in TEXTS], side=side)[:, 0]
        body = {"query": QUERY, "texts": TEXTS, "truncate": True, "truncation_direction": side}
        ranks = server.invoke(body | {"raw_scores": True, "return_text": True}, path="/rerank").json()
        assert [rank["text"] for rank in ranks] == [TEXTS[rank["index"]] for rank in ranks]
        assert [rank["score"] for rank in ranks] == sorted((rank["score"] for rank in ranks), reverse=True)
        assert {rank["index"] for rank in ranks} == set(range(len(TEXTS)))
        close([rank["score"] for rank in sorted(ranks, key=lambda rank: rank["index"])], scores)
    lmi = server.invoke({"query": QUERY, "texts": TEXTS}).json()
    close(lmi, expected(path, [(QUERY, text) for text in TEXTS]).sigmoid())
    assert scores.std() > 10 * TOLERANCE


def test_server_classifies_texts_as_the_model_does(tmp_path: Path, start_server: StartServer) -> None:
    labels = {0: "good", 1: "bad", 2: "ugly"}
    path = save_classifier("bert", tmp_path / "bert", 3, id2label=labels, label2id={v: k for k, v in labels.items()})
    server = start_server(f"option.model_id={path}\noption.task=text-ranking\n")
    inputs: list[Any] = ["hi", (QUERY, "the bear"), "no"]
    wanted = expected(path, inputs)
    for raw, scores in ((True, wanted), (False, wanted.softmax(dim=-1))):
        body = {"inputs": [["hi"], list(inputs[1]), ["no"]], "raw_scores": raw}
        found = server.invoke(body, path="/predict").json()
        assert all([item["score"] for item in row] == sorted(item["score"] for item in row)[::-1] for row in found)
        by_label = [{item["label"]: item["score"] for item in row} for row in found]
        close([[row[label] for label in labels.values()] for row in by_label], scores)
        single = server.invoke({"inputs": "hi", "raw_scores": raw}, path="/predict").json()
        assert [item["label"] for item in single] == [item["label"] for item in found[0]]
    refused = server.invoke({"query": QUERY, "texts": ["a"]}, path="/rerank")
    assert (refused.status_code, says(refused.text, "3 labels cross-encoder")) == (424, True)


# The model's files


@pytest.mark.parametrize(
    ("labels", "config", "function"),
    [
        (1, {}, torch.sigmoid),
        (2, {}, lambda scores: scores),
        (1, {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, lambda scores: scores),
        (1, {"sbert_ce_default_activation_function": "torch.nn.modules.activation.Tanh"}, torch.tanh),
    ],
)
def test_activation_function(labels: int, config: dict[str, Any], function: Any) -> None:
    head = Classifier(make_classifier("bert", labels, **config))
    scores = torch.linspace(-2, 2, 5)
    torch.testing.assert_close(head.activation(scores), function(scores))


def test_an_activation_function_that_is_not_supported_is_named() -> None:
    with raises(ConfigError, "activation system not supported"):
        Classifier(make_classifier("bert", sbert_ce_default_activation_function="os.system"))


def test_only_classifiers_have_scores(tmp_path: Path) -> None:
    path = save_embedder("bert", tmp_path / "bert")
    with raises(ConfigError, "cross-encoder ForSequenceClassification not BertModel"):
        load_head(path, ServingProperties(task="text-ranking"))
