"""Files for reports: how they appear, and that tools look for room first."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from full_disk import small_disk
from lmi_command import lmi
from recordings import capture_record
from serving import free_port
from waiting import wait_until

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.tools.client.report_files import report_file


def test_a_report_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "reports" / "report"
    with report_file("--json", path) as file:
        file.write(b"one")
        assert not path.exists()
        file.write(b"two")
    assert path.read_bytes() == b"onetwo"
    missing: dict[str, bytes] = {}
    with pytest.raises(KeyError), report_file("--json", path) as file:
        file.write(missing["three"])
    assert [found.read_bytes() for found in path.parent.iterdir()] == [b"onetwo"]
    with report_file("--json", None) as file:
        file.write(b"nowhere")


def test_what_is_no_regular_file_is_written_to_as_it_is(tmp_path: Path) -> None:
    """A file in place of /dev/stdout or /dev/null would be of no use, and root can make one."""
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(tmp_path / "target")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with report_file("--json", pipe) as file:
            file.write(b"report")
        assert os.read(reader, 100) == b"report"
    finally:
        os.close(reader)
    with report_file("--json", link) as file:
        file.write(b"report")
    assert (pipe.is_fifo(), link.is_symlink(), link.read_bytes()) == (True, True, b"report")


def test_a_file_that_is_mounted_is_written_to_as_it_is(tmp_path: Path) -> None:
    """As by docker run --volume $PWD/report.json:/report.json. Nothing can take its place."""
    mounted = tmp_path / "mounted"
    mounted.touch()
    with small_disk() as disk:
        (given := disk / "given").write_bytes(b"the last report")
        subprocess.run(["mount", "--bind", given, mounted], check=True)
        try:
            with report_file("--json", mounted) as file:
                file.write(b"report")
            assert given.read_bytes() == b"report"
        finally:
            subprocess.run(["umount", "-l", mounted], check=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write to any folder")
def test_a_file_in_a_folder_that_is_not_writable_is_written_to_as_it_is(tmp_path: Path) -> None:
    (given := tmp_path / "given").touch()
    tmp_path.chmod(0o500)
    try:
        with report_file("--json", given) as file:
            file.write(b"report")
    finally:
        tmp_path.chmod(0o700)
    assert given.read_bytes() == b"report"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_named() -> None:
    with pytest.raises(ConfigError) as caught, report_file("--page", Path("/dev/full")) as file:
        file.write(b"report")
    assert "--page /dev/full" in str(caught.value)


@pytest.mark.parametrize("option", ["--json", "--page"])
@pytest.mark.parametrize("tool", ["bench", "conform", "replay"])
def test_a_report_that_cannot_be_written_is_told_before_anything_is_asked(
    tool: str, option: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "day.jsonl").write_bytes(capture_record(b"{}", b"{}", "application/json"))
    url = f"http://127.0.0.1:{free_port()}"
    target = {"bench": ["--url", url], "conform": [url], "replay": ["--url", url, "--input", str(tmp_path)]}
    path = tmp_path / "file" / "report"
    result = lmi(tool, *target[tool], option, str(path))
    assert result.exit_code == (2 if tool == "replay" else 1), result.output
    assert f"{option} {path}: " in result.output
    assert "refused" not in result.output


@pytest.mark.parametrize(
    ("tool", "ended_by"),
    [
        ("replay", signal.SIGINT),
        ("replay", signal.SIGTERM),
        ("bench", signal.SIGINT),
        ("conform", signal.SIGTERM),
    ],
)
def test_a_tool_that_is_ended_leaves_no_part_of_a_report(tool: str, ended_by: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "day.jsonl").write_bytes(capture_record(b"{}", b"{}", "application/json"))
    reports = tmp_path / "reports"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        target = {
            "replay": ["--input", str(tmp_path / "day.jsonl"), "--url", url],
            "bench": ["--url", url],
            "conform": [url],
        }
        command = [sys.executable, "-m", "lmi_handlers.commands.interruptible", "lmi_handlers.commands.cli", tool]
        with subprocess.Popen([*command, *target[tool], "--json", str(reports / "report")]) as process:
            connection, _ = silent.accept()
            with connection:
                assert len(list(reports.iterdir())) == 1

                def has_ended() -> bool:
                    process.send_signal(ended_by)  # Python may not see one that comes just before it waits for a lock
                    return process.poll() is not None

                wait_until(has_ended)
                assert process.returncode == 128 + ended_by
    assert list(reports.iterdir()) == []


STRUCK = """
import asyncio, os, signal
from lmi_handlers.tools.client.signals import ended_by_signals, run_async

def strike():
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):
        pass

async def main():
    asyncio.get_running_loop().call_soon(strike)
    await asyncio.sleep(60)

with ended_by_signals():
    run_async(main())
"""


def test_a_signal_ends_an_event_loop_that_is_at_work() -> None:
    ended = subprocess.run([sys.executable, "-c", STRUCK], capture_output=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGINT, b"")
