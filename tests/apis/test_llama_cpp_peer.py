"""`/infill` beside llama.cpp's own server, which answers the same bodies for models with the same tokens."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import gguf_files
import msgspec
import pytest
import requests
from code_models import ADDED, ALPHABET
from facts import says
from paths import ROOT
from serving import Server, free_port
from waiting import wait_until

from formatters.llama_cpp import schemas
from lmi_handlers.text.infill import find_infill

pytestmark = [pytest.mark.long, pytest.mark.needs("xllamacpp")]

GAP = {"input_prefix": "def a(b):\n", "input_suffix": "\nreturn", "n_predict": 4, "temperature": 0}
EXTRA = [{"filename": "a.py", "text": "hello"}, {"text": "t"}]


@pytest.fixture(scope="module", params=ADDED)
def peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Server]]:
    """The model's name, and a server of a tiny model with its added tokens, whose ids are others."""
    folder = tmp_path_factory.mktemp("peer")
    bytes_and_ends = {*ALPHABET, "<unk>", "<s>", "</s>"}
    special = ["<unk>", "<s>", "</s>", *(token for token in ADDED[request.param] if token not in bytes_and_ends)]
    types = [gguf_files.CONTROL] * len(special) + [gguf_files.NORMAL] * (len(ALPHABET) + 1)
    file = gguf_files.make_gguf(
        folder / "m.gguf", tokens=[*special, *ALPHABET, "ab"], types=types, add_bos=False, context_length=8192
    )
    port = free_port()
    command = [sys.executable, str(ROOT / "benchmarks" / "peer_llama_cpp.py"), str(file), str(port), "1", "8192"]
    server = Server(folder / "serve", "", command=command, port=port)
    try:
        wait_until(lambda: is_ready(server))
        yield request.param, server
    finally:
        server.process.terminate()
        server.process.wait(120)


def is_ready(server: Server) -> bool:
    with contextlib.suppress(requests.ConnectionError):
        return requests.get(f"{server.url}/health", timeout=60).ok
    return False


def ask(server: Server, **fields: Any) -> requests.Response:
    return requests.post(f"{server.url}/infill", json=GAP | fields, timeout=60)


def test_the_same_prompts(peer: tuple[str, Server]) -> None:
    model, server = peer
    form = find_infill(ADDED[model])
    assert form is not None
    files = [(file.get("filename", "tmp"), file["text"]) for file in EXTRA]
    gap = form.prompt("def a(b):\nxy", "\nreturn")
    assert ask(server, prompt="xy").json()["prompt"] == form.context([]) + gap
    assert ask(server, prompt="xy", input_extra=EXTRA).json()["prompt"] == form.context(files) + gap


def missing(ours: type[msgspec.Struct], theirs: Mapping[str, Any]) -> list[str]:
    """The fields that an answer of llama.cpp's does not have, or all of ours if they are in another order."""
    names = [field.name for field in msgspec.structs.fields(ours) if not isinstance(field.default, msgspec.UnsetType)]
    common = [name for name in theirs if name in names]
    return [] if common == names else [name for name in names if name not in theirs] or names


def test_the_same_fields_in_the_same_order(peer: tuple[str, Server]) -> None:
    document = ask(peer[1], n_probs=1).json()
    assert missing(schemas.LlamaCppCompletion, document) == []
    assert missing(schemas.LlamaCppSettings, document["generation_settings"]) == []
    assert missing(schemas.LlamaCppTimings, document["timings"]) == []
    assert missing(schemas.LlamaCppToken, document["completion_probabilities"][0]) == []
    assert [*document][-1] == "completion_probabilities"
    msgspec.json.decode(json.dumps(document), type=schemas.LlamaCppCompletion)
    lines = ask(peer[1], stream=True).text.splitlines()
    *chunks, last = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    for chunk in chunks:
        assert missing(schemas.LlamaCppChunk, chunk) == []
    assert (missing(schemas.LlamaCppCompletion, last), last["content"], last["tokens"]) == ([], "", [])


def test_the_same_forms_of_errors_and_chosen_fields(peer: tuple[str, Server]) -> None:
    refused = ask(peer[1], temperature="a")
    error = msgspec.json.decode(refused.content, type=schemas.LlamaCppError).error
    assert (refused.status_code, error.code, error.type) == (400, 400, "invalid_request_error")
    assert says(error.message, "temperature")
    chosen = ask(peer[1], response_fields=["stop_type", "timings/predicted_n", "nope"]).json()
    assert (chosen, [*chosen]) == ({"stop_type": chosen["stop_type"], "timings/predicted_n": 4}, [*chosen])
