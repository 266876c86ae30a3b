"""A server with several models on the echo backend."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import psutil
import requests
from serving import Server, free_port

ECHO = "option.rolling_batch=echo\noption.echo_faults=true\n"


class StoreServer(Server):
    """`lmi serve --model-store`, or without that option if `arguments` or `environ` say where the models are.

    `models` has the properties of each, and `files` more files of some: texts, by their path.
    """

    def __init__(
        self,
        directory: Path,
        models: dict[str, str],
        *arguments: str,
        environ: dict[str, str] | None = None,
        names_store: bool = True,
        files: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self.store = directory / "store"
        self.store.mkdir(parents=True)
        for name, properties in models.items():
            self.add(name, properties)
        for name, texts in (files or {}).items():
            for place, text in texts.items():
                (self.store / name / place).parent.mkdir(parents=True, exist_ok=True)
                (self.store / name / place).write_text(text)
        port = free_port()
        command = [
            sys.executable,
            "-m",
            "lmi_handlers.commands.cli",
            "serve",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ]
        command += [*(("--model-store", str(self.store)) if names_store else ()), *arguments]
        self.temporary = Path(tempfile.mkdtemp(prefix="store-"))  # a socket's path is short: 107 bytes
        environ = {"TMPDIR": str(self.temporary)} | (environ or {})
        super().__init__(directory / "home", "", environ=environ, command=command, port=port)

    def stop(self) -> None:
        super().stop()
        shutil.rmtree(self.temporary, ignore_errors=True)

    def add(self, name: str, properties: str = ECHO) -> Path:
        """Put a model into the store."""
        folder = self.store / name
        folder.mkdir()
        (folder / "serving.properties").write_text(properties)
        return folder

    def ask(self, method: str, path: str, **options: object) -> requests.Response:
        """Send any request."""
        options.setdefault("timeout", 60)
        return requests.request(method, self.url + path, **options)  # type: ignore[arg-type]  # requests' own keywords

    def generate(self, model: str, text: str = "hello", **parameters: object) -> requests.Response:
        """Let a model answer."""
        return self.invoke({"inputs": text, "parameters": parameters}, path=f"/predictions/{model}")

    def states(self) -> dict[str, str]:
        """The state of each model, as `/ping` has it."""
        return {name: health["status"] for name, health in self.ping().json().items()}

    def supervisor(self) -> psutil.Process:
        """What starts and restarts engines here."""
        return self.manager()

    def manager(self) -> psutil.Process:
        """The process that loads and unloads models."""
        return self.supervised("lmi_handlers.launch.model_manager")

    def processes_of(self, model: str, module: str) -> list[psutil.Process]:
        """The processes that run this module in the folder of a model."""
        folder, found = str((self.store / model).resolve()), []
        for child in self.manager().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):  # it has just ended
                if module in child.cmdline() and f"{child.cwd()}/".startswith(f"{folder}/"):
                    found.append(child)
        return found

    def engines(self) -> list[psutil.Process]:
        """All engine processes."""
        found = []
        for child in self.manager().children():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):  # it has just ended
                if "lmi_handlers.engine.process" in child.cmdline():
                    found.append(child)
        return found
