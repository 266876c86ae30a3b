"""Who can connect to a server: this machine, unless it runs in a container or is asked. The log says so in one line."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import requests
from facts import says
from paths import ROOT
from serving import Server, free_port

from lmi_handlers.config.container import in_container
from lmi_handlers.config.server_settings import default_host
from lmi_handlers.launch.listening import Address, host_of

ECHO = "option.rolling_batch=echo\n"


def write(root: Path, path: str, text: str = "") -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


@pytest.mark.parametrize(
    "make",
    [
        lambda root: write(root, ".dockerenv"),
        lambda root: write(root, "run/.containerenv"),
        lambda root: (root / "opt/ml/model").mkdir(parents=True),
        lambda root: write(root, "proc/1/cgroup", "12:cpu:/docker/0123456789abcdef\n"),
        lambda root: write(root, "proc/1/cgroup", "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-1.scope\n"),
    ],
)
def test_a_container_is_known_by_its_files(tmp_path: Path, make: Callable[[Path], None]) -> None:
    assert not in_container({}, tmp_path)
    make(tmp_path)
    assert in_container({}, tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "KUBERNETES_SERVICE_HOST",
        "ECS_CONTAINER_METADATA_URI_V4",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "SAGEMAKER_BIND_TO_PORT",
        "container",
    ],
)
def test_a_container_is_known_by_its_variables(tmp_path: Path, name: str) -> None:
    assert in_container({name: "1"}, tmp_path)
    assert default_host({name: "1"}) == "0.0.0.0"


@pytest.mark.parametrize("control_group", ["0::/init.scope\n", "1:name=systemd:/init.scope\n0::/\n"])
def test_a_laptop_is_no_container(tmp_path: Path, control_group: str) -> None:
    write(tmp_path, "proc/1/cgroup", control_group)
    variables = {
        "HOME": "/home/me",
        "SAGEMAKER_ENDPOINT_NAME": "e",
        "SAGEMAKER_MULTI_MODEL": "true",
        "LMI_PORT": "8080",
        "KUBERNETES_SERVICE_HOST": "",
    }
    assert not in_container(variables, tmp_path)


def test_the_image_does_not_guess() -> None:
    assert "    LMI_HOST=0.0.0.0 \\\n" in (ROOT / "sagemaker" / "Dockerfile").read_text()


def assert_says(server: Server, told: str, console: str) -> None:
    """Check the line about who can connect, and whether the page at `/` is the console."""
    ends = {
        "on": f"console: http://127.0.0.1:{server.port}/",
        "key": "no console, because an API_KEY is set (option.console=true)",
        "others": "no console, because others than this machine can connect (option.console=true)",
        "option": "no console, because of option.console=false",
    }
    [line] = [line for line in server.log.splitlines() if "can connect" in line]
    said = json.loads(line)["message"] if line.startswith("{") else line
    assert says(said, told)
    assert said.endswith(ends[console])
    page = requests.get(f"{server.url}/", headers={"Accept": "text/html"}, timeout=60).text
    assert ("console/main.js" in page) == (console == "on")


def test_the_log_says_that_only_this_machine_can_connect(echo_server: Server, guarded_server: Server) -> None:
    assert_says(echo_server, "only machine --host 0.0.0.0 without key", "on")
    assert_says(guarded_server, "only machine --host 0.0.0.0 with API_KEY", "key")


@pytest.mark.parametrize(
    ("arguments", "variable", "option", "host", "console"),
    [
        ((), "LMI_PORT", "option.console=false\n", default_host(os.environ), "option"),
        ((), "SAGEMAKER_BIND_TO_PORT", "", "0.0.0.0", "others"),
        (("--host", "0.0.0.0"), "LMI_PORT", "option.console=true\n", "0.0.0.0", "on"),
    ],
    ids=["here", "sagemaker", "told to"],
)
def test_only_a_container_listens_on_all_interfaces_unless_it_is_told_to(
    tmp_path: Path, arguments: tuple[str, ...], variable: str, option: str, host: str, console: str
) -> None:
    port = free_port()
    command = [sys.executable, "-m", "lmi_handlers.commands.cli", "serve", *arguments]
    environ = {"LOG_FORMAT": "text", variable: str(port)}
    server = Server(tmp_path / "m", ECHO + option, command=command, port=port, environ=environ)
    try:
        server.wait_ready()
        process = psutil.Process(server.process.pid)
        listening = {item.laddr.ip for item in process.net_connections("tcp") if item.status == psutil.CONN_LISTEN}
        assert listening == {host}
        told = "other machines connect without API_KEY" if host == "0.0.0.0" else "only machine connect"
        assert_says(server, told, console)
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("addresses", "host"),
    [
        ([("127.0.0.1", 80)], "127.0.0.1"),
        ([("127.0.0.1", 80), ("::1", 80)], "127.0.0.1"),
        ([("127.0.0.1", 80), ("10.0.0.1", 80)], "0.0.0.0"),
        ([("127.0.0.1", 80), None], "0.0.0.0"),
        ([None], "0.0.0.0"),
        ([], "0.0.0.0"),
    ],
)
def test_one_open_address_opens_the_server(addresses: list[Address], host: str) -> None:
    assert host_of(addresses) == host
