"""Random faults on a real server, checked by invariants (see `fault_rounds`). `make bench` runs many rounds, and the soak for
half an hour (parts `faults` and `soak`)."""

from __future__ import annotations

import itertools
from pathlib import Path

import psutil
import pytest
from fault_attacks import ATTACKS, MACHINE_FAULTS
from fault_clients import ALL_APIS, APIS, Api
from fault_rounds import (
    BESIDE_FAULTS,
    CLIENT_FAULTS,
    ECHO_FAULTS,
    ENGINE_FAULTS,
    Fault,
    Rounds,
    endless_plan,
    plan,
)
from full_disk import small_disk
from serving import Server, StartServer
from waiting import wait_until

MAX_REQUEST_SIZE = 1 << 20


def limits(predict_timeout: int, stall_timeout: int) -> str:
    return f"""
option.predict_timeout={predict_timeout}
option.stall_timeout={stall_timeout}
max_request_size={MAX_REQUEST_SIZE}
option.restart_limit=1000
option.restart_window=1
"""


def planned(faults: list[Fault], config: pytest.Config, rounds: int | None = None) -> tuple[list[list[Fault]], int]:
    seed = config.getoption("--fault-seed")
    return plan(faults, seed, config.getoption("--fault-rounds") or rounds), seed


def echo_rounds(server: Server) -> Rounds:
    """Rounds on a server with the `limits` of 8 seconds, whose answers are the prompts."""
    prompts = ["the quick brown fox " * count for count in (1, 4, 7)]
    return Rounds(
        server,
        lambda api, prompt: prompt,
        prompts,
        max_tokens=200,
        predict_timeout=8,
        max_request_size=MAX_REQUEST_SIZE,
    )


def test_faults_with_the_echo_backend(start_server: StartServer, pytestconfig: pytest.Config) -> None:
    server = start_server(
        f"option.rolling_batch=echo\noption.echo_faults=true\noption.echo_tokens_per_second=100\n{limits(8, 10)}"
    )
    report = echo_rounds(server).run(*planned(ENGINE_FAULTS + ECHO_FAULTS + CLIENT_FAULTS, pytestconfig))
    print(f"\necho: {report}")
    assert report.complete > report.failed > 0


@pytest.mark.long
def test_faults_of_what_is_beside_an_engine(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """A shadow, a web worker, and clients that come back."""
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    echo = f"option.rolling_batch=echo\noption.echo_tokens_per_second=100\n{limits(8, 10)}"
    (shadow / "serving.properties").write_text(echo)
    own = f"option.shadow_model={shadow}\noption.shadow_share=1\noption.retry_grace=2\noption.receipts=true\n"
    server = Server(tmp_path / "m0", f"{echo}{own}option.tenant_attribute=team\n", "--workers", "2")
    try:
        server.wait_ready()
        wait_until(lambda: server.invoke({"inputs": "Hi"}).ok and "compared with the shadow" in server.log, 180)
        clients = [fault for fault in CLIENT_FAULTS if fault.name in ("leave", "pause")]
        report = echo_rounds(server).run(
            *planned([*ENGINE_FAULTS[:1], *BESIDE_FAULTS, *clients], pytestconfig, rounds=6)
        )
    finally:
        server.stop()
    print(f"\nbeside: {report}")
    assert min(report.complete, report.failed) > 0


@pytest.mark.long
@pytest.mark.model
@pytest.mark.timeout(900)  # each new engine loads the model again
def test_faults_with_the_real_model(start_server: StartServer, pytestconfig: pytest.Config) -> None:
    server = start_server(f"option.rolling_batch=scheduler\noption.dtype=fp32\n{limits(20, 10)}")
    prompts = ["The three primary colours are", "Once upon a time", "Paris is"]
    undisturbed = {(api, prompt): api.ask(server.url, prompt, 8, 60) for api in APIS for prompt in prompts}
    assert all(ending.complete for ending in undisturbed.values())

    def answer(api: Api, prompt: str) -> str:
        return undisturbed[api, prompt].text

    rounds = Rounds(server, answer, prompts, max_tokens=8, predict_timeout=20, max_request_size=MAX_REQUEST_SIZE)
    # Most client faults only affect the web worker. The test with the echo backend covers them.
    few = [fault for fault in CLIENT_FAULTS if fault.name in ("leave", "pause")]
    clients = CLIENT_FAULTS if pytestconfig.getoption("--fault-rounds") else few
    report = rounds.run(*planned([*ENGINE_FAULTS, *clients], pytestconfig, rounds=3))
    print(f"\nmodel: {report}")
    assert report.complete > 0
    assert report.longest_outage > 0


SOAK = f"""
option.rolling_batch=echo
option.echo_faults=true
option.echo_tokens_per_second=100
option.session_history=true
option.max_sessions=50
option.dialect=mindie
option.web_workers=2
{limits(10, 12)}
"""


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_soak_over_all_apis(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """All APIs at once, with everything that clients, the engine and the machine do wrong."""
    seconds, seed = 60 * pytestconfig.getoption("--soak-minutes"), pytestconfig.getoption("--fault-seed")
    with small_disk() as disk:
        server = Server(tmp_path / "m0", SOAK, environ={"TMPDIR": str(disk)}, log_reader=True)
        psutil.Process(server.process.pid).rlimit(psutil.RLIMIT_NOFILE, (1024, 1024))  # as many containers have it
        try:
            server.wait_ready()
            prompts = ["the quick brown fox " * count for count in (1, 4, 7)]
            undisturbed = {
                (api, prompt): api.ask(server.url, prompt, 200, 60) for api in ALL_APIS for prompt in prompts
            }
            assert all(ending.complete and ending.text for ending in undisturbed.values()), undisturbed
            rounds = Rounds(
                server,
                lambda api, prompt: undisturbed[api, prompt].text,
                prompts,
                max_tokens=200,
                predict_timeout=10,
                max_request_size=MAX_REQUEST_SIZE,
                clients=12,
                apis=ALL_APIS,
                disk=disk,
            )
            faults = ENGINE_FAULTS + ECHO_FAULTS + CLIENT_FAULTS + ATTACKS + MACHINE_FAULTS
            report = rounds.run(endless_plan(faults, seed, seconds), seed)
        finally:
            server.stop()
        assert not [*disk.iterdir()], "the server left files"
    print(f"\nsoak: {report}")
    assert report.complete > report.failed > 0
    ordered = "the echo backend crashed, as the prompt asked"
    assert [line for line in server.log.splitlines() if "Traceback" in line and ordered not in line] == []


def test_a_plan_contains_each_fault() -> None:
    faults = ENGINE_FAULTS + ECHO_FAULTS + CLIENT_FAULTS
    names = [[fault.name for fault in at_once] for at_once in plan(faults, 1)]
    assert {*itertools.chain(*names)} == {fault.name for fault in faults}
    assert len(plan(faults, 1, 30)) == 30
    assert plan(faults, 1, 30)[: len(names)] == plan(faults, 1)
    assert all(sum(fault.ends_engine is not False for fault in at_once) <= 1 for at_once in plan(faults, 1, 30))
