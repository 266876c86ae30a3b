"""The unmodified npm client of Anthropic's API, on the echo backend. Its script in tests/clients/npm runs once."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from calls import Task
from client_scripts import CITY, MAX_TOKENS, PROMPT, SCRIPTS, TOOL, Outcomes
from facts import says
from serving import Server

MODULES = Path(sys.prefix) / "clients-npm" / "node_modules"
"""What `make test-long` installs where there is an npm."""

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        "CI" not in os.environ and not MODULES.is_dir(), reason="needs Debian's packages nodejs and npm"
    ),
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcomes]:
    properties = "option.rolling_batch=echo\noption.echo_faults=true\noption.tool_call_parser=hermes\n"
    folder = tmp_path_factory.mktemp("npm")
    server = Server(folder / "m", properties + "option.max_model_len=4096\n")
    try:
        echo = server.wait_ready().url
        task = Task(echo, echo, echo, PROMPT, MAX_TOKENS, "", CITY, "", TOOL, {})
        # node looks for modules beside the script.
        script = shutil.copy(SCRIPTS / "npm" / "anthropic_client.mjs", folder)
        (folder / "node_modules").symlink_to(MODULES)
        node = shutil.which("node")
        assert node is not None, "CI installs nodejs"
        ended = subprocess.run(
            [node, script, json.dumps(dataclasses.asdict(task))],
            env={"PATH": os.defpath, "HOME": str(folder)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        yield Outcomes(json.loads(ended.stdout.splitlines()[-1]))
    finally:
        server.stop()


def test_messages_and_streams(client: Outcomes) -> None:
    message, helped = client["message"], client["helper"]
    [block] = message["content"]
    assert (block["type"], message["stop_reason"], message["usage"]["output_tokens"]) == (
        "text",
        "max_tokens",
        MAX_TOKENS,
    )
    assert helped["message"]["content"] == message["content"]
    kinds = [event["type"] for event in client["stream"]]
    assert kinds == helped["events"]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    texts = [event["delta"]["text"] for event in client["stream"] if event["type"] == "content_block_delta"]
    assert "".join(texts) == block["text"]


def test_tools(client: Outcomes) -> None:
    for message in (client["auto"], client["auto_helper"]["message"]):
        [use] = [block for block in message["content"] if block["type"] == "tool_use"]
        assert (use["name"], use["input"], message["stop_reason"]) == (
            "rank_city",
            {"city": "Rome", "rank": 2},
            "tool_use",
        )
    assert "It is sunny." in str(client["conversation"]["content"])


def test_counts(client: Outcomes) -> None:
    assert client["count"]["input_tokens"] == client["message"]["usage"]["input_tokens"]
    assert client["count_tools"]["input_tokens"] > client["count"]["input_tokens"]


def test_errors(client: Outcomes) -> None:
    kind, message = client.error("refused")
    assert (kind, says(message, "400 stop_sequences")) == ("BadRequestError", True)
    kind, _ = client.error("failed")
    assert kind == "APIError"
