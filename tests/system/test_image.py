"""The CPU image, built from sagemaker/Dockerfile without a registry, and run as SageMaker runs it.

The base image is made of Debian's packages. This needs root, a network, buildah and mmdebstrap.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from container_server import SYSTEM, Image, require_containers
from paths import ROOT

from lmi_handlers.model_files.locate import locate_model

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        "CI" not in os.environ and (os.geteuid() != 0 or not shutil.which("buildah") or not shutil.which("mmdebstrap")),
        reason="needs root, and Debian's packages buildah and mmdebstrap",
    ),
]

NAME = "localhost/lmi-handlers"
SOURCES = "/opt/ml/additional-model-data-sources/base"
"""Where SageMaker puts the files of a channel."""

Buildah = Callable[..., str]


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buildah]:
    """Run buildah with a storage of its own."""
    folder = tmp_path_factory.mktemp("buildah")
    storage = ["--root", str(folder / "store"), "--runroot", str(folder / "run")]

    def run(*arguments: str) -> str:
        done = subprocess.run(["buildah", *storage, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout.strip()

    yield run
    run("rm", "--all")
    run("rmi", "--all", "--force")


@pytest.fixture(scope="module")
def config(buildah: Buildah, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Build the image, and return its configuration."""
    require_containers(tmp_path_factory.mktemp("probe") / "root")
    archive = str(tmp_path_factory.mktemp("debian") / "base.tar")
    packages = "python3,python3-venv,ca-certificates"
    subprocess.run(
        ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={packages}", "bookworm", archive], check=True
    )
    base = buildah("from", "scratch")
    buildah("add", base, archive, "/")
    buildah("commit", base, "localhost/python")
    Path(archive).unlink()
    settings = ["--isolation", "chroot", "--network", "host", "--build-arg", "BASE_IMAGE=localhost/python"]
    settings += ["--volume", "/etc/ssl/certs:/etc/ssl/certs:ro"]  # of the package index that this machine uses
    files = ["--file", "sagemaker/Dockerfile", "--ignorefile", "sagemaker/Dockerfile.dockerignore"]
    buildah("build", *settings, *files, "--tag", NAME, ".")
    config: dict[str, Any] = json.loads(buildah("inspect", "--type", "image", NAME))["OCIv1"]["config"]
    return config


@pytest.fixture(scope="module")
def image(buildah: Buildah, config: dict[str, Any]) -> Image:
    root = buildah("mount", buildah("from", NAME))
    environ = dict(pair.split("=", 1) for pair in config["Env"])
    entry_point = next(
        f"{folder}/{config['Entrypoint'][0]}"
        for folder in environ["PATH"].split(":")
        if Path(root + folder, config["Entrypoint"][0]).exists()
    )
    return Image(root, (*SYSTEM, "/etc", "/opt/lmi"), environ, entry_point)


def test_the_image_has_what_sagemaker_needs_and_nothing_else(config: dict[str, Any], image: Image) -> None:
    assert (config["Cmd"], list(config["ExposedPorts"]), config.get("User", "")) == (["serve"], ["8080/tcp"], "")
    root = Path(image.root)
    tools = [name for name in ("cc", "gcc", "g++", "make", "ld") if any(root.glob(f"usr/*bin/{name}"))]
    packages = {path.name for path in root.glob("opt/lmi/lib/python3*/site-packages/*")}
    assert tools == []
    assert {"lmi_handlers", "backends", "formatters", "openvino", "boto3", "PIL"} <= packages
    assert not {"torch", "transformers", "pytest", "tests"} & packages
    assert not [name for name in ("build", "wheels", "etc/pip.conf", "root/.cache") if (root / name).exists()]


@pytest.mark.parametrize("user", [0, 1000], ids=["root", "user"])
def test_the_image_serves_a_model(image: Image, tmp_path: Path, user: int) -> None:
    model = locate_model(None, model_dir=None, revision=None, cache_dir=tmp_path)
    assert model is not None
    properties = f"option.model_id={SOURCES}/{model.name}\n"
    server = image.serve(tmp_path / "m", properties, {SOURCES: model.parent}, user=user, tmp="400m")
    try:
        server.wait_ready(200)
        answer = server.invoke({"inputs": "1, 2, 3, 4,", "parameters": {"max_new_tokens": 2}})
        assert answer.json() == {"generated_text": " 5"}
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0
    finally:
        server.stop()
