"""Which tests run one after the other in the same test process."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling


class Groups(LoadScopeScheduling):  # type: ignore[misc]  # has no types
    """Gives each test process a group at a time. (The groups of pytest-xdist 3.8 are lost with pytest 9.2.)"""

    def _split_scope(self, nodeid: str) -> str:
        """Return the group of a test: all tests of Ray, all of vLLM, otherwise those of its module.

        Only one HAProxy of Ray runs on a machine. Tests with vLLM share a server, and two engines take longer than one.
        """
        path = nodeid.partition("::")[0]
        if "ray_serve" in path:
            return "ray"
        return "vllm" if "vllm" in nodeid.lower() else path
