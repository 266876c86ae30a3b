"""The remote backend against a server that counts, and that misbehaves if it is asked to."""

from __future__ import annotations

import asyncio
import shlex
import socket
import subprocess
import sys
import threading
from ast import literal_eval
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import token_server
import token_server as faults
from facts import raises, says
from serving import StartServer
from serving_properties import load as properties_of
from serving_properties import serving_properties
from token_server import VOCAB_SIZE, SGLangServer, TokenServer
from waiting import still_running, wait_until

from backends.base import Backend, ModelFiles
from backends.remote.address import engine_key
from backends.remote.backend import RemoteBackend
from backends.remote.client import Client, ConnectionFailed, reason
from backends.remote.llama_cpp import LlamaCppProtocol
from backends.remote.options import KEY_VARIABLE
from backends.remote.protocol import RemoteSequence
from backends.remote.sglang import SGLangProtocol
from backends.remote.streams import longest_silence
from backends.remote.vllm import VLLMProtocol
from backends.token_limits import token_limits
from lmi_handlers.config.options import ServingProperties
from lmi_handlers.config.store_settings import OF_STORE_VARIABLE
from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.core.errors import ConfigError, EngineDead
from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.core.request import EncodedPrompt, TokenRequest
from lmi_handlers.core.sampling_params import SamplingParams, StructuredOutputs
from lmi_handlers.engine.settings import EngineSettings
from lmi_handlers.model_files.secure_mode import SecureMode
from lmi_handlers.preflight.checks import SOCKET
from lmi_handlers.testing.driver import Driver, tokens

FILES = ModelFiles(path=None, eos_token_ids=(2,), vocab_size=VOCAB_SIZE)


@pytest.fixture
def remote() -> Iterator[TokenServer]:
    server = TokenServer()
    yield server
    server.stop()


def load(url: str, files: ModelFiles = FILES, **options: Any) -> RemoteBackend:
    return RemoteBackend.load(files, serving_properties(engine_url=url, **options), lambda phase: None)


@pytest.fixture
def backend(remote: TokenServer) -> Iterator[RemoteBackend]:
    backend = load(remote.url)
    yield backend
    backend.close()


@pytest.fixture
def driver(backend: RemoteBackend) -> Driver:
    return Driver(backend, FILES.eos_token_ids, patience=60.0)


def last_output(backend: Backend) -> list[TokenOutput]:
    """Step until the only sequence ends. Returns its outputs."""
    outputs: list[TokenOutput] = []

    def step() -> bool:
        outputs.extend(backend.step())
        return bool(outputs and outputs[-1].finish_reason)

    wait_until(step)
    return outputs


def failure(backend: RemoteBackend, prompt: list[int], **params: Any) -> tuple[str | None, bool]:
    """Run a sequence that fails. Returns why, and whether the client is to blame."""
    sampling_params = SamplingParams(**{"temperature": 0.0, "max_tokens": 8} | params)
    backend.add_request(TokenRequest(request_id="fails", prompt=EncodedPrompt(prompt), sampling_params=sampling_params))
    output = last_output(backend)[-1]
    assert (output.request_id, output.finish_reason) == ("fails", FinishReason.ERROR)
    assert backend.step() == []
    return output.error, output.invalid_request


@pytest.mark.parametrize("where", ["{port}", "{socket}"])
def test_command(tmp_path: Path, where: str) -> None:
    program = shlex.join([sys.executable, token_server.__file__])
    files = msgspec.structs.replace(FILES, runtime_dir=tmp_path)
    backend = RemoteBackend.load(files, serving_properties(engine_command=f"{program} {where}"), lambda phase: None)
    assert [path.is_socket() for path in tmp_path.iterdir()] == [True] * (where == "{socket}")
    longest = len(Path(SOCKET).name)
    assert all(len(path.name) <= longest for path in tmp_path.iterdir()), "the start has checked that there is room"
    assert tokens(Driver(backend, (2,), 60.0).generate([8], max_tokens=3)) == [9, 10, 11]
    (engine,) = (process for process in psutil.Process().children() if token_server.__file__ in process.cmdline())
    engine.kill()
    with raises(EngineDead, "remote ended SIGKILL"):
        wait_until(backend.check_health)
    backend.close()
    assert list(tmp_path.iterdir()) == []


