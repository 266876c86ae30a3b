"""SageMaker's scripts, run unchanged: their functions, the defaults for those that are missing, and what is said at start."""

from __future__ import annotations

import importlib.util
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
from facts import Said, says
from model_store import StoreServer
from sagemaker_scripts import CODECS, CONTEXT, DEFAULTS, STEPS, STREAMED_PREDICTIONS, TRANSFORM
from serving import Server, lmi_check
from waiting import wait_until

JSON = "application/json"


def write(directory: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


SCRIPTS = {
    "steps": {"code/inference.py": STEPS, "code/labels.py": "NAME = 'doubled'\n", "weights.json": '{"factor": 2}'},
    "defaults": {"code/inference.py": DEFAULTS},
    "context": {"code/inference.py": CONTEXT},
    "codecs": {"code/inference.py": CODECS},
    "streamed": {"code/inference.py": STREAMED_PREDICTIONS},
}


class Script:
    """A model of the server."""

    def __init__(self, server: StoreServer, name: str) -> None:
        self.server = server
        self.directory = server.store / name
        self.url = f"{server.url}/predictions/{name}"


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    """A server on which each script is a model."""
    server = StoreServer(tmp_path_factory.mktemp("scripts"), dict.fromkeys(SCRIPTS, ""), files=SCRIPTS)
    yield server.wait_ready()
    server.stop()


@pytest.fixture(scope="module")
def steps(scripts: StoreServer) -> Script:
    return Script(scripts, "steps")


@pytest.fixture(scope="module")
def defaults(scripts: StoreServer) -> Script:
    return Script(scripts, "defaults")


@pytest.fixture(scope="module")
def context(scripts: StoreServer) -> Script:
    return Script(scripts, "context")


def post(script: Script, data: bytes | str, content_type: str | None = JSON, **headers: str) -> requests.Response:
    headers |= {} if content_type is None else {"Content-Type": content_type}
    return requests.post(script.url, data, headers=headers, timeout=60)


def error(answer: requests.Response) -> tuple[int, str]:
    body = answer.json()
    assert body["code"] == answer.status_code
    return answer.status_code, body["error"]


def npy(value: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, value)
    return file.getvalue()


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def test_all_functions_of_a_script(steps: Script) -> None:
    answer = post(steps, '{"instances": [[1, 2], [3, 4]]}', "application/json; charset=utf-8", Accept=JSON)
    assert answer.json() == {"predictions": [[2, 4], [6, 8]], "label": "doubled"}
    assert answer.headers["Content-Type"] == JSON
    answer = post(steps, b"1 2\n3 4", "application/x-rows", Accept="text/plain")
    assert (answer.text, answer.headers["Content-Type"]) == ("[2.0, 4.0]\n[6.0, 8.0]", "text/plain")


def test_an_error_has_the_cause_and_the_log_has_the_authors_frames(steps: Script) -> None:
    assert error(post(steps, b"x", "image/png")) == (424, "Unsupported content type: image/png")
    entries = [
        json.loads(line) for line in steps.server.log.splitlines() if "Unsupported content type: image/png" in line
    ]
    traceback = next(entry["exception"] for entry in entries if "exception" in entry)
    assert "code/inference.py" in traceback
    assert "lmi_handlers" not in traceback


@pytest.mark.parametrize("accept", ["*/*", "", "application/json, text/csv", "application/pdf, application/json;q=0.5"])
def test_json_by_default(defaults: Script, accept: str) -> None:
    answer = post(defaults, "[[1, 2], [3, 4]]", Accept=accept)
    assert (answer.status_code, answer.text) == (200, "[[2, 4], [6, 8]]")
    assert answer.headers["Content-Type"] == JSON


def test_a_json_object_stays_a_dict(defaults: Script) -> None:
    assert post(defaults, '{"rows": ["a"]}').json() == ["a"]


@pytest.mark.parametrize(("body", "doubled"), [("1.5,2.5\n3,4.0\n", "3.0,5.0\n6.0,8.0\n"), ("1,2", "2\n4\n")])
def test_csv_both_ways(defaults: Script, body: str, doubled: str) -> None:
    answer = post(defaults, body, "text/csv", Accept="text/csv")
    assert (answer.text, answer.headers["Content-Type"]) == (doubled, "text/csv")


@pytest.mark.parametrize("array", [np.arange(6, dtype=np.float32).reshape(2, 3), np.array([1, 2]), np.array(4.5)])
def test_npy_both_ways(defaults: Script, array: np.ndarray[Any, Any]) -> None:
    answer = post(defaults, npy(array), "application/x-npy", Accept="application/x-npy")
    assert answer.headers["Content-Type"] == "application/x-npy"
    doubled = np.load(io.BytesIO(answer.content))
    np.testing.assert_array_equal(doubled, array * 2)
    assert doubled.dtype == array.dtype


def test_a_sparse_matrix_needs_scipy(defaults: Script) -> None:
    arrays = {"data": np.ones(2), "indices": np.array([0, 1]), "indptr": np.array([0, 1, 2])}
    body = npz(format=b"csr", shape=(2, 2), **arrays)
    answer = post(defaults, body, "application/x-npz", Accept="application/json")
    if importlib.util.find_spec("scipy") is None:
        assert error(answer) == (
            415,
            Said("application/x-npz scipy not installed requirements.txt"),
        )
    else:
        assert answer.status_code == 424  # JSON cannot hold a sparse matrix


@pytest.mark.parametrize(
    ("body", "content_type", "status", "cause"),
    [
        (b"x", "image/png", 415, "image/png not supported"),
        (b"x", None, 415, "None not supported"),
        (b"{", JSON, 400, "not valid application/json"),
        (b"[" * 100_000, JSON, 400, "not valid application/json"),
        (b"[[1], [2, 3]]", JSON, 400, "not valid application/json"),
        (b"\xff", JSON, 400, "not text UTF-8"),
        (b"1,2\n3", "text/csv", 400, "not valid text/csv"),
        (b"PK\x03\x04", "application/x-npy", 400, "not valid application/x-npy"),
        (npy(np.arange(100))[:-8], "application/x-npy", 400, "not valid application/x-npy"),
        (
            npy(np.array([{}])),
            "application/x-npy",
            400,
            "not valid application/x-npy arrays",
        ),
        (b"PK\x03\x04", "application/x-npz", 400, "not valid application/x-npz zip"),
        (
            npz(data=np.array([{}])),
            "application/x-npz",
            400,
            "not valid application/x-npz Object arrays",
        ),
    ],
)
def test_bad_content(defaults: Script, body: bytes, content_type: str | None, status: int, cause: str) -> None:
    code, message = error(post(defaults, body, content_type))
    assert code == status
    assert says(message, cause)


def test_arrays_that_are_much_larger_than_their_archive(defaults: Script) -> None:
    code, message = error(post(defaults, npz(data=np.zeros(40_000_000)), "application/x-npz"))
    assert code == 400
    assert says(message, "application/x-npz arrays 268435456")


@pytest.mark.parametrize("accept", ["application/pdf", "application/pdf, text/html"])
def test_an_answer_that_is_not_available(defaults: Script, accept: str) -> None:
    assert error(post(defaults, "[1]", Accept=accept))[0] == 406


def test_functions_that_take_the_context(context: Script) -> None:
    answer = post(context, "{}", "image/png", **{"X-Case": "plain", "x-request-id": "r1"})
    assert answer.json() == {
        "device": None,
        "model_dir": str(context.directory),
        "case": "plain",
        "id": "r1",
        "data": 2,
    }
    created = post(context, "{}", **{"X-Case": "created", "x-request-id": "r2"})
    assert (created.status_code, created.headers["X-From"], created.json()) == (201, "output_fn", "r2")
    assert created.headers["Content-Type"] == "application/x-created"
    assert post(context, "{}", **{"X-Case": "plain"}).status_code == 200


def test_errors_with_a_status_and_wrong_results(context: Script) -> None:
    assert error(post(context, "{}", **{"X-Case": "refuse"})) == (422, "not this one")
    assert error(post(context, "{}", **{"X-Case": "raise"})) == (424, "a bug")
    assert error(post(context, "{}", **{"X-Case": "none"})) == (424, Said("nothing returned answer"))


def test_a_generator_is_streamed(context: Script, tmp_path: Path) -> None:
    kind, case = "application/x-text", {"X-Case": "stream"}
    answer = post(context, "to be", kind, **case)
    assert (answer.text, answer.headers["Content-Type"]) == ("to\nbe\n", "text/plain")
    assert post(context, "to raise", kind, **case).text == 'to\n{"error": "in the middle", "code": 424}\n'
    closed = tmp_path / "closed"
    url, headers = context.url, {**case, "Content-Type": kind}
    with requests.post(url, f"forever|{closed}", headers=headers, stream=True, timeout=60) as stream:
        assert next(stream.iter_lines()) == b"tick"
    wait_until(closed.exists)


def test_transform_fn_replaces_the_other_functions(tmp_path: Path) -> None:
    write(tmp_path / "submitted", {"mine.py": TRANSFORM})
    variables = {"SAGEMAKER_PROGRAM": "mine", "SAGEMAKER_SUBMIT_DIRECTORY": str(tmp_path / "submitted")}
    server = Server(tmp_path / "m", "", environ={"SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT": "text/csv", **variables})
    try:
        answer = server.wait_ready().invoke(data="{}", headers={"Content-Type": JSON}).text
        assert answer == "['before', 'load', 'warm up model'] model '{}' application/json text/csv"
    finally:
        server.stop()


def test_the_toolkits_codecs(scripts: StoreServer) -> None:
    script = Script(scripts, "codecs")
    assert post(script, npy([[1, 2], [3, 4]]), "application/octet-stream").json() == [4, 6]
    assert post(script, "1,2\n3,4", "text/csv", Accept="text/csv").text == "4\n6\n"
    assert error(post(script, b"x", "image/png"))[0] == 415
    assert error(post(script, "[[1]]", Accept="image/png"))[0] == 406


def test_predictions_are_streamed_as_json_lines(scripts: StoreServer) -> None:
    answer = post(Script(scripts, "streamed"), "[1]")
    assert answer.headers["Content-Type"] == "application/jsonlines"
    assert [json.loads(line)["number"] for line in answer.content.splitlines()] == [0, 1, 2]


MODEL = "def model_fn(model_dir): return 1\n"


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        ("def predict_fn(data, model): pass\n", "defines no model_fn(model_dir)"),
        (
            MODEL + "def predict_fn(data): pass\n",
            "line 2 predict_fn predict_fn(data)",
        ),
        (
            MODEL + "async def predict_fn(data, model): pass\n",
            "line 2 predict_fn not async",
        ),
        (MODEL + "predict_fn = 1\n", "predict_fn not function"),
        (
            MODEL + "def transform_fn(*args): pass\ndef input_fn(*args): pass\n",
            "transform_fn replaces input_fn",
        ),
        (MODEL, "model_fn int predict_fn(data, model)"),
        ("def model_fn(model_dir):\n    raise OSError('no weights')\n", "line 2 OSError no weights"),
    ],
)
def test_mistakes_are_told_at_start(tmp_path: Path, script: str, cause: str) -> None:
    directory = write(tmp_path / "m", {"code/inference.py": script})
    ended = lmi_check(directory)
    assert ended.returncode == 1
    [line] = [line for line in ended.stderr.splitlines() if line.startswith("lmi: error: ")]
    assert f"{directory}/code/inference.py" in line
    assert says(line, cause)


def test_a_program_that_is_named_must_be_there(tmp_path: Path) -> None:
    directory = write(tmp_path / "m", {"code/x": ""})
    assert lmi_check(directory, environ={"SAGEMAKER_PROGRAM": "inference.py"}).returncode == 0  # the default model
    ended = lmi_check(directory, environ={"SAGEMAKER_PROGRAM": "mine.py"})
    assert ended.returncode == 1
    assert says(ended.stderr, f"SAGEMAKER_PROGRAM=mine.py {directory}/code/mine.py exist")


def test_requests_are_not_batched(tmp_path: Path) -> None:
    ended = lmi_check(write(tmp_path / "m", {"code/inference.py": DEFAULTS, "serving.properties": "batch_size=4\n"}))
    assert ended.returncode == 1
    assert says(ended.stderr, "inference.py defines model_fn")
