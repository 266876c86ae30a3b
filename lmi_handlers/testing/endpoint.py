"""An endpoint of SageMaker on this machine, for tests of the applications that call it."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmi_handlers.config.variables import NATIVE, SM_VLLM, TGI
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.laptop.sagemaker_runtime.faults import AnyFault, Fault, FaultsFile
from lmi_handlers.tools.client.own_server import own_server

if TYPE_CHECKING:
    from mypy_boto3_sagemaker_runtime import SageMakerRuntimeClient

_ECHO = "option.rolling_batch=echo\n"
_OURS = ("LMI_", "OPTION_", "SERVING_", "SAGEMAKER_", "API_KEY", SM_VLLM)
_REGION = "us-east-1"


class Endpoint:
    """A running endpoint, which has the `name`. `url` is that of SageMaker's runtime API, and of the container.

    `environ` makes boto3's clients call this endpoint, whoever creates them: hand it to `monkeypatch.setenv`.
    """

    def __init__(self, name: str, url: str, faults: FaultsFile, log: Path) -> None:
        self.name = name
        self.url = url
        self.environ: Mapping[str, str] = {
            "AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME": url,
            "AWS_DEFAULT_REGION": _REGION,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
        }
        self._faults = faults
        self._log = log

    @functools.cached_property
    def client(self) -> SageMakerRuntimeClient:
        """boto3's client of SageMaker's runtime API, with boto3's own settings. Needs `lmi-handlers[aws]`."""
        return self.new_client()

    def new_client(self, config: Any = None) -> SageMakerRuntimeClient:
        """Return a client of boto3 with a `botocore.config.Config` of your own."""
        import boto3  # an extra

        return boto3.client(
            "sagemaker-runtime",
            endpoint_url=self.url,
            region_name=_REGION,
            aws_access_key_id="test",
            aws_secret_access_key="test",  # noqa: S106  signatures are not checked
            config=config,
        )

    def fail(self, *faults: Fault) -> None:
        """Let the next requests fail. Each request takes the first fault for its operation."""
        self._faults.add(*faults)

    @property
    def faults(self) -> list[AnyFault]:
        """The faults that no request has taken yet."""
        return self._faults.left()

    def recover(self) -> None:
        """Take back all faults that no request has taken yet."""
        self._faults.clear()

    @property
    def log(self) -> str:
        """The log of the container so far."""
        return self._log.read_text(errors="replace")

    def close(self) -> None:
        """Close the connections of `client`."""
        if "client" in self.__dict__:
            self.client.close()


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what a container may have of an application's environment: no variable that sets one of this server's options."""
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(_OURS) and name not in NATIVE and name not in TGI
    }


@contextlib.contextmanager
def endpoint(
    model_dir: Path | str | None = None,
    *,
    name: str = "endpoint",
    faults: tuple[Fault, ...] = (),
    async_output: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Iterator[Endpoint]:
    """Start an endpoint and wait until it is in service. It ends with the block.

    Without a model directory, its model repeats the prompt and needs neither weights nor time. Streams are cut inside
    records and characters, as AWS may. Asynchronous answers go to `async_output`, a URL such as `s3://bucket/prefix` or
    `file:///folder`; by default to a folder that is deleted at the end. `environ` is added to the container's
    environment, which has none of this server's variables otherwise. Raises `ConfigError` if the container ends.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lmi-endpoint-")))
        if model_dir is None:
            model_dir = folder / "model"
            model_dir.mkdir()
            (model_dir / "serving.properties").write_text(_ECHO)
        answers = folder / "async"
        answers.mkdir()
        faults_path, log = folder / "faults.json", folder / "container.log"
        file = FaultsFile(faults_path)
        file.add(*faults)
        output = stack.enter_context(log.open("wb"))
        arguments = ["--local-runtime", "--split-payload-parts", "--endpoint-name", name]
        arguments += ["--local-runtime-faults", str(faults_path)]
        arguments += ["--async-output", async_output or answers.as_uri()]
        try:
            server = own_server(
                Path(model_dir), *arguments, environ={**inherited(os.environ), **(environ or {})}, log=output
            )
            url = stack.enter_context(server)
        except ConfigError as error:
            raise ConfigError(f"{error}; its log:\n{log.read_text(errors='replace')}") from error
        started = Endpoint(name, url, file, log)
        stack.callback(started.close)
        yield started