def test_command_ends_with_its_parent() -> None:
    program = shlex.join([sys.executable, token_server.__file__])
    code = (
        "from pathlib import Path\nfrom backends.remote.command import StartedEngine, engine_command\n"
        f"engine = StartedEngine(engine_command({program + ' {port}'!r}), {{}}, Path())\n"
        "print(flush=True)\nimport time\ntime.sleep(3600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    parent.stdout.readline()
    wait_until(lambda: any(token_server.__file__ in child.cmdline() for child in psutil.Process(parent.pid).children()))
    family = psutil.Process(parent.pid).children(recursive=True)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert still_running(family) == []


def test_command_that_ends_while_it_loads() -> None:
    properties = serving_properties(engine_command=f"{sys.executable} -c exit(3) {{port}}")
    with raises(ConfigError, "option.engine_command: ended loading 3"):
        RemoteBackend.load(FILES, properties, lambda phase: None)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("vllm 'serve {port}", "option.engine_command split"),
        ("vllm serve --port {port} --uds {socket}", "option.engine_command {port} {socket}"),
        ("", "option.engine_command {port}"),
        ("vllm serve --port 8000", "option.engine_command {port}"),
        ("{port}", "option.engine_command {port}"),
        ("no-such-program --port {port}", "option.engine_command: 'no-such-program'"),
    ],
)
def test_wrong_command(command: str, words: str) -> None:
    with raises(ConfigError, words):
        RemoteBackend.check_options(serving_properties(engine_command=command))


def test_command_and_address() -> None:
    with raises(ConfigError, "option.engine_url option.engine_command"):
        RemoteBackend.check_options(serving_properties(engine_url="http://host", engine_command="a {port}"))


@pytest.mark.parametrize("option", ["engine_url=http://host", "engine_command=sh -c {port}"])
def test_secure_mode(tmp_path: Path, option: str) -> None:
    loaded = properties_of(tmp_path, f"option.rolling_batch=remote\noption.{option}\n")
    with raises(ConfigError, f"option.{option.partition('=')[0]} secure mode"):
        SecureMode(enabled=True, controls=()).check(loaded, None, has_custom_code=False)


def test_what_the_remote_is_asked_for(remote: TokenServer, driver: Driver) -> None:
    request = TokenRequest(
        request_id="a",
        prompt=EncodedPrompt([5, 6], cache_salt="pepper"),
        sampling_params=SamplingParams(
            max_tokens=3, seed=2**63 + 1, logprobs=2, stop_token_ids=(77,), bad_words=("no",), logit_bias={9: 1.5}
        ),
    )
    driver.backend.add_request(request)
    found = last_output(driver.backend)
    assert [token for output in found for token in output.token_ids] == [7, 8, 9]
    assert found[0].logprobs == [-0.5]
    assert found[0].top_logprobs == [[(7, -0.5), (8, -1.5)]]
    assert found[-1].finish_reason is FinishReason.LENGTH
    (body,) = remote.bodies
    params = body.pop("sampling_params")
    assert body == {"token_ids": [5, 6], "stream": True, "cache_salt": "pepper"}
    assert params == {
        "max_tokens": 3,
        "min_tokens": 0,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "ignore_eos": False,
        "seed": 1,
        "logprobs": 3,
        "logit_bias": {"9": 1.5},
        "bad_words": ["no"],
        "stop_token_ids": [77, 2],
        "detokenize": False,
    }


def test_what_was_generated_before_is_part_of_the_prompt(remote: TokenServer, driver: Driver) -> None:
    outputs = driver.generate([5, 6], generated=[7, 8], max_tokens=4, min_tokens=3)
    assert tokens(outputs) == [9, 10]
    assert outputs[-1].finish_reason is FinishReason.LENGTH
    (body,) = remote.bodies
    assert body["token_ids"] == [5, 6, 7, 8]
    assert (body["sampling_params"]["max_tokens"], body["sampling_params"]["min_tokens"]) == (2, 1)


@pytest.mark.parametrize(("generated", "cached"), [((), 1), ((7, 8), 2)])
def test_cached_tokens_are_those_of_the_prompt(generated: tuple[int, ...], cached: int) -> None:
    params = SamplingParams(max_tokens=9)
    request = TokenRequest(
        request_id="a", prompt=EncodedPrompt([5, 6, *generated]), sampling_params=params, generated=generated
    )
    assert RemoteSequence(request, 3, 0, stop_token_ids=()).cached(100) == cached


def sequence(room: int, /, **params: Any) -> RemoteSequence:
    request = TokenRequest(request_id="a", prompt=EncodedPrompt([5]), sampling_params=SamplingParams(**params))
    capabilities = Capabilities(backend="remote", max_model_len=1 + room, vocab_size=100)
    return RemoteSequence(request, *token_limits(request, capabilities), stop_token_ids=())


