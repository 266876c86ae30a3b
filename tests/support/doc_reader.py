"""Someone who works through a page: writes its files, runs its commands, and compares what they print."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import requests
from doc_snippets import Snippet, parse
from lmi_command import ended
from serving import ENVIRON, free_port

_SERVES = re.compile(r"^(?:\w+=\S+ )*(?:make|lmi) serve", re.MULTILINE)
_HERE = re.compile(
    r"""lmi (?:check|conform|deploy|explain|instances|invoke|run) (?:[^'"$`*?~\\|&;<>()#\n]|\\\n|'[^'\n]*')+"""
)
"""A command that needs neither a shell nor a process of its own."""
BIN = Path(sys.executable).parent


class Reader:
    """Works in `folder`, with a terminal for a server and one for the rest.

    `port` takes the place of 8080 on the page, until the page starts a server itself. `replaced` has more such texts.
    With `runs_all`, nothing is only parsed.
    """

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        environ: Mapping[str, str] | None = None,
        replaced: Mapping[str, str] | None = None,
        runs_all: bool = False,
    ) -> None:
        self.folder = folder
        self._own_port = free_port()
        self.port = port or self._own_port
        self._replaced = replaced or {}
        self._runs_all = runs_all
        self._server: subprocess.Popen[bytes] | None = None
        self._activation = ""
        self._output, self._status = "", 0
        clean = {name: value for name, value in ENVIRON.items() if not name.startswith(("LMI_", "OPTION_"))}
        self._environ = clean | {
            "PATH": f"{BIN}{os.pathsep}{clean['PATH']}",
            "PORT": str(self._own_port),
            "LMI_PORT": str(self._own_port),
            "LMI_HOST": "127.0.0.1",
            **(environ or {}),
        }

    def read(self, snippet: Snippet) -> bool:
        """Do what a block says, and check the outcome. Return whether it was executed, rather than parsed."""
        is_run = self._runs_all or not snippet.reason
        if is_run and _SERVES.search(snippet.text):
            self.port = self._own_port
        text = self._with_replacements(snippet.text)
        if snippet.title.startswith("Output"):
            self._compare(snippet, text)
            return True
        self._expect_success()
        if not is_run:
            parse(snippet.language, text)
            return False
        if snippet.request is not None:
            self._send(snippet, text)
        elif snippet.title:
            return self._write(snippet, text)
        elif snippet.language == "sh":
            self._run_or_serve(text)
        elif snippet.language == "python":
            self._output, self._status = self._run(["python", "-c", text])
            assert self._output or "print(" not in text, snippet.where
        else:
            parse(snippet.language, text)
            return False
        return True

    def run(self, script: str) -> str:
        """Run commands that succeed, or a server until `stop`. Return what they print."""
        if _SERVES.search(script):
            self.port = self._own_port
        self._run_or_serve(self._with_replacements(script))
        self._expect_success()
        return self._output

    def finish(self) -> None:
        """Check that the last command has succeeded."""
        self._expect_success()

    def _with_replacements(self, text: str) -> str:
        for old, new in {**self._replaced, "8080": str(self.port)}.items():
            text = text.replace(old, new)
        return text

    def _expect_success(self) -> None:
        assert self._status == 0, self._output  # nothing has announced that the last command fails

    def _compare(self, snippet: Snippet, expected: str) -> None:
        status = int(snippet.title.partition("exit status ")[2] or 0)
        assert (self._status, bool(re.search(_pattern(expected), self._output, re.DOTALL))) == (status, True), (
            f"{snippet.where}: {self._output}"
        )
        self._status = 0

    def _send(self, snippet: Snippet, text: str) -> None:
        assert snippet.request is not None
        method, path = snippet.request
        body = None if method == "GET" else text.encode()
        answer = requests.request(
            method, self.url + path, data=body, headers={"Content-Type": "application/json"}, timeout=60
        )
        assert answer.status_code == 200, f"{snippet.where}: {answer.text}"
        if method == "GET":
            assert answer.json() == json.loads(text), f"{snippet.where}: {answer.text}"

    def _write(self, snippet: Snippet, text: str) -> bool:
        path = self.folder / snippet.title
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if not self._runs_all:  # else the page's own commands find what is wrong in a file, which may be on purpose
            parse(snippet.language, text)
        if path.name != "model.py":
            return False
        self._output, self._status = self._run_here(["check", "--model-dir", str(path.parent)])  # imports it
        return True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _run_or_serve(self, script: str) -> None:
        self._activation = next((line for line in script.splitlines() if line.startswith(". ")), self._activation)
        if _SERVES.search(script):
            self._output = ""
            self._serve(script)
        elif _HERE.fullmatch(script.strip()) and not self._activation and not self._runs_all:
            self._output, self._status = self._run_here(shlex.split(script.replace("\\\n", " "))[1:])
        else:
            self._output, self._status = self._run(["bash", "-e", "-c", f"{self._activation}\n{script}"])

    def _run_here(self, arguments: list[str]) -> tuple[str, int]:
        """Run `lmi` in this process, where nothing has to be imported again."""
        environ = self._environ | {"SERVER_URL": self.url}
        done = ended(*arguments, folder=self.folder, environ=environ, together=True)
        return done.stdout.decode(), done.returncode

    def _run(self, command: list[str]) -> tuple[str, int]:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self._environ | {"SERVER_URL": self.url},  # for the programs in examples/
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
            check=False,
        )
        return done.stdout, done.returncode

    def _serve(self, script: str) -> None:
        """Run the server in the first terminal until `stop`. A later server takes the earlier one's place."""
        self.stop()
        with (self.folder / "server.log").open("wb") as log:
            self._server = subprocess.Popen(
                ["bash", "-e", "-c", script],
                cwd=self.folder,
                env=self._environ,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + 280
        while not self._is_ready():
            waited = self._server.poll() is None and time.monotonic() < deadline
            assert waited, (self.folder / "server.log").read_text()
            time.sleep(0.2)

    def _is_ready(self) -> bool:
        try:
            return requests.get(f"{self.url}/ping", timeout=20).ok
        except (requests.ConnectionError, requests.Timeout):
            return False

    def stop(self) -> None:
        """Press Ctrl+C."""
        if self._server is not None:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.killpg(self._server.pid, signal.SIGINT)
            self._server.wait(120)
            self._server = None


def _pattern(expected: str) -> str:
    """An expected output, in which `...` stands for any text."""
    return ".*".join(re.escape(part.strip()) for part in expected.split("...")).replace("\\\n.*", ".*")
