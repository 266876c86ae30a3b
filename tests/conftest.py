"""Fixtures: real servers, each in a process of its own."""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_thread import Engine
from groups import Groups, repeated
from hypothesis import HealthCheck, settings
from picture_server import PictureServer
from serving import API_KEY, Server, StartServer
from waiting import wait_until
from werkzeug.local import LocalProxy

from lmi_handlers.engine.client import EngineClient
from lmi_handlers.engine.status import EngineState
from lmi_handlers.model_files.cache_dir import default_cache_dir
from lmi_handlers.model_files.locate import DEFAULT_MODEL_NAME
from lmi_handlers.model_files.resolve import resolve_model

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without job control starts background jobs so, and all servers of the tests would ignore Ctrl-C, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadlines, because test machines may be slow. CI uses the same examples in every run, so failures are reproducible.
# On other machines each run has new ones.
settings.register_profile("default", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if "CI" in os.environ else "default")


@pytest.fixture(scope="module", autouse=True)
def garbage() -> Iterator[None]:
    """Collect a module's garbage at its end: sockets and processes that its tests left open fail it, and not a later one.

    What exists before, such as all collected tests, is left out, so this takes milliseconds.
    """
    gc.freeze()
    yield
    gc.collect()


@pytest.fixture(scope="module")
def without_flask() -> Iterator[None]:
    """Hide Flask from vLLM in this process, as in an engine process, which does not import it.

    vLLM reads every attribute of every module. Flask's proxies raise an error if they are read outside a request, and the
    library of llvmlite, which an earlier model in this process may have imported, takes every name for a C function.
    """
    hidden = {
        name: module
        for name, module in list(sys.modules.items())
        if name == "llvmlite.binding.ffi"
        or any(type(value) is LocalProxy for value in list(getattr(module, "__dict__", {}).values()))
    }
    for name in hidden:
        del sys.modules[name]
    yield
    sys.modules.update(hidden)


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """Start servers that are stopped after the test: `start_server(properties, *arguments)`."""
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
    """A shared server on the echo backend. Prompts can trigger faults, but tests must leave the server as they found it."""
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
    """Like `echo_server`, but `/invocations` uses TGI's format, and there is no runtime API."""
    properties = "option.rolling_batch=echo\noption.echo_faults=true\noption.max_model_len=4096\n"
    server = Server(tmp_path_factory.mktemp("compat") / "m", properties + "option.tgi_compat=true\n")
    yield server.wait_ready()
    server.stop()


@pytest.fixture(scope="session")
def guarded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that requires an API key."""
    properties = "option.rolling_batch=echo\n"
    server = Server(
        tmp_path_factory.mktemp("guarded") / "m", properties, "--local-runtime", environ={"API_KEY": API_KEY}
    )
    yield server.wait_ready()
    server.stop()


@pytest.fixture(scope="session")
def loading_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that accepts connections but never finishes loading its model."""
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


