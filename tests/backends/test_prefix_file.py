"""Shared prefixes in a file: greedy answers are equal over a restart, and no file that is not sound and ours is used."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from facts import raises, says
from full_disk import small_disk
from paged_runner import StoredTokensBackend, StoredTokensRunner

from backends.base import ModelFiles
from backends.paged import prefix_store
from backends.paged.block_pool import BlockPool, block_digests
from backends.paged.options import PagedOptions
from backends.paged.prefix_file import PrefixFile, Unusable
from backends.paged.prefix_store import PrefixStore
from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.core.engine_counters import EngineCounters
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.outputs import TokenOutput
from lmi_handlers.core.request import EncodedPrompt, TokenRequest
from lmi_handlers.core.sampling_params import SamplingParams

SYSTEM = list(range(3, 43))
"""Ten blocks."""
BLOCK = 64
"""Bytes in the tests of the file itself."""
IDENTITY = bytes(range(32))


def a_file(path: Path, *, identity: bytes = IDENTITY, blocks: int = 8, block_bytes: int = BLOCK) -> PrefixFile:
    return PrefixFile(path, identity=identity, block_bytes=block_bytes, max_bytes=100 + blocks * (40 + block_bytes))


def digest(number: int) -> bytes:
    return number.to_bytes(16, "little")


def content(number: int, size: int = BLOCK) -> bytes:
    return bytes([number % 251]) * size


@contextmanager
def engine(path: Path, *, size: str = "1M", number: int = 0, runner: Any = None) -> Iterator[StoredTokensBackend]:
    """An engine that has opened the file."""
    runner = StoredTokensRunner(40) if runner is None else runner
    capabilities = Capabilities(
        backend="paged", max_model_len=100, vocab_size=runner.vocab_size, max_num_seqs=6, takes_cache_salt=True
    )
    backend = StoredTokensBackend(runner, capabilities)
    options = PagedOptions(prefix_cache_file=str(path), prefix_cache_file_bytes=size)
    files = ModelFiles(path=None, cache=Path("model-1"), eos_token_ids=(), vocab_size=64, engine=number, engines=2)
    try:
        backend.open_prefix_file(options, files)
        yield backend
    finally:
        backend.close()


def answer(backend: StoredTokensBackend, last: int, *, salt: str | None = None, **params: Any) -> tuple[list[int], int]:
    """The tokens of the answer to the system prompt and this token, and how many of the prompt were cached."""
    params = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True} | params
    backend.add_request(
        TokenRequest(
            request_id=f"r{last}",
            prompt=EncodedPrompt([*SYSTEM, last], cache_salt=salt),
            sampling_params=SamplingParams(**params),
        )
    )
    outputs: list[TokenOutput] = []
    while not outputs or outputs[-1].finish_reason is None:
        outputs += backend.step()
    assert outputs[-1].error is None
    return [token for output in outputs for token in output.token_ids], outputs[0].num_cached_tokens or 0


@pytest.mark.model
def test_a_restart_with_a_real_engine(tiny_llama: Path, tmp_path: Path) -> None:
    """Its trial prompt gives the same numbers again, so it finds the blocks."""
    from serving_properties import serving_properties

    from backends.transformers.backend import TransformersBackend

    prompt = [(7 * number) % 250 for number in range(70)]
    seen = []
    for path in (tmp_path / "prefixes", tmp_path / "prefixes", tmp_path / "empty"):
        properties = serving_properties(
            dtype="fp32", kv_cache_memory_bytes="8M", prefix_cache_file=str(path), prefix_cache_file_bytes="8M"
        )
        files = ModelFiles(path=tiny_llama, cache=Path("tiny"), eos_token_ids=(), vocab_size=300)
        backend = TransformersBackend.load(files, properties, lambda phase: None)
        for name in "ab":
            params = SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True)
            item = TokenRequest(request_id=name, prompt=EncodedPrompt(prompt), sampling_params=params)
            backend.add_request(item)
            outputs: list[TokenOutput] = []
            while not outputs or outputs[-1].finish_reason is None:
                outputs += backend.step()
            seen.append((outputs[0].num_cached_tokens, [token for output in outputs for token in output.token_ids]))
        backend.close()
    assert [cached for cached, _ in seen] == [0, 64, 64, 64, 0, 64]
    assert len({tuple(tokens) for _, tokens in seen}) == 1


def external(counters: EngineCounters) -> tuple[int, int]:
    return counters.external_prefix_cache_queries, counters.external_prefix_cache_hits


# Over a restart


def test_answers_are_equal_after_a_restart_which_finds_the_shared_prefix(tmp_path: Path) -> None:
    path = tmp_path / "prefixes"
    with engine(path) as first:
        assert answer(first, 50)[1] == 0
        assert answer(first, 51)[1] == 40
        assert external(first.counters) == (40, 0)
    assert path.stat().st_mode & 0o777 == 0o600
    with engine(tmp_path / "other") as without:
        expected, cached = answer(without, 52)
        assert cached == 0
    with engine(path) as second:
        assert answer(second, 52) == (expected, 40)
        assert answer(second, 51)[1] == 40
        assert external(second.counters) == (40, 40), "what is in memory is not looked up in the file"
        assert second.counters.prefix_cache_hits == 80


def test_a_prefix_that_nobody_has_shared_is_not_kept(tmp_path: Path) -> None:
    with engine(tmp_path / "prefixes") as first:
        answer(first, 50)
    with engine(tmp_path / "prefixes") as second:
        assert answer(second, 50)[1] == 0


def test_a_sequence_that_is_preempted_does_not_share_with_itself(tmp_path: Path) -> None:
    """It finds its own blocks when it goes on. Nobody else has asked for them."""
    prompts = {str(first): [first, *SYSTEM] for first in (1, 2)}
    with engine(tmp_path / "prefixes", runner=StoredTokensRunner(24)) as first:
        params = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)
        for name, prompt in prompts.items():
            first.add_request(TokenRequest(request_id=name, prompt=EncodedPrompt(prompt), sampling_params=params))
        ended: set[str] = set()
        while len(ended) < 2:
            ended |= {output.request_id for output in first.step() if output.finish_reason is not None}
        assert first.counters.num_preemptions
    file = tmp_path / "prefixes"
    assert file.stat().st_size == 100, "there is only the header"


def test_tenants_do_not_find_each_others_prefixes_in_the_file(tmp_path: Path) -> None:
    with engine(tmp_path / "prefixes") as first:
        for last in (50, 51):
            answer(first, last, salt="one")
    for salt, cached in (("two", 0), (None, 0), ("one", 40)):
        with engine(tmp_path / "prefixes") as second:
            assert answer(second, 52, salt=salt)[1] == cached


def test_log_probabilities_of_a_prompt_need_all_of_it(tmp_path: Path) -> None:
    with engine(tmp_path / "prefixes") as first:
        for last in (50, 51):
            answer(first, last)
    with engine(tmp_path / "prefixes") as second:
        assert answer(second, 52, prompt_logprobs=1)[1] == 0
        assert external(second.counters) == (0, 0), "it is not read in vain"


def test_a_damaged_block_is_computed_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The blocks before it are used. It replaces what was damaged when it is shared again."""
    path = tmp_path / "prefixes"
    with engine(path) as first:
        for last in (50, 51):
            answer(first, last)
        expected = answer(first, 52)[0]
    data = bytearray(path.read_bytes())
    # Of the sixth slot: blocks of four 8-byte tokens behind a header of 100 bytes, and each behind a head of 40.
    data[100 + 5 * 72 + 50] ^= 1
    path.write_bytes(data)
    with engine(path) as second:
        assert answer(second, 52) == (expected, 20)
    assert says(caplog.text, "prefix cache file damaged")
    with engine(path) as third:
        answer(third, 53)
        answer(third, 54)
    with engine(path) as fourth:
        assert answer(fourth, 52) == (expected, 40)