def test_limits_within_those_of_remotes() -> None:
    """There is less room than asked for, and some remotes compute with 32 bits."""
    wanted = sequence(3, min_tokens=5, max_tokens=9, top_k=2**40)
    params = VLLMProtocol().body(wanted)["sampling_params"]
    assert (params["min_tokens"], params["max_tokens"], params["top_k"]) == (3, 3, 2**30)
    params = SGLangProtocol().body(wanted)["sampling_params"]
    assert (params["min_new_tokens"], params["max_new_tokens"], params["top_k"]) == (3, 3, 2**30)
    assert LlamaCppProtocol().body(wanted)["top_k"] == 2**30


@pytest.mark.parametrize(("given", "sent"), [(5e-324, 1e-20), (1.5, 1.5), (1e300, 1e20)])
def test_numbers_that_32_bits_do_not_hold(given: float, sent: float) -> None:
    """The remote would divide logits by 0, or by infinity."""
    wanted = sequence(3, repetition_penalty=given, top_p=min(given, 1.0), typical_p=min(given, 1.0), temperature=1e-40)
    params = VLLMProtocol().body(wanted)["sampling_params"]
    assert (params["repetition_penalty"], params["top_p"], params["temperature"]) == (sent, min(sent, 1.0), 0.0)
    params = SGLangProtocol().body(wanted)["sampling_params"]
    assert (params["top_p"], params["temperature"]) == (min(sent, 1.0), 0.0)
    params = LlamaCppProtocol().body(wanted)
    assert (params["repeat_penalty"], params["top_p"], params["typical_p"]) == (sent, min(sent, 1.0), min(sent, 1.0))
    assert params["temperature"] == 0.0


def test_end_of_sequence_ids_beyond_the_vocabulary(remote: TokenServer) -> None:
    backend = load(remote.url, ModelFiles(path=None, eos_token_ids=(2, VOCAB_SIZE), vocab_size=VOCAB_SIZE))
    Driver(backend, (2,), 60.0).generate([8], max_tokens=1, ignore_eos=False)
    backend.close()
    assert remote.bodies[0]["sampling_params"]["stop_token_ids"] == [2]


def test_grammars() -> None:
    schema = '{"type": "integer", "maximum": 100000000000000000000000}'
    wanted = sequence(3, structured_outputs=StructuredOutputs(json=schema))
    assert schema.encode() in msgspec.json.encode(LlamaCppProtocol().body(wanted))
    assert VLLMProtocol().body(wanted)["reasoning_ended"] is True
    choice = sequence(3, structured_outputs=StructuredOutputs(choice=("\N{GRINNING FACE}",)))
    assert SGLangProtocol().body(choice)["sampling_params"]["ebnf"] == 'root ::= "\N{GRINNING FACE}"'


def test_answers_that_come_as_a_whole_may_take_long() -> None:
    running = [sequence(4000), sequence(10)]
    assert longest_silence(VLLMProtocol(), running, 60) == 300
    assert longest_silence(LlamaCppProtocol(), running, 60) == 4300
    assert longest_silence(LlamaCppProtocol(), [], 60) == 300


@pytest.mark.parametrize("incremental", [False, True])
def test_sglang(monkeypatch: pytest.MonkeyPatch, incremental: bool) -> None:
    monkeypatch.setattr(SGLangServer, "incremental", incremental)
    server = SGLangServer()
    backend = load(server.url)
    assert "seed" not in backend.capabilities.unsupported
    driver = Driver(backend, FILES.eos_token_ids, patience=60.0)
    outputs = driver.generate([5, 6], max_tokens=3, seed=2**63 + 1, logprobs=2, logit_bias={9: 1.5})
    assert [(output.token_ids, output.logprobs, output.top_logprobs) for output in outputs] == [
        ([token], [-0.5], [[(token, -0.5), (token + 1, -1.5)]]) for token in (7, 8, 9)
    ]
    assert [output.num_cached_tokens for output in outputs] == [1, None, None]
    assert outputs[-1].finish_reason is FinishReason.LENGTH
    stopped = driver.generate([5, 6], stop_token_ids=(8,), max_tokens=3)
    assert (tokens(stopped), stopped[-1].finish_reason) == ([7, 8], FinishReason.STOP_SEQUENCE)
    backend.close()
    server.stop()
    body = server.bodies[0]
    assert body["input_ids"] == [5, 6]
    assert (body["stream"], body["return_logprob"], body["top_logprobs_num"]) == (True, True, 2)
    assert body["sampling_params"] == {
        "max_new_tokens": 3,
        "min_new_tokens": 0,
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "ignore_eos": True,
        "stop_token_ids": [],
        "no_stop_trim": True,
        "skip_special_tokens": False,
        "sampling_seed": 1,
        "logit_bias": {"9": 1.5},
    }