@pytest.fixture
def trusted(pictures: PictureServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trust the certificate of `pictures`."""
    monkeypatch.setenv("SSL_CERT_FILE", str(pictures.authority))


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with two random layers, which can be split over two GPUs, and the small model's tokenizer."""
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
    """A shared server on the random checkpoint. Tests must leave it as they found it."""
    properties = f"option.model_id={tiny_llama}\noption.rolling_batch=scheduler\noption.dtype=fp32\n"
    server = Server(tmp_path_factory.mktemp("tiny") / "m", properties)
    yield server.wait_ready()
    server.stop()


@pytest.fixture(scope="session")
def tiny_vllm_server(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A shared server on vLLM with the random checkpoint and an adapter, for which there is no compiler."""
    from lora import write_adapter

    directory = tmp_path_factory.mktemp("vllm") / "m"
    write_adapter(directory / "adapters" / "loud", 0.5, layers=2, width=128)
    (directory / "adapters" / ".hidden").mkdir()
    properties = (
        f"option.model_id={tiny_llama}\noption.rolling_batch=vllm\noption.dtype=fp32\noption.enforce_eager=true\n"
        "option.kv_cache_memory_bytes=128M\noption.max_model_len=2048\noption.enable_lora=true\n"
    )
    environ = {"CXX": str(directory / "nowhere"), "TORCHINDUCTOR_CACHE_DIR": str(directory / "compiled")}
    server = Server(directory, properties, environ=environ)
    yield server.wait_ready(500)
    server.stop()


ROLLING_BATCH = {
    "scheduler": "option.dtype=fp32\n",
    # On CPUs, vLLM compiles for a minute and takes most of the memory unless these options are set.
    "vllm": "option.dtype=fp32\noption.enforce_eager=true\noption.kv_cache_memory_bytes=512M\noption.max_model_len=2048\n",
}
"""Engines for the real model, each with options for exact results and a quick start."""


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Keep the exit status beside the names of the failed tests, for `tests/support/failed_modules.py`."""
    cache = getattr(session.config, "cache", None)
    if cache is not None and not hasattr(session.config, "workerinput"):
        cache.set("lmi/exit_status", int(exitstatus))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups:
    return Groups(config, log)


TESTS = Path(__file__).parent

_MAY_BE_LONG = re.compile(r"mark\.(long|needs)|model_server|\.MARKS")


@functools.cache
def may_have_long_tests(path: Path) -> bool:
    """Whether a module has the name of one of the marks and fixtures that make a test `long`."""
    return _MAY_BE_LONG.search(path.read_text()) is not None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where only long tests run, do not import the other modules, which would take as long as all of a module's tests."""
    if (
        config.option.markexpr == "long"
        and collection_path.suffix == ".py"
        and not may_have_long_tests(collection_path)
    ):
        return True
    return None


def pytest_configure(config: pytest.Config) -> None:
    """Let each test process begin its collection at another module, so that they do not all compile the same ones."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None or [Path(path).resolve() for path in config.args] != [TESTS]:
        return
    modules = sorted(str(path) for path in TESTS.glob("*/**/test_*.py"))
    begin = int(worker.removeprefix("gw")) * len(modules) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    config.args = modules[begin:] + modules[:begin]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave garbage while tests are collected. There is little, and looking for it would take a quarter of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before pytest brings tests together that share a fixture
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests that need an optional library as `long`, and tests that use the real model as `model`.

    Tests with the same id are an error of their collection, and so are long tests in a module that does not look so.
    The order is the same in all test processes.
    """
    items.sort(key=lambda item: str(item.path))
    for nodeid in repeated(item.nodeid for item in items):
        cause = f"several tests have the id {nodeid}, and only one of them would run"
        config.hook.pytest_collectreport(report=pytest.CollectReport(nodeid, "failed", cause, []))
    for item in items:
        if item.get_closest_marker("needs") is not None:
            item.add_marker(pytest.mark.long)
        if "model_server" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.model)
    for path in {item.path for item in items if item.get_closest_marker("long") is not None}:
        if not may_have_long_tests(path):
            cause = f"`make test-long` leaves {path.name} out, although it has long tests: see `may_have_long_tests`"
            config.hook.pytest_collectreport(report=pytest.CollectReport(str(path), "failed", cause, []))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests whose library is not installed. On CI they fail instead, because CI installs all libraries."""
    for mark in item.iter_markers("needs"):
        (library,) = mark.args
        if importlib.util.find_spec(library) is None:
            give_up = pytest.fail if "CI" in os.environ else pytest.skip
            give_up(f"{library} is not installed; `make test-long` installs it")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rolling-batch",
        default=",".join(ROLLING_BATCH),
        help="option.rolling_batch of the servers on the real model, comma-separated",
    )
    parser.addoption(
        "--fault-rounds",
        type=int,
        help="number of rounds in tests/system/test_faults.py; by default, each fault occurs once",
    )
    parser.addoption(
        "--soak-minutes", type=float, default=0.5, help="how long the soak of tests/system/test_faults.py is"
    )
    parser.addoption(
        "--fault-seed", type=int, default=10, help="seed of the random choices in tests/system/test_faults.py"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests on the real model once per engine, or on one engine if they use `model_server_once`."""
    if "model_server" in metafunc.fixturenames:
        names = metafunc.config.getoption("--rolling-batch").split(",")
        if "model_server_once" in metafunc.fixturenames:
            names = names[:1]
        engines = [pytest.param(name, marks=pytest.mark.needs("vllm") if name == "vllm" else []) for name in names]
        metafunc.parametrize("model_server", engines, indirect=True, scope="session")


@pytest.fixture(scope="session")
def model_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on the real small model, in float32."""
    rolling_batch: str = getattr(request, "param", "scheduler")  # for tests that request the fixture by name
    properties = f"option.rolling_batch={rolling_batch}\n{ROLLING_BATCH[rolling_batch]}"
    server = Server(tmp_path_factory.mktemp("model") / "smollm2", properties, "--local-runtime")
    server.name = DEFAULT_MODEL_NAME
    yield server.wait_ready(timeout=300)
    server.stop()


@pytest.fixture(scope="session")
def model_server_once(model_server: Server) -> Server:
    """The same server, for tests whose result does not depend on the engine."""
    return model_server


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """An empty model directory. The model is named after it."""
    directory = tmp_path / "my-model"
    directory.mkdir()
    return directory
