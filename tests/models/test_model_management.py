"""A server that SageMaker loads models into: its API, an address of its own, memory, and boto3."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from facts import raises, says
from model_store import ECHO, StoreServer
from runtime_client import runtime_client
from serving import API_KEY, free_port
from waiting import wait_until

from lmi_handlers.config.server_settings import ServerSettings
from lmi_handlers.core.errors import ConfigError

KEY = {"Authorization": f"Bearer {API_KEY}"}


@pytest.fixture(scope="module")
def management() -> str:
    return f"http://127.0.0.1:{free_port()}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, management: str) -> Iterator[StoreServer]:
    environ = {
        "SAGEMAKER_MULTI_MODEL": "true",
        "SERVING_MANAGEMENT_ADDRESS": management,
        "LMI_MAX_LOADED_MODELS": "2",
        "API_KEY": API_KEY,
        "LMI_CACHE_DIR": str(tmp_path_factory.mktemp("cache")),
    }
    directory = tmp_path_factory.mktemp("mme")
    server = StoreServer(directory, {"m1": ECHO, "m2": ECHO, "m3": ECHO}, "--local-runtime", environ=environ)
    with tarfile.open(server.store / "packed.tar.gz", "w:gz") as archive:
        archive.add(server.store / "m1" / "serving.properties", "serving.properties")
    with tarfile.open(server.store / "hostile.tar.gz", "w:gz") as archive:
        archive.add(server.store / "m1" / "serving.properties", "../outside")
    yield server.wait_ready()
    server.stop()


def load(management: str, name: str, url: str) -> requests.Response:
    body = {"model_name": name, "url": url}
    return requests.post(f"{management}/models", json=body, headers=KEY, timeout=60)


def test_models_come_and_go_as_sagemaker_asks(server: StoreServer, management: str) -> None:
    assert server.ping().status_code == 200  # empty, and healthy
    assert server.ping().json() == {}
    assert requests.get(f"{management}/models", timeout=20).status_code == 401
    assert server.ask("GET", "/models", headers=KEY).status_code == 404  # not on this address
    url = str(server.store / "m1")
    assert load(management, "h1", url).status_code == 200
    assert load(management, "h1", url).status_code == 409
    described = requests.get(f"{management}/models/h1", headers=KEY, timeout=20)
    assert described.json() == {"modelName": "h1", "modelUrl": url}
    answer = server.invoke({"inputs": "hi"}, path="/models/h1/invoke", headers=KEY)
    assert answer.json() == {"generated_text": "hi"}
    assert requests.get(f"{management}/models/h2", headers=KEY, timeout=20).status_code == 404
    assert server.invoke({"inputs": "hi"}, path="/models/h2/invoke", headers=KEY).status_code == 404
    assert requests.delete(f"{management}/models/h1", headers=KEY, timeout=60).status_code == 200
    assert requests.delete(f"{management}/models/h1", headers=KEY, timeout=60).status_code == 404


def test_a_model_that_needs_more_memory_than_is_free(server: StoreServer, management: str) -> None:
    server.add("large", ECHO + "option.kv_cache_memory_bytes=100000G\n")
    answer = load(management, "large", "large")
    assert answer.status_code == 507
    assert says(answer.json()["message"], "model large 107,374,182,400,000 memory")
    assert requests.get(f"{management}/models", headers=KEY, timeout=20).json() == {"models": []}


def test_archives(server: StoreServer, management: str) -> None:
    assert load(management, "packed", "packed.tar.gz").status_code == 200
    client = runtime_client(server.url, API_KEY)
    for target in ("packed", "packed.tar.gz"):
        answer = client.invoke_endpoint(
            EndpointName="e", TargetModel=target, ContentType="application/json", Body=b'{"inputs": "boto"}'
        )
        assert answer["Body"].read() == b'{"generated_text": "boto"}'
    assert requests.delete(f"{management}/models/packed", headers=KEY, timeout=60).status_code == 200
    hostile = load(management, "hostile", "hostile.tar.gz")
    assert hostile.status_code == 400
    assert "not a safe file name" in hostile.json()["message"]


def test_the_least_recently_used_model_makes_room(server: StoreServer, management: str) -> None:
    for name in ("m1", "m2"):
        assert load(management, name, name).status_code == 200
    wait_until(lambda: load(management, "m3", "m3").status_code in (200, 409))  # 507 while m1 was just used
    assert sorted(server.states().values()) == ["Healthy", "Healthy", "Sleeping"]
    (asleep,) = (name for name, state in server.states().items() if state == "Sleeping")
    assert asleep == "m1"

    def wakes() -> bool:
        return server.invoke({"inputs": "hi"}, path="/predictions/m1", headers=KEY).status_code == 200

    wait_until(wakes)  # 507 while the others were just used
    assert server.states()["m2"] == "Sleeping"
    for name in ("m1", "m2", "m3"):
        assert requests.delete(f"{management}/models/{name}", headers=KEY, timeout=60).status_code == 200


def test_the_management_address_is_another_and_pages_cannot_reach_it(tmp_path: Path) -> None:
    port = free_port()
    environ = {"LMI_MANAGEMENT_ADDRESS": f"127.0.0.1:{port}", "SERVING_LOAD_MODELS": "NONE"}
    server = StoreServer(tmp_path, {}, "--host", "0.0.0.0", environ=environ)
    server.wait_ready()
    try:
        elsewhere = server.ask("GET", "/models", headers={"Host": f"127.0.0.1:{port}"})
        assert elsewhere.status_code == 404
        assert says(elsewhere.json()["message"], "LMI_MANAGEMENT_ADDRESS models loaded")
        rebound = {"Host": f"rebound.example:{port}"}
        assert requests.get(f"http://127.0.0.1:{port}/models", headers=rebound, timeout=20).status_code == 403
        assert requests.get(f"http://127.0.0.1:{port}/models", timeout=20).json() == {"models": []}
        assert server.ask("GET", "/ping", headers=rebound).status_code == 200  # that address is open to all
    finally:
        server.stop()


def test_a_management_address_with_the_port_of_the_server(tmp_path: Path) -> None:
    environ = {"LMI_MODEL_STORE": str(tmp_path), "LMI_PORT": "9000", "LMI_MANAGEMENT_ADDRESS": "127.0.0.2:9000"}
    with raises(ConfigError, "port 9000 server's"):
        ServerSettings.from_environ(environ)