class Failing(StoredTokensRunner):
    """From some time on, gives logits that are no numbers."""

    fails = False

    def forward(self, chunks: list[Any]) -> Any:
        return super().forward(chunks) * (np.nan if self.fails else 1.0)


def test_a_prefix_with_which_a_sequence_has_failed_is_forgotten(tmp_path: Path) -> None:
    """It may be why. Otherwise the next engine would fail, too."""
    runner = Failing(40)
    with engine(tmp_path / "prefixes", runner=runner) as first:
        for last in (50, 51, 52):
            answer(first, last)
        runner.fails = True
        with pytest.raises(AssertionError):
            answer(first, 53)
    with engine(tmp_path / "prefixes") as second:
        assert answer(second, 50)[1] == 0


class OtherModel(StoredTokensRunner):
    """Computes something else, such as after an update of the weights in place."""

    def read_block(self, block: int) -> bytes:
        return bytes(255 - byte for byte in super().read_block(block))


def test_blocks_of_another_model_are_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    path = tmp_path / "prefixes"
    with engine(path) as first:
        for last in (50, 51):
            answer(first, last)
    assert path.stat().st_size > 500
    with engine(path, runner=OtherModel(40)) as second:
        assert path.stat().st_size < 500
        assert answer(second, 52)[1] == 0
    assert says(caplog.text, "prefix cache file another model anew")