def test_sglang_whose_seeds_have_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SGLangServer, "deterministic", False)
    server = SGLangServer()
    backend = load(server.url)
    assert "seed" in backend.capabilities.unsupported
    backend.close()
    server.stop()


def test_log_probabilities_of_a_prompt(remote: TokenServer, driver: Driver) -> None:
    (output,) = driver.generate([5, 6, 7], prompt_logprobs=0, max_tokens=2)
    assert output.prompt_logprobs == [None, -2.0, -2.0]
    assert output.prompt_top_logprobs is None
    assert output.token_ids == [8, 9]
    assert remote.bodies[0]["stream"] is False


def test_many_streams(remote: TokenServer, driver: Driver) -> None:
    ids = [driver.add([number, 7 * number], max_tokens=20) for number in range(256)]
    for number, outputs in enumerate(driver.finish(*ids)):
        assert tokens(outputs) == list(range(7 * number + 1, 7 * number + 21))
    wait_until(lambda: remote.running == 0)
    assert remote.abandoned == 0


def test_abort_ends_the_sequence_at_the_remote(remote: TokenServer, driver: Driver) -> None:
    hung = driver.add([faults.HANG, 5], max_tokens=40)
    other = driver.add([8], max_tokens=10)
    assert tokens(driver.finish(other)[0]) == list(range(9, 19))
    wait_until(lambda: driver.step() or len(driver.outputs[hung]) == 1)
    driver.abort(hung)
    wait_until(lambda: remote.abandoned == 1)
    assert driver.step() == []


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (faults.DROP, "connection broke"),
        (faults.RUBBISH, "vLLM's protocol"),
        (faults.WRONG_TYPE, "vLLM's protocol: `int` `str` `$.choices[0].token_ids[0]`"),
        (faults.WRONG_ID, "token id 0 49151"),
        (faults.NEGATIVE_ID, "token id 0 49151"),
        (faults.TOO_MANY, "8 tokens"),
        (faults.NO_END, "answer before sequence ended"),
        (faults.LONG_LINE, "event 1048576 bytes"),
        (faults.EMPTY, "events without tokens"),
        (faults.NOT_EVENTS, "application/json? not events"),
        (faults.MOVED, "status 307"),
        (faults.OVERLOADED, "status 503 busy"),
        (faults.ERROR_EVENT, "out of blocks"),
        (faults.UNKNOWN_END, "ended repetition of everything"),
    ],
)
def test_misbehaviour_fails_one_request(driver: Driver, backend: RemoteBackend, fault: int, words: str) -> None:
    cause, invalid = failure(backend, [fault, 5])
    assert cause is not None
    assert says(cause, words), cause
    assert len(cause) < 600
    assert cause.isprintable()
    assert not invalid
    assert tokens(driver.generate([8], max_tokens=3)) == [9, 10, 11]
    backend.check_health()


def test_alternatives_beyond_the_vocabulary(backend: RemoteBackend) -> None:
    cause, _ = failure(backend, [faults.WRONG_ALTERNATIVE, 5], logprobs=1)
    assert says(cause, "token id 0 49151")


def test_events_in_pieces(driver: Driver) -> None:
    assert tokens(driver.generate([faults.PIECES, 5], max_tokens=3)) == [6, 7, 8]


@pytest.mark.parametrize("fault", [faults.OVERLOADED, faults.TOO_BUSY])
def test_remote_without_room(backend: RemoteBackend, fault: int) -> None:
    backend.add_request(
        TokenRequest(request_id="a", prompt=EncodedPrompt([fault, 5]), sampling_params=SamplingParams())
    )
    output = last_output(backend)[-1]
    assert (output.overloaded, output.invalid_request) == (True, False)
    backend.check_health()


def test_what_the_remote_rejects_is_the_clients_fault(backend: RemoteBackend) -> None:
    cause, invalid = failure(backend, [faults.REFUSED])
    assert says(cause, "rejected top_k is odd")
    assert invalid


