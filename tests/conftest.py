"""Fixtures: real servers, each in a process of its own."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_thread import Engine
from hypothesis import HealthCheck, settings
from picture_server import PictureServer
from serving import API_KEY, Server, StartServer
from waiting import wait_until
from werkzeug.local import LocalProxy

from lmi_handlers.engine.cache_dir import default_cache_dir
from lmi_handlers.engine.client import EngineClient, EngineState
from lmi_handlers.engine.model_files import DEFAULT_MODEL_NAME
from lmi_handlers.engine.model_store import resolve_model

# Machines that run tests are slow at times. CI takes the same examples each time: what fails there fails for everyone.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci" if "CI" in os.environ else "default")


@pytest.fixture(scope="module")
def without_flask() -> Iterator[None]:
    """For vLLM in this process: it looks at every name of every module, which Flask's proxies do not stand outside of a request.

    An engine process has no Flask in it.
    """
    hidden = {
        name: module
        for name, module in list(sys.modules.items())
        if any(type(value) is LocalProxy for value in list(getattr(module, "__dict__", {}).values()))
    }
    for name in hidden:
        del sys.modules[name]
    yield
    sys.modules.update(hidden)


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """Start servers that end with the test; `start_server(properties, *arguments)`."""
    servers: list[Server] = []

    def start(properties: str, *arguments: str, ready: bool = True, environ: dict[str, str] | None = None) -> Server:
        server = Server(tmp_path / f"m{len(servers)}", properties, *arguments, environ=environ)
        servers.append(server)
        return server.wait_ready() if ready else server

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def echo_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on the echo backend whose prompts may ask for faults; for tests that leave it as they found it."""
    properties = (
        "option.rolling_batch=echo\noption.echo_faults=true\noption.max_model_len=4096\nmax_request_size=1048576\n"
    )
    server = Server(tmp_path_factory.mktemp("echo") / "m", properties, "--local-runtime")
    yield server.wait_ready()
    server.stop()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An echo engine in the test process."""
    engine = Engine(tmp_path_factory.mktemp("engine") / "engine.sock")
    engine.start()
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def client(engine: Engine) -> EngineClient:
    """A client that is connected to `engine`."""
    client = EngineClient(engine.path, lambda info: None)
    client.start()
    wait_until(lambda: client.state is EngineState.READY)
    return client


@pytest.fixture(scope="session")
def compat_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """As `echo_server`, but `/invocations` speaks TGI, and there is no runtime API."""
    properties = "option.rolling_batch=echo\noption.echo_faults=true\noption.max_model_len=4096\n"
    server = Server(tmp_path_factory.mktemp("compat") / "m", properties + "option.tgi_compat=true\n")
    yield server.wait_ready()
    server.stop()


@pytest.fixture(scope="session")
def guarded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that wants the API key."""
    properties = "option.rolling_batch=echo\n"
    server = Server(
        tmp_path_factory.mktemp("guarded") / "m", properties, "--local-runtime", environ={"API_KEY": API_KEY}
    )
    yield server.wait_ready()
    server.stop()


@pytest.fixture(scope="session")
def loading_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that takes connections and whose model is never loaded."""
    properties = (
        "option.rolling_batch=echo\noption.echo_fault=slow_load\noption.echo_load_seconds=86400\n"
        "model_loading_timeout=86400\n"
    )
    server = Server(tmp_path_factory.mktemp("loading") / "m", properties)
    yield server.wait_listening()
    server.stop()


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PictureServer]:
    """A server of images."""
    server = PictureServer(tmp_path_factory.mktemp("authority") / "ca.pem")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of two random layers that two workers can share, with the small model's tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    cache_dir = default_cache_dir(os.environ)
    source = resolve_model(None, model_dir=None, revision=None, cache_dir=cache_dir, report=lambda phase: None)
    path = tmp_path_factory.mktemp("tiny") / "llama"
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        bos_token_id=1,
        eos_token_id=2,
    )
    config.dtype = torch.bfloat16
    LlamaForCausalLM(config).save_pretrained(path)  # type: ignore[no-untyped-call]
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, path)
    return path


@pytest.fixture(scope="session")
def tiny_server(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on the checkpoint of random layers; for tests that leave it as they found it."""
    properties = f"option.model_id={tiny_llama}\noption.rolling_batch=scheduler\noption.dtype=fp32\n"
    server = Server(tmp_path_factory.mktemp("tiny") / "m", properties)
    yield server.wait_ready()
    server.stop()


ROLLING_BATCH = {
    "scheduler": "option.dtype=fp32\n",
    # vLLM takes a minute to compile for a CPU, and most of the memory unless it is told.
    "vllm": "option.dtype=fp32\noption.enforce_eager=true\noption.kv_cache_memory_bytes=512M\noption.max_model_len=2048\n",
}
"""Engines that the real model is served with, and the options that make them exact and quick to start."""


@pytest.hookimpl(tryfirst=True)  # before `-m` is heeded
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs a library that `make test` does not install is long; what asks the real model needs it."""
    for item in items:
        if item.get_closest_marker("needs") is not None:
            item.add_marker(pytest.mark.long)
        if "model_server" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.model)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests whose library is not installed. On CI, which installs all of them, they fail."""
    for mark in item.iter_markers("needs"):
        (library,) = mark.args
        if importlib.util.find_spec(library) is None:
            give_up = pytest.fail if "CI" in os.environ else pytest.skip
            give_up(f"{library} is not installed; `make test-long` installs it")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rolling-batch",
        default=",".join(ROLLING_BATCH),
        help="option.rolling_batch of the servers on the real model: one of these, or several",
    )
    parser.addoption("--fault-rounds", type=int, help="rounds of tests/test_faults.py; by default each fault has one")
    parser.addoption("--fault-seed", type=int, default=10, help="what its random choices follow from")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What speaks to the real model does so over each engine, or once where the engine makes no difference."""
    if "model_server" in metafunc.fixturenames:
        names = metafunc.config.getoption("--rolling-batch").split(",")
        if "model_server_once" in metafunc.fixturenames:
            names = names[:1]
        engines = [pytest.param(name, marks=pytest.mark.needs("vllm") if name == "vllm" else []) for name in names]
        metafunc.parametrize("model_server", engines, indirect=True, scope="session")


@pytest.fixture(scope="session")
def model_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on the real small model, in float32."""
    rolling_batch: str = getattr(request, "param", "scheduler")  # where a test asks for the fixture by its name
    properties = f"option.rolling_batch={rolling_batch}\n{ROLLING_BATCH[rolling_batch]}"
    server = Server(tmp_path_factory.mktemp("model") / "smollm2", properties, "--local-runtime")
    server.name = DEFAULT_MODEL_NAME
    yield server.wait_ready(timeout=300)
    server.stop()


@pytest.fixture(scope="session")
def model_server_once(model_server: Server) -> Server:
    """The same on one engine, where the engine makes no difference."""
    return model_server
