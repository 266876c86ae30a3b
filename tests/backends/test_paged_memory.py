"""How many blocks the KV cache gets."""

from __future__ import annotations

from pathlib import Path

import pytest
from facts import raises, says

from backends.paged.memory import available_on_gpu, choose_num_blocks, free_memory
from lmi_handlers.config.sizes import parse_bytes
from lmi_handlers.core.errors import ConfigError

MIB = 2**20


def blocks(asked: str | None = None, free: int | None = None) -> int:
    return choose_num_blocks(
        asked,
        bytes_per_block=MIB,
        block_size=32,
        max_num_seqs=4,
        max_model_len=100,
        free=free,
        available=free,
    )


def test_full_batch_is_the_limit() -> None:
    assert blocks() == 16
    assert blocks(free=1000 * MIB) == 16


def test_cache_gets_what_is_available() -> None:
    assert blocks(free=10 * MIB) == 10


def test_option_wins(caplog: pytest.LogCaptureFixture) -> None:
    assert blocks("100M", free=101 * MIB) == 100
    assert blocks("100M") == 100
    assert not caplog.records


def test_more_than_the_free_memory_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert blocks("100M", free=2 * MIB) == 100
    assert says(caplog.text, "option.kv_cache_memory_bytes=100M 104,857,600 only 2,097,152")


def test_cache_for_less_than_one_sequence_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert blocks("3M") == 3
    assert "longer requests are refused" in caplog.text


@pytest.mark.parametrize(("asked", "free"), [("1000", None), (None, MIB - 1)])
def test_cache_without_a_block_is_an_error(asked: str | None, free: int | None) -> None:
    with raises(ConfigError, f"kv_cache_memory_bytes: {MIB} model"):
        blocks(asked, free)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("7", 7), ("256M", 256 * MIB), ("256MiB", 256 * MIB), ("1.5g", 1536 * MIB), (" 2 GB ", 2048 * MIB), ("1k", 1024)],
)
def test_sizes(text: str, expected: int) -> None:
    assert parse_bytes(text, "x") == expected


@pytest.mark.parametrize("text", ["", "M", "-1", "1e9", "half", "1P", "256 Mm"])
def test_wrong_sizes_are_named(text: str) -> None:
    with raises(ConfigError, "option.x: number bytes"):
        parse_bytes(text, "option.x")


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


MEMINFO = {"proc/meminfo": "MemTotal:       1000 kB\nMemAvailable:    500 kB\n"}


def test_free_memory_is_what_linux_counts_as_available(tmp_path: Path) -> None:
    write(tmp_path, MEMINFO)
    assert free_memory(tmp_path) == 500 * 1024


@pytest.mark.parametrize(
    ("folder", "limit", "used"),
    [
        ("sys/fs/cgroup", "memory.max", "memory.current"),
        ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ],
)
def test_container_limits_it(tmp_path: Path, folder: str, limit: str, used: str) -> None:
    write(tmp_path, {**MEMINFO, f"{folder}/{limit}": "100000\n", f"{folder}/{used}": "60000\n"})
    assert free_memory(tmp_path) == 40000
    write(tmp_path, {f"{folder}/memory.stat": "anon 1\ninactive_file 5000\n"})
    assert free_memory(tmp_path) == 45000


def test_gpu_cache_gets_what_the_weights_leave_of_its_share() -> None:
    assert available_on_gpu(free=60, total=100, utilization=None) == 50
    assert available_on_gpu(free=60, total=100, utilization=0.5) == 10
    assert available_on_gpu(free=60, total=100, utilization=0.3) == 0


def test_container_without_limit(tmp_path: Path) -> None:
    write(tmp_path, {**MEMINFO, "sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/memory.current": "60000\n"})
    assert free_memory(tmp_path) == 500 * 1024


def test_other_systems_do_not_say(tmp_path: Path) -> None:
    assert free_memory(tmp_path) is None