def test_killed_remote(remote: TokenServer, backend: RemoteBackend, driver: Driver) -> None:
    driver.add([faults.HANG, 5], max_tokens=40)
    wait_until(driver.step)
    remote.stop()
    assert says(last_output(backend)[-1].error, "connection broke")
    backend.add_request(TokenRequest(request_id="b", prompt=EncodedPrompt([5]), sampling_params=SamplingParams()))
    assert last_output(backend)[-1].overloaded
    with raises(EngineDead, "remote engine gone"):
        wait_until(backend.check_health)


@pytest.mark.parametrize("how", ["hangs", "sick"])
def test_remote_that_hangs_or_fails(remote: TokenServer, how: str) -> None:
    patience = 4 if how == "hangs" else 60  # a look takes 5 s if there is no answer
    backend = load(remote.url, stall_timeout=patience)
    wait_until(lambda: backend.progress)
    setattr(remote, how, True)
    with raises(EngineDead, "not answered 4 s" if how == "hangs" else "/health status 503"):
        wait_until(backend.check_health)
    backend.close()


def test_remote_that_drains(remote: TokenServer, backend: RemoteBackend, driver: Driver) -> None:
    """The streams that it has begun may end."""
    hung = driver.add([faults.HANG, 5], max_tokens=40)
    wait_until(lambda: driver.step() or driver.outputs[hung])
    remote.sick, looks = True, remote.looks
    wait_until(lambda: remote.looks > looks + 3)
    backend.check_health()
    driver.abort(hung)
    with raises(EngineDead, "remote engine gone"):
        wait_until(backend.check_health)


@pytest.mark.model
def test_server_whose_remote_dies_and_comes_back(remote: TokenServer, start_server: StartServer) -> None:
    """The default model is a GGUF file, which is not converted."""
    server = start_server(f"option.rolling_batch=remote\noption.engine_url={remote.url}\n")
    body = {"inputs": "The capital of France is", "parameters": {"max_new_tokens": 3}}
    assert server.invoke(body).status_code == 200
    remote.stop()
    wait_until(lambda: server.ping().status_code == 503)
    again = TokenServer(remote.port)
    server.wait_ready()
    assert server.invoke(body).status_code == 200
    again.stop()


def test_remote_that_starts_later() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    said: list[str] = []
    properties = serving_properties(engine_url=f"http://127.0.0.1:{port}")
    loaded: list[RemoteBackend] = []
    thread = threading.Thread(target=lambda: loaded.append(RemoteBackend.load(FILES, properties, said.append)))
    thread.start()
    wait_until(lambda: len(said) > 1)
    assert says(said[1], f"http://127.0.0.1:{port} not answer yet")
    server = TokenServer(port)
    thread.join(60)
    loaded[0].close()
    server.stop()


def test_key(monkeypatch: pytest.MonkeyPatch) -> None:
    server = TokenServer(key="s3cret")
    monkeypatch.setenv(KEY_VARIABLE, "wrong")
    with raises(ConfigError, f"key {KEY_VARIABLE} Unauthorized"):
        load(server.url, engine_protocol="vllm")
    monkeypatch.setenv(KEY_VARIABLE, "s3cret")
    load(server.url).close()
    server.stop()


@pytest.mark.parametrize(
    ("environ", "gets_it"),
    [
        ({}, True),
        ({OF_STORE_VARIABLE: "1"}, False),
        ({OF_STORE_VARIABLE: "1", "OPTION_ENGINE_URL": "http://elsewhere"}, False),
        ({OF_STORE_VARIABLE: "1", "OPTION_ENGINE_URL": "{url}"}, True),
    ],
)
def test_only_an_address_of_the_operator_gets_the_key(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], gets_it: bool
) -> None:
    """On a server with several models, each has a serving.properties of its own."""
    server = TokenServer(key="s3cret")
    monkeypatch.setenv(KEY_VARIABLE, "s3cret")
    for name, text in environ.items():
        monkeypatch.setenv(name, text.format(url=server.url))
    if gets_it:
        load(server.url).close()
    else:
        with raises(ConfigError, f"key {KEY_VARIABLE} Unauthorized"):
            load(server.url)
    server.stop()


@pytest.mark.parametrize(("model", "of_store"), [("", False), ("m", True)])
def test_engines_of_a_server_with_several_models_are_told_so(model: str, of_store: bool) -> None:
    settings = EngineSettings(runtime_dir="-", properties=ServingProperties(), started=0.0, model=model)
    assert (OF_STORE_VARIABLE in settings.environ) == of_store


