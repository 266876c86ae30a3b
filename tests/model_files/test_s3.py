"""Models in S3, against a real HTTP S3 server behind a proxy that breaks answers."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from facts import raises
from s3_server import Fault, S3Server
from waiting import wait_until

from lmi_handlers.core.errors import ConfigError, LMIError, LoadFailed
from lmi_handlers.model_files.arriving import ArrivingFile
from lmi_handlers.model_files.fetch import fetched
from lmi_handlers.model_files.model_cache import ModelCache

# boto3 leaves a connection that broke to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

MB = 1 << 20
PART = 8 * MB
WEIGHTS = bytes(range(256)) * (10 * MB // 256)
"""Two ranges."""
MODEL = {
    "m/config.json": b"{}",
    "m/tokenizer.json": b'{"a": 1}',
    "m/model.safetensors": WEIGHTS,
    "m/adapters/french/adapter_model.bin": b"lora",
    "m/empty.txt": b"",
}
UNUSED = {
    "m/pytorch_model.bin": b"x",
    "m/model.gguf": b"x",
    "m/tf_model.h5": b"x",
    "m/onnx/model.onnx": b"x",
    "m/original/consolidated.00.pth": b"x",
    "m/.cache/model.safetensors": b"x",
    "m-2/config.json": b"x",
}


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    server = S3Server()
    server.put("models", MODEL | UNUSED)
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def _environ(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.proxy.gets.clear()
    for name, value in server.environ.items():
        monkeypatch.setenv(name, value)


def ignore(*_: object) -> None:
    pass


@contextlib.contextmanager
def fetching(url: str, cache: Path, *, limit: int | None = None, **options: Any) -> Iterator[Path]:
    with fetched(url, ModelCache(cache, limit), **({"report": ignore, "progress": ignore} | options)) as path:
        yield path


def fetch(url: str, cache: Path, **options: Any) -> dict[str, bytes]:
    """Download, and return the files by their relative paths."""
    with fetching(url, cache, **options) as path:
        return {
            str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()
        } or {path.name: path.read_bytes()}


def entries(cache: Path) -> list[str]:
    """The models that a server would find."""
    return sorted(path.name for path in cache.glob("*") if path.is_dir() and path.suffix != ".partial")


def expected(files: dict[str, bytes]) -> dict[str, bytes]:
    return {key.removeprefix("m/"): data for key, data in sorted(files.items())}


@pytest.mark.parametrize("url", ["s3://models/m/", "s3://models/m"])
def test_only_what_the_model_needs_is_downloaded_and_only_once(server: S3Server, tmp_path: Path, url: str) -> None:
    seen: list[tuple[int, int]] = []
    assert fetch(url, tmp_path, progress=lambda *figures: seen.append(figures)) == expected(MODEL)
    total = sum(map(len, MODEL.values()))
    assert seen[-1] == (total, total)
    assert {path for path in server.proxy.gets if path} == {f"models/{key}" for key in MODEL}
    assert server.proxy.gets.count("models/m/model.safetensors") == 2  # in ranges
    server.proxy.gets.clear()
    assert fetch(url, tmp_path) == expected(MODEL)
    assert not server.proxy.gets


def test_weights_that_no_engine_needs_are_not_downloaded(server: S3Server, tmp_path: Path) -> None:
    light = {key: MODEL[key] for key in ("m/config.json", "m/tokenizer.json", "m/empty.txt")}
    assert fetch("s3://models/m", tmp_path, weights=False) == expected(light)
    assert fetch("s3://models/m", tmp_path) == expected(MODEL)  # another entry of the cache
    server.put("models", {"no-weights/config.json": b"{}", "no-weights/tokenizer.json": b"{}", "gguf/a.gguf": b"x"})
    assert set(fetch("s3://models/no-weights", tmp_path, weights=False)) == {"config.json", "tokenizer.json"}
    assert set(fetch("s3://models/gguf", tmp_path, weights=False)) == {"a.gguf"}  # which has the tokenizer


def test_object_is_a_file(tmp_path: Path) -> None:
    assert fetch("s3://models/m/model.gguf", tmp_path) == {"model.gguf": b"x"}


@pytest.mark.parametrize("fault", ["500", "reset", "truncate", "corrupt", "slow"])
def test_fault_that_passes_costs_only_time(server: S3Server, tmp_path: Path, fault: Fault) -> None:
    with server.proxy.breaking(fault, "model.safetensors", times=2), server.proxy.breaking(fault, "config", times=1):
        assert fetch("s3://models/m", tmp_path) == expected(MODEL)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("corrupt", "s3://models/m/model.safetensors arrived 3"),
        ("truncate", "s3://models/m/model.safetensors:"),
        ("reset", "s3://models/m/model.safetensors:"),
        ("denied", "s3://models/m/model.safetensors denied s3:GetObject"),
        ("expired", "s3://models/m/model.safetensors AWS credentials expired"),
    ],
)
def test_fault_that_stays_is_one_sentence_and_leaves_no_model(
    server: S3Server, tmp_path: Path, fault: Fault, words: str
) -> None:
    with server.proxy.breaking(fault, "model.safetensors"), raises(LMIError, words) as caught:
        fetch("s3://models/m", tmp_path)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, LoadFailed) == (fault not in ("denied", "expired"))
    assert entries(tmp_path) == []
    assert not list(tmp_path.glob("*.partial/files/model.safetensors"))
    complete = {f"models/m/{file.name}" for file in tmp_path.glob("*.partial/files/*.*")}
    server.proxy.gets.clear()
    assert fetch("s3://models/m", tmp_path) == expected(MODEL)
    assert complete.isdisjoint(server.proxy.gets)
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("algorithm", ["CRC32", "SHA1", "SHA256", None])
@pytest.mark.parametrize("in_parts", [False, True])
def test_each_kind_of_checksum_finds_a_wrong_bit(
    server: S3Server, tmp_path: Path, algorithm: Any, in_parts: bool
) -> None:
    key = f"{algorithm}-{in_parts}/model.safetensors"
    if in_parts:
        put_in_parts(server, key, [WEIGHTS[: 5 * MB], WEIGHTS[5 * MB :], b"end"], algorithm)
    else:
        options = {} if algorithm is None else {"ChecksumAlgorithm": algorithm}
        server.client.put_object(Bucket="models", Key=key, Body=WEIGHTS, **options)
    with server.proxy.breaking("corrupt", key, times=1):
        assert len(fetch(f"s3://models/{key}", tmp_path)["model.safetensors"]) >= len(WEIGHTS)
    assert len(server.proxy.gets) == 4  # each range twice


def put_in_parts(server: S3Server, key: str, parts: list[bytes], algorithm: Any) -> None:
    client: Any = server.client  # the stubs have no word for options that are collected first
    target = {"Bucket": "models", "Key": key}
    options = {} if algorithm is None else {"ChecksumAlgorithm": algorithm}
    kind = {} if algorithm is None else {"ChecksumType": "COMPOSITE"}
    upload = client.create_multipart_upload(**target, **options, **kind)["UploadId"]
    done = []
    for number, data in enumerate(parts, 1):
        answer = client.upload_part(**target, UploadId=upload, PartNumber=number, Body=data, **options)
        checksum = {} if algorithm is None else {f"Checksum{algorithm}": answer[f"Checksum{algorithm}"]}
        done.append({"PartNumber": number, "ETag": answer["ETag"]} | checksum)
    client.complete_multipart_upload(**target, UploadId=upload, MultipartUpload={"Parts": done})


def test_parts_of_different_sizes(server: S3Server, tmp_path: Path) -> None:
    """Nobody knows where they end, so their checksum cannot be computed."""
    parts = [WEIGHTS[: 6 * MB], WEIGHTS[: 5 * MB], WEIGHTS[: 4 * MB]]
    put_in_parts(server, "uneven/model.safetensors", parts, None)
    assert fetch("s3://models/uneven", tmp_path) == {"model.safetensors": b"".join(parts)}


def test_file_with_a_hole_is_not_complete(tmp_path: Path) -> None:
    for places, is_complete in (((0, 4), False), ((4, 0, 2), True), ((2, 0, 2, 4), True)):
        file = ArrivingFile(tmp_path / "x", None)
        for place in places:
            file.seek(place)
            file.write(b"ab")
        assert file.close(6) is is_complete


def test_object_that_changes_during_the_download(server: S3Server, tmp_path: Path) -> None:
    server.put("changing", MODEL)

    def change(method: str, path: str) -> None:
        if method == "GET" and path.endswith("model.safetensors"):
            server.client.put_object(Bucket="changing", Key="m/model.safetensors", Body=WEIGHTS[::-1])

    server.proxy.before = change
    try:
        with raises(LoadFailed, "s3://changing/m/model.safetensors changed removed"):
            fetch("s3://changing/m", tmp_path)
    finally:
        server.proxy.before = ignore
    assert entries(tmp_path) == []
    assert fetch("s3://changing/m", tmp_path)["model.safetensors"] == WEIGHTS[::-1]
    assert not list(tmp_path.glob("*.partial"))  # what had arrived of the old one is gone, too


def test_new_version_of_a_model_is_another_entry(server: S3Server, tmp_path: Path) -> None:
    server.put("versions", {"m/a.safetensors": b"1"})
    with fetching("s3://versions/m", tmp_path) as old:
        server.client.put_object(Bucket="versions", Key="m/a.safetensors", Body=b"2")
        assert fetch("s3://versions/m", tmp_path) == {"a.safetensors": b"2"}
        assert (old / "a.safetensors").read_bytes() == b"1"


def test_two_servers_download_a_model_once(server: S3Server, tmp_path: Path) -> None:
    waits = threading.Event()

    def report(phase: str) -> None:
        if phase.startswith("waiting for another process to download s3://models/m (5 files, "):
            waits.set()

    def hold(method: str, path: str) -> None:
        if method == "GET" and path.endswith("model.safetensors"):
            assert waits.wait(60)

    server.proxy.before = hold
    try:
        with ThreadPoolExecutor(2) as pool:
            tasks = [pool.submit(fetch, "s3://models/m", tmp_path, report=report) for _ in range(2)]
            assert [task.result() for task in tasks] == [expected(MODEL)] * 2
    finally:
        server.proxy.before = ignore
    assert server.proxy.gets.count("models/m/model.safetensors") == 2


FETCH = """
import sys
from pathlib import Path
from lmi_handlers.model_files.fetch import fetched
from lmi_handlers.model_files.model_cache import ModelCache
with fetched(sys.argv[1], ModelCache(Path(sys.argv[2]), None), report=print, progress=print):
    pass
