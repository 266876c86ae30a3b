"""Which tests run one after the other in the same test process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from xdist.scheduler import LoadScopeScheduling

FIRST = (
    "vllm server",
    "vllm library",
    "ray",
    "model server",
    "tests/backends/test_backend_contract.py",
    "tests/system/test_image.py",
    "tests/system/test_container.py",
    "tests/system/test_faults.py",
    "tests/openapi/test_openapi_requests.py",
    "tests/backends/test_greedy_equality.py",
    "tests/models/test_model_cycles.py",
    "tests/system/test_release.py",
    "tests/backends/test_openvino_checkpoint.py",
    "tests/backends/test_images.py",
    "tests/custom_code/test_custom_code_start.py",
    "tests/backends/test_cross_encoders.py",
    "tests/backends/test_openvino_quantize.py",
    "tests/custom_code/test_formatters_on_transformers.py",
    "tests/system/test_tutorial.py",
    "tests/web/test_gunicorn_alone.py",
    "tests/custom_code/test_published_handlers.py",
    "tests/system/test_example_programs.py",
    "tests/system/test_notebooks.py",
    "tests/apis/test_sampling_defaults.py",
    "tests/system/test_s3_model.py",
    "tests/custom_code/test_child_environment.py",
    "tests/custom_code/test_hugging_face_handlers.py",
    "tests/custom_code/test_requirements.py",
    "tests/custom_code/test_empty_bodies.py",
    "tests/web/test_web_worker.py",
)
"""Groups that take longer than their number of tests tells, the longest first. One that began last would run alone."""

_OF_SERVERS = ("test_vllm_server.py", "test_remote_engines.py", "test_structured_outputs.py")
"""Modules of tests/backends that do not load vLLM into the test process. Elsewhere, only tests of parsers do."""


class Groups(LoadScopeScheduling):  # type: ignore[misc]  # has no types
    """Gives each test process a group at a time. (The groups of pytest-xdist 3.8 are lost with pytest 9.2.)"""

    def _assign_work_unit(self, node: Any) -> None:
        """Give a test process the first of `FIRST` that is left. Of the others, those with most tests come first."""
        for group in FIRST:
            if group in self.workqueue:
                self.workqueue.move_to_end(group, last=False)
                break
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        """Return the group of a test: all tests of Ray, of vLLM as a library, of a server that many share, or of its module.

        Only one HAProxy of Ray runs on a machine. An engine with the real model takes gigabytes, and a while to start.
        """
        path = nodeid.partition("::")[0]
        if "ray_serve" in path:
            return "ray"
        if "vllm" in nodeid.lower():
            is_server = path.endswith(_OF_SERVERS) or not ("backends" in path or "output_parsers" in path)
            return "vllm server" if is_server else "vllm library"
        return "model server" if "[scheduler" in nodeid else path


def repeated(ids: Iterable[str]) -> list[str]:
    """Return the ids that more than one test has. Test processes are told ids, so they would run one of these tests only."""
    return [each for each, count in Counter(ids).items() if count > 1]
