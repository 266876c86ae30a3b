"""A model.py whose functions load a model and predict, as LMI's handlers for scikit-learn and XGBoost call them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests
from facts import says
from sagemaker_scripts import DECORATED, INITIALISED, LMI_FUNCTIONS, LMI_INPUT
from serving import Server, lmi_check

JSON = "application/json"
SKLEARN = "option.entryPoint=djl_python.sklearn_handler\noption.model_format=skops\n"

Serve = Callable[..., Server]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    servers: list[Server] = []

    def start(script: str, properties: str = "") -> Server:
        directory = tmp_path / "m"
        directory.mkdir()
        (directory / "model.py").write_text(script)
        (directory / "factor.txt").write_text("2")
        servers.append(Server(directory, properties))
        return servers[0]

    yield start
    for server in servers:
        server.stop()


def post(server: Server, data: bytes, content_type: str = JSON, **headers: str) -> requests.Response:
    headers |= {"Content-Type": content_type}
    return requests.post(f"{server.url}/invocations", data, headers=headers, timeout=60)


def test_decorated_functions(serve: Serve) -> None:
    answer = post(serve(DECORATED, SKLEARN).wait_ready(), b'{"features": [1, 2]}')
    assert answer.json() == {"predictions": ["2.0", "4.0"], "shape": ["1", "2"]}
    assert answer.headers["Content-Type"] == JSON


def test_the_defaults_of_decorated_functions(serve: Serve) -> None:
    server = serve(INITIALISED).wait_ready()
    assert post(server, b'{"inputs": [[1, 2], [3, 4.5]]}').json() == {"predictions": [3.0, 7.5]}
    assert post(server, b"[1, 2]").text == '{"predictions": [3]}'
    answer = post(server, b"1,2\n3,4.5", "text/csv", Accept="text/csv")
    assert (answer.text, answer.headers["Content-Type"]) == ("3.0\n7.5", "text/csv")
    assert post(server, b"[1]", Accept="application/x-npy").status_code == 406
    for body, content_type in ((b"{", JSON), (b'{"input": 1}', JSON), (b"a,b", "text/csv"), (b"1,2\n3", "text/csv")):
        assert post(server, body, content_type).status_code == 400


def test_sagemakers_functions_in_a_model_py(serve: Serve) -> None:
    server = serve(LMI_FUNCTIONS, SKLEARN).wait_ready()
    assert post(server, b'{"inputs": [1, 2]}').json() == {"negative": [[-1, -2]]}
    answer = post(server, b"1,2", "text/csv", Accept="text/csv")
    assert (answer.text, answer.headers["Content-Type"]) == ("-1.0\n-2.0", "text/csv")


def test_such_functions_get_bytes(serve: Serve) -> None:
    assert post(serve(LMI_INPUT).wait_ready(), b'{"values": [1]}').text == '{"predictions": [1]}'


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
