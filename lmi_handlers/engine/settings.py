"""The settings of a new engine process, and the directory that it shares with the web workers."""

from __future__ import annotations

from pathlib import Path

import msgspec

from lmi_handlers.config.custom_code import CustomCode
from lmi_handlers.config.formatter_code import FormatterCode
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.config.store_settings import OF_STORE_VARIABLE
from lmi_handlers.core.log import MODEL_VARIABLE

SOCKET_VARIABLE = "LMI_ENGINE_SOCKET"
"""Environment variable with the path of the engine's Unix socket, or several with ":" between them.

If it is set, the server does not start an engine.
"""

EXIT_CONFIG = 78
"""Exit status of an engine process if the model or an option is wrong (EX_CONFIG in sysexits)."""

EXIT_LOAD_FAILED = 75
"""Exit status of an engine process if loading failed but another try may succeed (EX_TEMPFAIL in sysexits)."""


_GRACE = 5.0

POOL = "pool"
"""The name, in messages, of the process that runs in place of an engine and starts those that run a model's own code."""


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The first line on the engine process's standard input, as JSON. Each server has its own `runtime_dir`.

    `started` is when this load began, on the monotonic clock: when the server or, later, this engine was started. With
    `custom_code`, a pool of processes that run it takes the engine's place. With `reload`, it loads that code again
    whenever it has changed. This engine is number `replica` of those that serve the model. `replicas` has the
    `CUDA_VISIBLE_DEVICES` of each of them, "" to leave it as it is. With
    `formatters`, a process that runs them is started beside the engines. `model` is the model's name on a server with
    several models, else "". `shadow` has the settings of the model's shadow engine. There, `shadow_of` is
    the directory with the text bundle of the model's own engine.
    """

    runtime_dir: str
    properties: ServingProperties
    started: float
    custom_code: CustomCode | None = None
    formatters: FormatterCode | None = None
    reload: bool = False
    replica: int = 0
    replicas: tuple[str, ...] = ("",)
    model: str = ""
    shadow: EngineSettings | None = None
    shadow_of: str = ""

    @property
    def follows_adapters(self) -> bool:
        """True if adapters may bring formatters while the server runs."""
        return self.formatters is not None and self.formatters.follows_adapters

    @property
    def each(self) -> list[EngineSettings]:
        """The settings of all replicas."""
        return [msgspec.structs.replace(self, replica=replica) for replica in range(len(self.replicas))]

    @property
    def environ(self) -> dict[str, str]:
        """The environment variables of this replica's engine.

        Processes that an engine starts must not import from the working directory either: it may be a model's folder.
        A model's own code may start scripts that rely on it.
        """
        gpus = self.replicas[self.replica]
        safe = {"PYTHONSAFEPATH": "1"} if self.custom_code is None else {}  # Python 3.11 and later
        of_store = {OF_STORE_VARIABLE: "1"} if self.model else {}
        return self.labels | of_store | safe | ({"CUDA_VISIBLE_DEVICES": gpus} if gpus else {})

    @property
    def labels(self) -> dict[str, str]:
        """The environment variables that make all processes of a model name it in their log."""
        return {MODEL_VARIABLE: self.model} if self.model else {}

    @property
    def title(self) -> str:
        """The name of the process in messages."""
        if self.shadow_of:
            return "shadow engine"
        return "engine" if self.custom_code is None else POOL

    @property
    def loading_limit(self) -> float:
        """Seconds after which the supervisor ends a load. A pool ends it earlier, and says in which line the code is."""
        return self.properties.model_loading_timeout + (0.0 if self.custom_code is None else _GRACE)

    @property
    def module(self) -> str:
        """The program to start."""
        return "lmi_handlers.engine.process" if self.custom_code is None else "lmi_handlers.custom_code.pool"

    @property
    def socket_path(self) -> Path:
        """The socket that workers connect to."""
        return engine_socket_path(Path(self.runtime_dir), self.replica)

    @property
    def formatter_socket_path(self) -> Path:
        """The socket of the process that runs formatters. Exists once their files are loaded."""
        return formatter_socket_path(Path(self.runtime_dir))

    @property
    def formatter_changes_path(self) -> Path:
        """The socket on which that process is told of the formatters of adapters."""
        return Path(self.runtime_dir) / "adapters.sock"

    @property
    def formatter_hang_path(self) -> Path:
        """File in which the process that runs formatters says where one hangs."""
        return Path(self.runtime_dir) / "formatters.hang"

    @property
    def bundle_dir(self) -> Path:
        return Path(self.runtime_dir) / f"text-{self.replica}"

    @property
    def metrics_dir(self) -> Path:
        """Directory of the files in which each process keeps its metrics."""
        return metrics_dir(Path(self.runtime_dir))

    @property
    def heartbeat_path(self) -> Path:
        """File in which the engine shows that it is alive."""
        return heartbeat_path(self.socket_path)


def engine_socket_path(runtime_dir: Path, replica: int = 0) -> Path:
    """Return the socket of an engine of the server with this `runtime_dir`."""
    return runtime_dir / f"engine-{replica}.sock"


def metrics_dir(runtime_dir: Path) -> Path:
    """Return the metrics directory of the server with this `runtime_dir`."""
    return runtime_dir / "metrics"


def recent_dir(runtime_dir: Path) -> Path:
    """Return the directory of the last requests of the server with this `runtime_dir`."""
    return runtime_dir / "recent"


def shadow_dir(runtime_dir: Path) -> Path:
    """Return the directory of the shadow engine of the server with this `runtime_dir`, for which it is a `runtime_dir`."""
    return runtime_dir / "s"  # sockets have short paths


def formatter_socket_path(runtime_dir: Path) -> Path:
    """Return the socket of the process that runs the formatters of the server with this `runtime_dir`."""
    return runtime_dir / "formatters.sock"


def heartbeat_path(socket_path: Path) -> Path:
    """Return the heartbeat file of the engine that listens on `socket_path`."""
    return socket_path.with_suffix(".heartbeat")
