"""The manifest for KubeRay has the variables of `lmi ray serve`. test_ray_cluster.py serves its application."""

from __future__ import annotations

import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own
from paths import ROOT

from lmi_handlers.ray.environ import node_environ, ray_environ


def test_all_nodes_start_with_the_variables_of_lmi_ray_serve() -> None:
    manifest = yaml.safe_load((ROOT / "examples" / "rayservice.yaml").read_text())
    cluster = manifest["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        (container,) = group["template"]["spec"]["containers"]
        variables = {each["name"]: each["value"] for each in container["env"]}
        assert (ray_environ(predict_timeout=240) | node_environ()).items() <= variables.items()