@pytest.mark.parametrize("operators", [True, False])
def test_only_a_program_of_the_operator_gets_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operators: bool
) -> None:
    """One that a model on a server with several models names is code of that model."""
    wanted = {KEY_VARIABLE: "s3cret", "HF_TOKEN": "hf_s3cret", "AWS_SECRET_ACCESS_KEY": "aws_s3cret"}
    given = tmp_path / "given"
    program = "import os, pathlib, sys; pathlib.Path(sys.argv[1]).write_text(repr(sorted(os.environ))); sys.exit(3)"
    command = shlex.join([sys.executable, "-c", program, str(given), "{port}"])
    for name, text in (wanted | {OF_STORE_VARIABLE: "1", "API_KEY": "of clients"}).items():
        monkeypatch.setenv(name, text)
    if operators:
        monkeypatch.setenv("OPTION_ENGINE_COMMAND", command)
    with raises(ConfigError, "option.engine_command ended loading"):
        RemoteBackend.load(FILES, serving_properties(engine_command=command), lambda phase: None)
    names = set(literal_eval(given.read_text()))
    assert names & {*wanted, "API_KEY", "PATH"} == {"PATH"} | (wanted.keys() if operators else set())


@pytest.mark.parametrize("key", ["two\nlines", "s3cr\u00e9t", "\x00"])
def test_key_that_no_header_can_have(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        engine_key({KEY_VARIABLE: key})
    assert KEY_VARIABLE in str(caught.value)
    assert key not in str(caught.value)
    assert engine_key({KEY_VARIABLE: "s3cret\n"}) == "s3cret"


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://no-such-host.invalid"])
def test_clients_are_not_told_the_address(url: str) -> None:
    async def ask() -> str:
        client = Client(url, None)
        try:
            await client.ask("/health", seconds=60)
        except ConnectionFailed as error:
            return reason(error)
        finally:
            await client.close()
        raise AssertionError("somebody answers")

    words = asyncio.run(ask())
    assert words
    assert not any(part in words for part in ("127.0.0.1", "no-such-host"))


@pytest.mark.parametrize("status", [429, 502])
def test_proxy_before_a_remote_that_is_not_ready(remote: TokenServer, status: int) -> None:
    remote.not_ready, remote.not_ready_status = 2, status
    load(remote.url).close()
    assert remote.not_ready == 0


def test_another_model(tiny_llama: Path) -> None:
    files = ModelFiles(path=tiny_llama, eos_token_ids=(2,), vocab_size=VOCAB_SIZE)
    server = TokenServer(tokens=[5, 6, 7])
    with raises(ConfigError, f"option.model_id: counting tokens {tiny_llama}"):
        load(server.url, files)
    server.stop()


@pytest.mark.parametrize("protocol", ["auto", "vllm", "sglang", "llama.cpp"])
def test_server_that_is_none_of_these(monkeypatch: pytest.MonkeyPatch, protocol: str) -> None:
    monkeypatch.setattr(TokenServer, "routes", lambda self: [])
    server = TokenServer()
    with raises(ConfigError, f"option.engine_protocol={protocol}: {server.url}"):
        load(server.url, engine_protocol=protocol)
    server.stop()


def test_vllm_without_its_option(monkeypatch: pytest.MonkeyPatch, remote: TokenServer) -> None:
    monkeypatch.setattr(VLLMProtocol, "path", "/no/such/path")
    with raises(ConfigError, "vLLM no /no/such/path --enable-scale-out"):
        load(remote.url)


def test_options_that_the_remote_cannot_meet(remote: TokenServer) -> None:
    with raises(ConfigError, "option.max_model_len: 2048"):
        load(remote.url, max_model_len=4096)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (None, "option.engine_url option.engine_command"),
        ("10.0.0.7:8000", "option.engine_url http://host:port"),
        ("ftp://host", "option.engine_url http://host:port"),
        ("http://", "option.engine_url http://host:port"),
        ("http://host:99999", "option.engine_url http://host:port"),
        ("http://host:0", "option.engine_url http://host:port"),
        ("http://[::1", "option.engine_url http://host:port"),
        ("http://ho st", "option.engine_url http://host:port"),
        ("http://host/\n", "option.engine_url http://host:port"),
        ("http://me:s3cret@host", f"option.engine_url password {KEY_VARIABLE}"),
        ("http://host?a=1", "option.engine_url end host port path"),
    ],
)
def test_address(url: str | None, words: str) -> None:
    with raises(ConfigError, words) as caught:
        RemoteBackend.check_options(serving_properties(engine_url=url))
    assert "s3cret" not in str(caught.value)
