"""Sizes, LMCache's variables and its folder for `option.lmcache_auto_config`. What vLLM makes of it: test_vllm_model_runners."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = [pytest.mark.needs("vllm"), pytest.mark.model]

GIB = 2**30


@pytest.mark.parametrize(
    ("free", "model", "engines", "each"),
    [
        (100 * GIB, 10 * GIB, 1, 80 * GIB),  # a fifth is left
        (100 * GIB, 30 * GIB, 1, 40 * GIB),  # twice the model's size is left
        (100 * GIB, 30 * GIB, 4, 10 * GIB),
        (100 * GIB, 60 * GIB, 1, 0),
        (0, 0, 1, 0),
    ],
)
def test_share_of_what_is_free(free: int, model: int, engines: int, each: int) -> None:
    from backends.vllm.offload import share

    assert share(free, model, engines) == each


def test_variables_divide_the_room_among_the_workers() -> None:
    from backends.vllm.offload import OffloadSpace, lmcache_variables

    variables = lmcache_variables(OffloadSpace(memory=9 * GIB, disk=3 * GIB), 2, Path("/folder"))
    assert variables["LMCACHE_MAX_LOCAL_CPU_SIZE"] == "4.500"
    assert variables["LMCACHE_MAX_LOCAL_DISK_SIZE"] == "1.500"
    assert variables["LMCACHE_LOCAL_DISK"] == "file:///folder/"


HOLD = """
import sys, time
from pathlib import Path
from unittest.mock import MagicMock
sys.modules |= dict.fromkeys(("vllm", "vllm.config", "vllm.platforms"), MagicMock())  # to import vLLM takes long
from backends.vllm.offload import own_folder
folder = own_folder(Path(sys.argv[1]))
(folder / "block").write_bytes(b"x")
(folder / "blocks").mkdir()
(folder / "outside").symlink_to(sys.argv[2])
print(folder.name, flush=True)
time.sleep(600)
"""


def test_each_engine_has_an_empty_folder_of_its_own(tmp_path: Path) -> None:
    """A killed engine leaves its files, which the next one in its place deletes; nothing behind a link goes with them."""
    from backends.vllm.offload import own_folder

    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (outside / "kept").touch()
    with subprocess.Popen([sys.executable, "-c", HOLD, root, outside], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "0\n"
        assert own_folder(root) == root / "1"
        os.kill(other.pid, signal.SIGKILL)
    assert own_folder(root) == root / "0"
    assert list((root / "0").iterdir()) == []
    assert (outside / "kept").exists()


@pytest.mark.parametrize(
    ("connector", "inner", "salts", "media"),
    [
        (None, (), True, True),
        ("OffloadingConnector", (), True, True),
        ("NixlConnector", (), True, True),
        ("MultiConnector", ("NixlConnector", "OffloadingConnector"), True, True),
        ("MultiConnector", ("NixlConnector", "LMCacheConnectorV1"), False, True),
        ("MultiConnector", ("NixlConnector", "LMCacheMPConnector"), True, False),
        ("LMCacheConnectorV1", (), False, True),
        ("LMCacheMPConnector", (), True, False),
        ("HF3FSKVConnector", (), False, False),
        ("ExampleConnector", (), False, False),
    ],
)
def test_salts_and_media_are_only_taken_where_they_isolate(
    connector: str | None, inner: tuple[str, ...], salts: bool, media: bool
) -> None:
    from vllm.config import KVTransferConfig

    from backends.vllm.offload import keeps_media_apart, keeps_salts_apart

    connectors = [{"kv_connector": name, "kv_role": "kv_both"} for name in inner]
    extra = {"connectors": connectors} if inner else {}
    transfer = (
        None
        if connector is None
        else KVTransferConfig(kv_connector=connector, kv_role="kv_both", kv_connector_extra_config=extra)
    )
    config: Any = SimpleNamespace(kv_transfer_config=transfer)
    assert (keeps_salts_apart(config), keeps_media_apart(config)) == (salts, media)


def test_a_connector_of_others_is_not_known_to_isolate() -> None:
    from vllm.config import KVTransferConfig

    from backends.vllm.offload import keeps_salts_apart

    named = {"kv_connector": "OffloadingConnector", "kv_connector_module_path": "elsewhere", "kv_role": "kv_both"}
    config: Any = SimpleNamespace(kv_transfer_config=KVTransferConfig(**named))
    assert not keeps_salts_apart(config)
