"""SageMaker's custom attributes: read, echoed and logged if their key is in `option.custom_attributes`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from facts import says
from hypothesis import given
from hypothesis import strategies as st
from raw_http import connect
from runtime_client import runtime_client
from serving import Server
from serving_properties import load

from lmi_handlers.core.custom_attributes import HEADER, MAX_LENGTH, parse_attributes, render_attributes
from lmi_handlers.core.errors import ConfigError

BODY = b'{"inputs": "hello", "parameters": {"max_new_tokens": 2}}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    properties = (
        "option.rolling_batch=echo\noption.custom_attributes=trace, tenant, x-lmi-stage, X-LMI-Stage\n"
        "option.echo_tokens_per_second=20\n"
        "option.response_deadline=3\noption.web_workers=1\n"
    )
    server = Server(tmp_path_factory.mktemp("attributes") / "m", properties, "--local-runtime")
    yield server.wait_ready()
    server.stop()


def post(server: Server, attributes: str | bytes, body: bytes = BODY) -> requests.Response:
    headers = {HEADER: attributes, "Content-Type": "application/json"}
    return requests.post(f"{server.url}/invocations", data=body, headers=headers, timeout=60)


@pytest.mark.parametrize(
    ("text", "attributes"),
    [
        ("", {}),
        ("trace=a", {"trace": "a"}),
        ("trace=a;tenant=b", {"trace": "a", "tenant": "b"}),
        (" trace = a ; tenant = b ;", {"trace": "a", "tenant": "b"}),
        ("trace=a,tenant=b", {"trace": "a", "tenant": "b"}),
        ("trace=7f3a;", {"trace": "7f3a"}),
        ("trace=a,tenant=b;", {"trace": "a,tenant=b"}),
        ("trace=a,b", {"trace": "a,b"}),
        ("trace=a,tenant=b;x=c", {"trace": "a,tenant=b", "x": "c"}),
        ("trace=a=b;trace=c", {"trace": "c"}),
        ('{"trace": "a", "n": 1.5, "yes": true}', {"trace": "a", "n": "1.5", "yes": "true"}),
        ('{"trace": ["a"]}', {}),
        ('{"trace": ', {}),
        ("Trace ID: 7", {}),
        (";;=;=b", {}),
    ],
)
def test_lists_of_all_containers_are_read(text: str, attributes: dict[str, str]) -> None:
    assert parse_attributes(text) == attributes


@given(st.dictionaries(st.text(max_size=60), st.text(max_size=600), max_size=9))
def test_what_is_echoed_is_a_header(attributes: dict[str, str]) -> None:
    text = render_attributes(attributes)
    assert len(text) <= MAX_LENGTH
    assert text.isascii()
    assert not text or text.isprintable()
    assert len(text.split(";")) <= max(1, len(attributes))


def test_allowed_keys_come_back_and_are_logged(server: Server) -> None:
    client = runtime_client(server.url)
    for attributes in ("trace=7;secret=1;tenant=x y", "secret=1,tenant=x y,trace=7", '{"tenant":"x y","trace":7}'):
        answer = client.invoke_endpoint(
            EndpointName="m",
            ContentType="application/json",
            Body=BODY,
            CustomAttributes=attributes,
            InferenceId=f"echoed {len(attributes)}",
        )
        assert answer["CustomAttributes"] == "trace=7;tenant=x y"
        entry = server.log_entry(f"echoed {len(attributes)}")
        assert entry["custom_attributes"] == {"trace": "7", "tenant": "x y"}
    assert "secret" not in server.log
    refused = post(server, "trace=8", b"{")
    assert (refused.status_code, refused.headers[HEADER]) == (424, "trace=8")


def test_answers_that_were_cut_say_so_to_clients_of_sagemaker(server: Server) -> None:
    body = b'{"inputs": "hello", "parameters": {"ignore_eos_token": true, "max_new_tokens": 5000}}'
    answer = post(server, "trace=7", body)
    assert answer.status_code == 200, answer.text
    assert answer.headers[HEADER].startswith("x-lmi-truncated=response_deadline;trace=7;x-lmi-continuation=")


def test_hostile_attributes_are_refused_or_ignored(server: Server) -> None:
    ignored = ("route=/adapters", "handler=x;trace", "=;=;=", '{"trace": {"a": 1}}', "x-lmi-truncated=no", "trace\tx")
    for text in ignored:
        answer = post(server, text)
        assert answer.status_code == 200, text
        assert HEADER not in answer.headers
    assert post(server, "trace=" + "x" * 1018).headers[HEADER] == "trace=" + "x" * 1018
    for text, cause in (("trace=" + "x" * 1019, "1024 characters"), ("trace=\xe9", "ASCII")):
        answer = post(server, text.encode("latin-1"))
        assert answer.status_code == 424
        assert cause in answer.json()["error"]
        assert HEADER not in answer.headers
    huge = post(server, "x" * 10_000)
    assert 400 <= huge.status_code < 500


@pytest.mark.parametrize("value", [b"trace=a\rX-Evil: 1", b"trace=a\x00b", b"trace=" + b"x" * (2 << 20)])
def test_attributes_that_are_no_header_are_refused(value: bytes, server: Server) -> None:
    head = b"POST /invocations HTTP/1.1\r\nHost: localhost\r\n" + HEADER.encode() + b": " + value
    with connect(server) as sock:
        try:
            sock.sendall(head + b"\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY)
            answer = sock.recv(4096)
        except ConnectionError:  # it was refused before all of it was sent
            answer = b"HTTP/1.1 431"
    assert answer.startswith(b"HTTP/1.1 4"), answer
    assert b"x-evil" not in answer.lower()
    assert server.invoke({"inputs": "a", "parameters": {"max_new_tokens": 1}}).status_code == 200


def test_keys_of_the_option_are_checked(model_dir: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(model_dir, "option.custom_attributes=a,b c\noption.tenant_attribute=d,e\n")
    for mistake in ("option.custom_attributes: b c", "option.tenant_attribute: d,e"):
        assert says(caught.value, mistake)


def test_attributes_of_the_server_are_its_own(server: Server) -> None:
    """A continuation token that comes back would be taken for that of the answer, and be sent for ever."""
    answer = post(server, "trace=a;x-lmi-stage=b;X-LMI-Stage=c")
    assert (answer.status_code, answer.headers[HEADER]) == (200, "trace=a")