"""


def test_killed_download_is_continued(server: S3Server, tmp_path: Path) -> None:
    server.put("large", {"m/config.json": b"{}", "m/1.safetensors": WEIGHTS, "m/2.safetensors": WEIGHTS * 4})
    paused = threading.Event()

    def pause(method: str, path: str) -> None:
        if method == "GET" and path.endswith("2.safetensors"):
            paused.wait(60)

    server.proxy.before = pause
    process = subprocess.Popen([sys.executable, "-c", FETCH, "s3://large/m", str(tmp_path)])
    wait_until(lambda: list(tmp_path.glob("*.partial/files/1.safetensors")), timeout=60)
    process.kill()
    process.wait()
    paused.set()
    server.proxy.before = ignore
    assert entries(tmp_path) == []
    server.proxy.gets.clear()
    assert len(fetch("s3://large/m", tmp_path)) == 3
    assert "large/m/1.safetensors" not in server.proxy.gets


def test_least_recently_used_models_make_room(server: S3Server, tmp_path: Path) -> None:
    for name in "abc":
        server.put(f"model-{name}", {f"{name}/x.safetensors": WEIGHTS})
    limit = 25 * MB
    fetch("s3://model-a/a", tmp_path, limit=limit)
    time.sleep(0.02)
    fetch("s3://model-b/b", tmp_path, limit=limit)
    time.sleep(0.02)
    fetch("s3://model-a/a", tmp_path, limit=limit)
    fetch("s3://model-c/c", tmp_path, limit=limit)
    assert [name[0] for name in entries(tmp_path)] == ["a", "c"]
    with (
        fetching("s3://model-a/a", tmp_path, limit=limit),
        fetching("s3://model-c/c", tmp_path, limit=limit),
        raises(ConfigError, "10.5 MB option.model_cache_size 26.2"),
    ):
        fetch("s3://model-b/b", tmp_path, limit=limit)
    assert [name[0] for name in entries(tmp_path)] == ["a", "c"]


def test_unpacked_archive_counts_and_makes_room(server: S3Server, tmp_path: Path) -> None:
    """The other model goes for what the archive holds, although the archive itself would fit beside it."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for number in range(4):
            member = tarfile.TarInfo(f"m/{number}.safetensors")
            member.size = 3 * MB
            archive.addfile(member, io.BytesIO(bytes(member.size)))
    server.put("archived", {"m.tar.gz": data.getvalue(), "other/x.safetensors": WEIGHTS})
    fetch("s3://archived/other", tmp_path)
    with raises(ConfigError, "m.tar.gz- 3.1 MB option.model_cache_size 10.5"):
        fetch("s3://archived/m.tar.gz", tmp_path, limit=10 * MB)
    assert entries(tmp_path) == []
    fetch("s3://archived/other", tmp_path)
    assert len(fetch("s3://archived/m.tar.gz", tmp_path, limit=15 * MB)) == 4
    assert [name[:8] for name in entries(tmp_path)] == ["m.tar.gz"]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3://no-such-bucket-here/m", "s3://no-such-bucket-here/m bucket not exist"),
        ("s3://models/none/", "s3://models/none/ nothing no object"),
        ("s3://Not_A_Bucket/m", "not bucket S3 URL s3://bucket/folder/"),
        ("s3://key:secret@models/m", "s3://******@models/m does not name bucket"),
        ("s3://models//m", "empty name"),
        ("s3://models/m\n", "control character"),
        ("s3://models/m/adapters/french/../../", "nothing below prefix"),
    ],
)
def test_mistake_in_the_url(tmp_path: Path, url: str, words: str) -> None:
    with raises(ConfigError, words):
        fetch(url, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"m/../../x.safetensors": b"x"}, "not safe file name"),
        ({"m//etc/passwd": b"x"}, "not safe file name"),
        ({"m/a\\..\\b.safetensors": b"x"}, "not safe file name"),
        ({"m/a.safetensors": b"x", "m/a.safetensors/b": b"x"}, "a.safetensors as file folder"),
        ({"m/" + "a" * 300: b"x"}, "file name 300 bytes"),
        (
            {"m/a.gguf": b"x", "m/b.gguf": b"x"},
            "several GGUF a.gguf b.gguf s3:// /m/a.gguf",
        ),
        ({"m/model.tar.gz": b"x"}, "no weights model.tar.gz"),
    ],
)
def test_bucket_without_a_model_that_can_be_served(
    server: S3Server, tmp_path: Path, files: dict[str, bytes], words: str
) -> None:
    bucket = f"bad-{abs(hash(words))}"
    server.put(bucket, files)
    with raises(ConfigError, words):
        fetch(f"s3://{bucket}/m", tmp_path)
    assert not list(tmp_path.iterdir())


def test_requests_without_credentials_are_anonymous(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    server.client.create_bucket(Bucket="public")
    server.client.put_object(Bucket="public", Key="m/x.safetensors", Body=WEIGHTS, ACL="public-read")
    server.client.put_bucket_acl(Bucket="public", ACL="public-read")
    assert fetch("s3://public/m", tmp_path / "cache") == {"x.safetensors": WEIGHTS}
    with (
        server.proxy.breaking("denied", "list-type"),
        raises(ConfigError, "denied no AWS credentials"),
    ):
        fetch("s3://models/m", tmp_path / "cache")


def test_server_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with raises(LoadFailed, "s3://models/m not connect URL"):
        fetch("s3://models/m", tmp_path)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "not a url")
    with pytest.raises(ConfigError, match=r"^s3://models/m: Invalid endpoint: not a url$"):
        fetch("s3://models/m", tmp_path)


def test_secure_mode_searches_what_was_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAGEMAKER_SECURE_MODE", "true")
    monkeypatch.setenv("SAGEMAKER_SECURITY_CONTROLS", "DISALLOW_PICKLE_FILES")
    with raises(ConfigError, "adapter_model.bin forbidden secure"):
        fetch("s3://models/m", tmp_path)