def test_each_engine_has_a_file_and_a_second_server_has_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "prefixes"
    with engine(path), engine(path, number=1), engine(path) as other_server:
        assert {file.name for file in tmp_path.iterdir()} == {"prefixes", "prefixes-1"}
        assert answer(other_server, 50)[1] == 0
    assert says(caplog.text, "prefix cache file not used")


def test_aborted_while_its_prefix_is_read(tmp_path: Path) -> None:
    with engine(tmp_path / "prefixes") as first:
        for last in (50, 51):
            answer(first, last)
    with engine(tmp_path / "prefixes") as second:
        second.add_request(
            TokenRequest(request_id="gone", prompt=EncodedPrompt([*SYSTEM, 50]), sampling_params=SamplingParams())
        )
        assert second.num_preparing == 1
        second.abort("gone")
        assert second.num_preparing == 0
        assert answer(second, 51)[1] in (0, 40)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prefix_cache_file": "relative"}, "option.prefix_cache_file relative absolute"),
        ({"prefix_cache_file_bytes": "much"}, "option.prefix_cache_file_bytes much"),
        ({"enable_prefix_caching": False}, "option.prefix_cache_file option.enable_prefix_caching"),
    ],
)
def test_wrong_options(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    backend = StoredTokensBackend(
        StoredTokensRunner(40), Capabilities(backend="paged", max_model_len=100, vocab_size=64, max_num_seqs=6)
    )
    asked = PagedOptions(**{"prefix_cache_file": str(tmp_path / "prefixes")} | options)
    with raises(ConfigError, words):
        backend.open_prefix_file(asked, ModelFiles(path=None, eos_token_ids=(), vocab_size=64))


def test_a_model_without_blocks_is_refused(tmp_path: Path) -> None:
    runner = StoredTokensRunner(40)
    runner.shares_blocks = False
    with raises(ConfigError, "option.prefix_cache_file blocks"), engine(tmp_path / "prefixes", runner=runner):
        pass


# The file


def test_the_blocks_used_last_stay_within_the_limit(tmp_path: Path) -> None:
    file = a_file(tmp_path / "f", blocks=4)
    for number in range(1, 5):
        file.write(digest(number), content(number))
    file.use(digest(1))
    assert file.read(digest(2)) == content(2)
    file.close()
    file = a_file(tmp_path / "f", blocks=4)
    for number in (5, 6):
        file.write(digest(number), content(number))
    assert [number for number in range(1, 7) if digest(number) in file] == [1, 2, 5, 6]
    assert (tmp_path / "f").stat().st_size <= 100 + 4 * (40 + BLOCK)
    file.close()
    file = a_file(tmp_path / "f", blocks=2)
    assert len(file) == 2
    assert (tmp_path / "f").stat().st_size == 100 + 2 * (40 + BLOCK)
    file.close()


def _wrong_mode(path: Path) -> None:
    path.touch(mode=0o600)
    path.chmod(0o640)


def _someone_elses(path: Path) -> None:
    path.touch(mode=0o600)
    os.chown(path, 12345, -1)


def _link(path: Path) -> None:
    path.with_name("target").touch(mode=0o600)
    path.symlink_to("target")


def _second_name(path: Path) -> None:
    path.touch(mode=0o600)
    path.with_name("same").hardlink_to(path)


def _notes(path: Path) -> None:
    path.touch(mode=0o600)
    path.write_text("not to be overwritten")


def _shared_folder(path: Path) -> None:
    path.parent.chmod(0o777)


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (_wrong_mode, "mode 640"),
        pytest.param(
            _someone_elses,
            "user 12345",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away"),
        ),
        (_link, "symbolic links"),
        (_second_name, "regular file one name"),
        (os.mkfifo, "regular file"),
        (Path.mkdir, "directory"),
        (_notes, "another kind"),
        (_shared_folder, "others write"),
    ],
)
def test_what_is_not_ours_alone_is_neither_used_nor_changed(
    tmp_path: Path, prepare: Callable[[Path], Any], words: str
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    prepare(folder / "f")
    before = {name: (name.lstat().st_mode, name.lstat().st_size) for name in folder.iterdir()}
    with raises(Unusable, words):
        a_file(folder / "f")
    assert {name: (name.lstat().st_mode, name.lstat().st_size) for name in folder.iterdir() if name in before} == before


def test_a_folder_that_is_missing_is_made_for_us_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    a_file(tmp_path / "folder" / "f").close()
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o700
    with raises(Unusable, "No such file"):
        a_file(tmp_path / "none" / "folder" / "f")


def test_two_do_not_use_it_at_a_time(tmp_path: Path) -> None:
    file = a_file(tmp_path / "f")
    with raises(Unusable, "another engine"):
        a_file(tmp_path / "f")
    file.close()
    a_file(tmp_path / "f").close()


@pytest.mark.parametrize("place", range(0, 100, 3))
def test_a_damaged_header_starts_anew_or_is_not_ours(tmp_path: Path, place: int) -> None:
    file = a_file(tmp_path / "f")
    file.write(digest(1), content(1))
    file.close()
    data = bytearray((tmp_path / "f").read_bytes())
    data[place] ^= 0x55
    (tmp_path / "f").write_bytes(data)
    if place < 8:
        with raises(Unusable, "another kind"):
            a_file(tmp_path / "f")
        return
    file = a_file(tmp_path / "f")
    assert len(file) == 0
    file.close()


def test_no_byte_of_a_slot_can_change_unnoticed(tmp_path: Path) -> None:
    """All but those that say when it was last used, which only decide what stays."""
    file = a_file(tmp_path / "f")
    file.write(digest(1), content(1))
    file.close()
    sound = (tmp_path / "f").read_bytes()
    for place in (*range(16), *range(24, 40 + BLOCK)):
        data = bytearray(sound)
        data[100 + place] ^= 1
        (tmp_path / "f").write_bytes(data)
        file = a_file(tmp_path / "f")
        assert file.read(digest(1)) is None, place
        file.close()
    for length in range(100, len(sound)):
        (tmp_path / "f").write_bytes(sound[:length])
        file = a_file(tmp_path / "f")
        assert file.read(digest(1)) is None, length
        file.close()


def test_a_block_is_read_though_nothing_can_be_written(tmp_path: Path) -> None:
    """Some file systems need room to overwrite what is there."""
    file = a_file(tmp_path / "f")
    file.write(digest(1), content(1))
    read_only = os.open(tmp_path / "f", os.O_RDONLY)
    os.dup2(read_only, file._file)
    os.close(read_only)
    assert file.read(digest(1)) == content(1)
    file.close()


def test_a_limit_that_holds_no_block(tmp_path: Path) -> None:
    with raises(Unusable, "block takes"):
        a_file(tmp_path / "f", blocks=0)


def test_a_full_disk(caplog: pytest.LogCaptureFixture) -> None:
    """Blocks that found room stay, the others are tried again after a pause, and nothing fails."""
    size = 256 * 1024
    now = 0.0
    with small_disk() as folder:
        file = PrefixFile(folder / "f", identity=IDENTITY, block_bytes=size, max_bytes=2**30)
        runner = BlocksRunner(12, size)
        pool = BlockPool(12)
        store = PrefixStore(file, runner, pool, clock=lambda: now)
        digests = block_digests(list(range(48)), 4)
        for block, name in zip(pool.allocate(12), digests, strict=True):
            runner.write_block(block, content(block, size))
            pool.register(block, name)
        filler = folder / "filler"
        filler.write_bytes(bytes(2**20))
        store.keep(digests)
        for _ in range(12):
            store.spill()
            wait(store._writes)
        assert 1 <= len(file) <= 4
        assert says(caplog.text, "prefix cache file cannot written")
        assert all(file.read(name) in (None, content(block, size)) for block, name in enumerate(digests))
        filler.unlink()
        kept = len(file)
        now += prefix_store.PAUSE
        store.keep(digests)
        store.close()
        assert kept < len(file) <= 7, "of 2 MiB, nine tenths"


class BlocksRunner(StoredTokensRunner):
    """Blocks of any size, of which nothing is computed."""

    def __init__(self, num_blocks: int, size: int) -> None:
        super().__init__(num_blocks)
        self._stored = np.zeros((num_blocks, size // 8), np.int64)


class SlowFile(PrefixFile):
    """A disk that hangs."""

    num_reads = num_uses = 0

    def use(self, digest: bytes) -> None:
        self.num_uses += 1
        super().use(digest)

    def read(self, digest: bytes) -> bytes | None:
        self.num_reads += 1
        with self.hung.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until somebody lets go of it
        return super().read(digest)

    hung: Path


def hanging(folder: Path) -> tuple[SlowFile, int, list[bytes]]:
    """A file with a block, the descriptor that holds its disk up until it is closed, and the digests of its prompt."""
    file = SlowFile(folder / "f", identity=IDENTITY, block_bytes=32, max_bytes=2**20)
    file.hung = folder / "hung"
    file.hung.touch()
    held = os.open(file.hung, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    digests = block_digests([1, 2, 3, 4], 4)
    file.write(digests[0], content(1, 32))
    return file, held, digests


def test_a_disk_that_hangs_holds_nobody_up_for_long(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    file, held, digests = hanging(tmp_path)
    store = PrefixStore(file, StoredTokensRunner(4), BlockPool(4), clock=lambda: now)
    restoring = store.restore(digests)
    assert restoring is not None
    assert not store.advance(restoring)
    now += prefix_store.PATIENCE
    assert store.advance(restoring), "it is computed instead"
    assert says(caplog.text, "prefix cache file slow")
    assert store.restore(digests) is None, "the next one does not wait"
    os.close(held)
    wait([restoring.blocks])
    again = store.restore(digests)
    assert again is not None
    assert not store.advance(again)
    wait([again.blocks])
    assert store.advance(again)
    store.close()


def test_prompts_that_begin_alike_are_read_once(tmp_path: Path) -> None:
    """After a restart, all of them come at once. What waits for the disk must not pile up either."""
    file, held, digests = hanging(tmp_path)
    store = PrefixStore(file, StoredTokensRunner(4), BlockPool(4), clock=lambda: 0.0)
    restorings = [restoring for _ in range(8) if (restoring := store.restore(digests)) is not None]
    assert len(restorings) == 8
    assert not any(store.advance(restoring) for restoring in restorings), "one is read, and the others wait for it"
    for _ in range(8):
        store.keep(digests)
    os.close(held)
    wait([restorings[0].blocks])
    assert all(store.advance(restoring) for restoring in restorings)
    store.close()
    assert store.num_hit_tokens == 4
    assert (file.num_reads, file.num_uses) == (1, 2)


def test_after_an_aborted_prompt_the_next_does_not_wait_for_ever(tmp_path: Path) -> None:
    now = 0.0
    file, held, digests = hanging(tmp_path)
    store = PrefixStore(file, StoredTokensRunner(4), BlockPool(4), clock=lambda: now)
    aborted, following = store.restore(digests), store.restore(digests)
    assert aborted is not None
    assert following is not None
    assert not store.advance(following)
    now += prefix_store.PATIENCE
    assert store.advance(following)
    assert store.restore(digests) is None, "the disk hangs"
    os.close(held)
    store.close()
