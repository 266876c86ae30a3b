"""A model.py whose functions load a model and predict, as LMI's handlers for scikit-learn and XGBoost call them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from facts import says
from model_store import StoreServer
from sagemaker_scripts import DECORATED, INITIALISED, LMI_FUNCTIONS, LMI_INPUT
from serving import Server, lmi_check

JSON = "application/json"
SKLEARN = "option.entryPoint=djl_python.sklearn_handler\noption.model_format=skops\n"

MODELS = {
    "decorated": (DECORATED, SKLEARN),
    "initialised": (INITIALISED, ""),
    "lmi-functions": (LMI_FUNCTIONS, SKLEARN),
    "lmi-input": (LMI_INPUT, ""),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    properties = {name: text for name, (_, text) in MODELS.items()}
    files = {name: {"model.py": script, "factor.txt": "2"} for name, (script, _) in MODELS.items()}
    server = StoreServer(tmp_path_factory.mktemp("predictive"), properties, files=files)
    yield server.wait_ready()
    server.stop()


def post(server: Server, model: str, data: bytes, content_type: str = JSON, **headers: str) -> requests.Response:
    headers |= {"Content-Type": content_type}
    return requests.post(f"{server.url}/predictions/{model}", data, headers=headers, timeout=60)


def test_decorated_functions(server: StoreServer) -> None:
    answer = post(server, "decorated", b'{"features": [1, 2]}')
    assert answer.json() == {"predictions": ["2.0", "4.0"], "shape": ["1", "2"]}
    assert answer.headers["Content-Type"] == JSON


def test_the_defaults_of_decorated_functions(server: StoreServer) -> None:
    assert post(server, "initialised", b'{"inputs": [[1, 2], [3, 4.5]]}').json() == {"predictions": [3.0, 7.5]}
    assert post(server, "initialised", b"[1, 2]").text == '{"predictions": [3]}'
    answer = post(server, "initialised", b"1,2\n3,4.5", "text/csv", Accept="text/csv")
    assert (answer.text, answer.headers["Content-Type"]) == ("3.0\n7.5", "text/csv")
    assert post(server, "initialised", b"[1]", Accept="application/x-npy").status_code == 406
    for body, content_type in ((b"{", JSON), (b'{"input": 1}', JSON), (b"a,b", "text/csv"), (b"1,2\n3", "text/csv")):
        assert post(server, "initialised", body, content_type).status_code == 400


def test_sagemakers_functions_in_a_model_py(server: StoreServer) -> None:
    assert post(server, "lmi-functions", b'{"inputs": [1, 2]}').json() == {"negative": [[-1, -2]]}
    answer = post(server, "lmi-functions", b"1,2", "text/csv", Accept="text/csv")
    assert (answer.text, answer.headers["Content-Type"]) == ("-1.0\n-2.0", "text/csv")


def test_such_functions_get_bytes(server: StoreServer) -> None:
    assert post(server, "lmi-input", b'{"values": [1]}').text == '{"predictions": [1]}'


@pytest.mark.parametrize(
    ("script", "properties", "cause"),
    [
        ("x = 1\n", SKLEARN, "model.py no handle(inputs), @init_handler model_fn(model_dir)"),
        (DECORATED.replace("@init_handler\n", ""), "", "model.py no @init_handler load"),
        (
            DECORATED.replace("(X, model, **kwargs)", "(X)"),
            "",
            "custom_predict data custom_predict(X)",
        ),
        (
            DECORATED.replace("def custom_o", "async def custom_o"),
            "",
            "custom_output predictions not",
        ),
        (INITIALISED.replace("Sums()", "1"), "", "@init_handler no predict"),
        (
            INITIALISED,
            "batch_size=2\n",
            "model.py defines @init_handler functions",
        ),
    ],
)
def test_mistakes_are_told_at_start(tmp_path: Path, script: str, properties: str, cause: str) -> None:
    (tmp_path / "model.py").write_text(script)
    (tmp_path / "serving.properties").write_text(properties)
    ended = lmi_check(tmp_path)
    assert ended.returncode == 1
    assert says(ended.stderr, cause)
