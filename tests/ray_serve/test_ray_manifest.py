"""The manifest for KubeRay is what Ray's own command and the application accept."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own
from paths import ROOT
from ray_serving import PATIENCE, started
from serving import Server, free_port

from lmi_handlers.ray.environ import node_environ, ray_environ

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def test_all_nodes_start_with_the_variables_of_lmi_ray_serve() -> None:
    manifest = yaml.safe_load((ROOT / "examples" / "rayservice.yaml").read_text())
    cluster = manifest["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        (container,) = group["template"]["spec"]["containers"]
        variables = {each["name"]: each["value"] for each in container["env"]}
        assert (ray_environ(predict_timeout=240) | node_environ()).items() <= variables.items()


def test_ray_serves_the_application_of_the_manifest(tmp_path: Path) -> None:
    manifest = yaml.safe_load((ROOT / "examples" / "rayservice.yaml").read_text())
    config = yaml.safe_load(manifest["spec"]["serveConfigV2"])
    arguments = config["applications"][0]["args"]
    arguments |= {"model_dir": str(tmp_path / "m"), "replicas": 1, "num_cpus": 1, "num_gpus": 0}
    config["http_options"] |= {"host": "127.0.0.1", "port": (port := free_port())}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    command = [str(Path(sys.executable).parent / "serve"), "run", "--address", "local", str(tmp_path / "config.yaml")]
    environ = node_environ() | {"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    environ |= {"RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1"}

    def start() -> Server:
        return Server(
            tmp_path / "m", "option.rolling_batch=echo\n", command=command, port=port, environ=environ | PATIENCE
        )

    with started(start, signal.SIGINT) as server:
        assert server.invoke({"inputs": "Hi"}).json() == {"generated_text": "Hi"}
