"""`option.generation_config`: sampling defaults from the model's generation_config.json, on OpenAI's routes only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from byte_model import write_byte_model
from facts import says
from serving import Server, StartServer

PROPERTIES = "option.rolling_batch=echo\noption.chat_template={{ messages[0].content }}\n"


def write_model(directory: Path, generation_config: dict[str, Any]) -> str:
    """Write a model and return the properties that serve it."""
    directory.mkdir()
    write_byte_model(directory)
    (directory / "generation_config.json").write_text(json.dumps(generation_config))
    return PROPERTIES + f"option.model_id={directory}\n"


def test_requests_that_do_not_say_otherwise_have_the_models_defaults(start_server: StartServer, tmp_path: Path) -> None:
    properties = write_model(
        tmp_path / "model", {"temperature": 0.6, "top_p": 0.5, "do_sample": True, "eos_token_id": 1}
    )
    server = start_server(properties + "option.generation_config=auto\n")

    def used(**body: object) -> tuple[float, float]:
        answer = server.invoke({"input": "hi"} | body, path="/v1/responses").json()
        return answer["temperature"], answer["top_p"]

    assert used() == (0.6, 0.5)
    assert used(temperature=1) == (1.0, 0.5)
    assert used(top_p=1, temperature=None) == (0.6, 1.0)


def test_openais_own_defaults_apply_by_default(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(write_model(tmp_path / "model", {"temperature": 0.6, "top_k": "many"}))
    answer = server.invoke({"input": "hi"}, path="/v1/responses").json()
    assert (answer["temperature"], answer["top_p"]) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ({"top_k": "many"}, "int str $.top_k"),
        ({"top_p": 3}, "top_p: 0 1 3.0"),
    ],
)
def test_unusable_defaults_are_an_error_at_the_start(tmp_path: Path, broken: dict[str, Any], words: str) -> None:
    properties = write_model(tmp_path / "model", broken) + "option.generation_config=auto\n"
    server = Server(tmp_path / "m", properties)
    try:
        assert server.process.wait(120) == 1
        assert says(server.log, f"option.generation_config=auto: generation_config.json: {words}")
    finally:
        server.stop()
