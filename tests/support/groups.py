"""Which tests run one after the other in the same test process."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling


class Groups(LoadScopeScheduling):  # type: ignore[misc]  # has no types
    """Gives each test process a group at a time. (The groups of pytest-xdist 3.8 are lost with pytest 9.2.)"""

    def _split_scope(self, nodeid: str) -> str:
        """Return the group of a test: all tests of Ray, of vLLM as a library, of a server that many share, or of its module.

        Only one HAProxy of Ray runs on a machine. An engine with the real model takes gigabytes, and a while to start.
        """
        path = nodeid.partition("::")[0]
        if "ray_serve" in path:
            return "ray"
        if "vllm" in nodeid.lower():
            return "vllm library" if "backends" in path else "vllm server"
        return "model server" if "[scheduler" in nodeid else path
