"""huggingface_hub's client calls tasks by the address of the invoke route, in front of the handlers or of a server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import InferenceClient
from serving import StartServer
from task_handlers import TaskLoader, answers, of_type
from tiny_tasks import save_task_model

from lmi_handlers.custom_code.outputs import Output
from lmi_handlers.tasks.handler import TaskHandler

pytestmark = pytest.mark.long

Serve = Callable[[str, str], InferenceClient]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TaskLoader]:
    loader = TaskLoader(tmp_path_factory.mktemp("tasks"))
    yield loader
    loader.close()


@pytest.fixture
def serve(load: TaskLoader) -> Iterator[Serve]:
    """Give the handler of this process what a client posts."""
    listeners: list[ThreadingHTTPServer] = []

    def start(name: str, task: str) -> InferenceClient:
        handler, _ = load(name, task)
        listeners.append(ThreadingHTTPServer(("127.0.0.1", 0), route_to(handler)))
        threading.Thread(target=listeners[-1].serve_forever, args=(0.05,)).start()
        return InferenceClient(f"http://127.0.0.1:{listeners[-1].server_port}/", provider="hf-inference")

    yield start
    for listener in listeners:
        listener.shutdown()
        listener.server_close()


def route_to(handler: TaskHandler) -> type[BaseHTTPRequestHandler]:
    class Route(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            (found,) = answers(handler, of_type(self.headers["Content-Type"], data, Accept=self.headers["Accept"]))
            body = found.data() if isinstance(found, Output) else str(found).encode()
            self.send_response(found.code if isinstance(found, Output) else 424)
            for name, value in found.properties.items() if isinstance(found, Output) else ():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    return Route


def test_text_classification(serve: Serve) -> None:
    client = serve("BertForSequenceClassification", "text-classification")
    best, second = client.text_classification("a cat", top_k=2)
    assert best.label in "ABC"
    assert best.score > second.score


def test_zero_shot_classification(serve: Serve) -> None:
    client = serve("DistilBertForSequenceClassification", "zero-shot-classification")
    (found,) = client.zero_shot_classification("a cat", candidate_labels=["news", "film"], multi_label=True)
    assert {*found["labels"]} == {"news", "film"}


def test_token_classification(serve: Serve) -> None:
    client = serve("BertForTokenClassification", "token-classification")
    (found,) = client.token_classification("paris is in france", aggregation_strategy="simple", ignore_labels=[])
    assert {element["entity_group"] for element in found} <= {"O", "LOC", "PER"}


def test_fill_mask(serve: Serve) -> None:
    found = serve("BertForMaskedLM", "fill-mask").fill_mask("a [MASK]", top_k=2)
    assert len(found) == 2
    assert found[0].score > found[1].score


def test_question_answering(serve: Serve) -> None:
    client = serve("BertForQuestionAnswering", "question-answering")
    context = "paris is the capital of france"
    best, *_ = client.question_answering("what ?", context, top_k=3)
    assert best.answer == context[best.start : best.end]


@pytest.mark.parametrize("task", ["feature-extraction", "sentence-similarity"])
def test_features(serve: Serve, task: str) -> None:
    client = serve("BertModel", task)
    if task == "feature-extraction":
        assert np.shape(client.feature_extraction("a cat")) == (1, 1, 4, 32)
    else:
        assert client.sentence_similarity("a cat", ["a cat", "a dog"])[0] == pytest.approx(1.0)


@pytest.mark.parametrize("task", ["summarization", "translation"])
def test_texts(serve: Serve, task: str) -> None:
    client = serve("MarianMTModel", task)
    parameters = {"max_new_tokens": 3}
    if task == "summarization":
        assert client.summarization("a cat sat", generate_parameters=parameters)["summary_text"]
    else:
        assert client.translation("a cat sat", generate_parameters=parameters).translation_text


def test_image_classification(start_server: StartServer, tmp_path: Path) -> None:
    """Of a server: the body is the image."""
    from PIL import Image

    model = save_task_model("ViTForImageClassification", tmp_path / "vit")
    options = f"option.model_id={model}\noption.task=image-classification\n"
    server = start_server(options, environ={"OMP_NUM_THREADS": "1"})
    client = InferenceClient(f"{server.url}/invocations", provider="hf-inference")
    file = tmp_path / "a.png"
    Image.effect_noise((40, 40), 80).save(file)
    (all_labels,) = client.image_classification(file.read_bytes())
    (best,) = client.image_classification(file.read_bytes(), top_k=1)
    assert best == all_labels[:1]
