"""huggingface_hub's client calls tasks by the address of the invoke route."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import InferenceClient
from serving import Server
from tiny_tasks import save_task_model

pytestmark = pytest.mark.long

Start = Callable[[str, str], InferenceClient]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Start]:
    servers: list[Server] = []

    def start(name: str, task: str) -> InferenceClient:
        directory = save_task_model(name, tmp_path / "m")
        servers.append(Server(directory, f"option.task={task}\n", environ={"OMP_NUM_THREADS": "1"}))
        return InferenceClient(f"{servers[0].wait_ready().url}/invocations", provider="hf-inference")

    yield start
    for server in servers:
        server.stop()


def test_text_classification(serve: Start) -> None:
    client = serve("BertForSequenceClassification", "text-classification")
    best, second = client.text_classification("a cat", top_k=2)
    assert best.label in "ABC"
    assert best.score > second.score


def test_zero_shot_classification(serve: Start) -> None:
    client = serve("DistilBertForSequenceClassification", "zero-shot-classification")
    (found,) = client.zero_shot_classification("a cat", candidate_labels=["news", "film"], multi_label=True)
    assert {*found["labels"]} == {"news", "film"}


def test_token_classification(serve: Start) -> None:
    client = serve("BertForTokenClassification", "token-classification")
    (found,) = client.token_classification("paris is in france", aggregation_strategy="simple", ignore_labels=[])
    assert {element["entity_group"] for element in found} <= {"O", "LOC", "PER"}


def test_fill_mask(serve: Start) -> None:
    found = serve("BertForMaskedLM", "fill-mask").fill_mask("a [MASK]", top_k=2)
    assert len(found) == 2
    assert found[0].score > found[1].score


def test_question_answering(serve: Start) -> None:
    client = serve("BertForQuestionAnswering", "question-answering")
    context = "paris is the capital of france"
    best, *_ = client.question_answering("what ?", context, top_k=3)
    assert best.answer == context[best.start : best.end]


@pytest.mark.parametrize("task", ["feature-extraction", "sentence-similarity"])
def test_features(serve: Start, task: str) -> None:
    client = serve("BertModel", task)
    if task == "feature-extraction":
        assert np.shape(client.feature_extraction("a cat")) == (1, 1, 4, 32)
    else:
        assert client.sentence_similarity("a cat", ["a cat", "a dog"])[0] == pytest.approx(1.0)


@pytest.mark.parametrize("task", ["summarization", "translation"])
def test_texts(serve: Start, task: str) -> None:
    client = serve("MarianMTModel", task)
    parameters = {"max_new_tokens": 3}
    if task == "summarization":
        assert client.summarization("a cat sat", generate_parameters=parameters)["summary_text"]
    else:
        assert client.translation("a cat sat", generate_parameters=parameters).translation_text


def test_image_classification(serve: Start, tmp_path: Path) -> None:
    from PIL import Image

    client = serve("ViTForImageClassification", "image-classification")
    file = tmp_path / "a.png"
    Image.effect_noise((40, 40), 80).save(file)
    (all_labels,) = client.image_classification(file.read_bytes())
    (best,) = client.image_classification(file.read_bytes(), top_k=1)
    assert best == all_labels[:1]
