"""Where adapters come from: folders, archives and S3, at start-up and while the server runs."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from empty_weights import NO_TENSORS
from facts import raises
from s3_server import S3Server

from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import ConfigError, InvalidRequest, LoadFailed
from lmi_handlers.engine.adapters import AdapterSources, find_adapters, own_adapter
from lmi_handlers.model_files.adapter_weights import CONFIG_NAME

WEIGHTS = "adapter_model.safetensors"
OTHERS = b"\x03\0\0\0\0\0\0\0{ }"
FILES = {CONFIG_NAME: b"{}", WEIGHTS: NO_TENSORS.encode()}


def archive(files: dict[str, bytes], link: str = "") -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        if link:
            info = tarfile.TarInfo("link")
            info.type, info.linkname = tarfile.SYMTYPE, link
            tar.addfile(info)
    return data.getvalue()


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    server = S3Server()
    files = {f"adapters/french/{name}": data for name, data in FILES.items()}
    files["adapters/french.tar.gz"] = archive({f"french/{name}": data for name, data in FILES.items()})
    files["adapters/linked.tgz"] = archive(FILES, link="/etc/passwd")
    files[f"adapters/pickled/{CONFIG_NAME}"] = files["adapters/pickled/adapter_model.bin"] = b"{}"
    files["adapters/weights/adapter_model.safetensors"] = b"x"
    files[f"adapters-2/{WEIGHTS}"] = b"x"
    server.put("models", files)
    yield server
    server.stop()


@pytest.fixture
def cache(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in (server.environ | {"LMI_CACHE_DIR": str(tmp_path / "cache")}).items():
        monkeypatch.setenv(name, value)
    return tmp_path / "cache" / "models"


def sources(*stores: object, **options: object) -> AdapterSources:
    return AdapterSources(ServingProperties(adapter_store=", ".join(map(str, stores)), **options), None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("../other", "outside option.adapter_store"),
        ("/etc", "outside option.adapter_store"),
        ("link", "outside option.adapter_store"),
        ("linked", "outside option.adapter_store"),
        ("link.tar.gz", "outside option.adapter_store"),
        ("circle", "not folder read"),
        ("empty", "no adapter_config.json"),
        ("file", "not folder read"),
        ("pipe.tar.gz", "not folder read"),
        ("damaged.tar.gz", "damaged.tar.gz tar.gz damaged"),
        ("escaping.tgz", "not safe file name"),
        ("", "folder archive"),
        ("file://elsewhere/a", "folder archive"),
        ("https://example.com/a.tar.gz", "folder archive"),
        ("a\nb", "folder archive"),
        ("x" * 5000, "folder archive"),
        ("x" * 1000, "not folder read"),
        ("\ud800", "folder archive"),
        ("s3://bucket/adapter", "outside option.adapter_store"),
        ("s3://models/adapters", "outside option.adapter_store"),
        ("s3://models/adapters/a/../../secret", "nothing below prefix"),
        ("s3://models/adapters/french-2", "outside option.adapter_store"),
        ("s3://models//adapters/french", "not S3 URL:"),
        ("s3://mod els/adapters/french", "does not name bucket"),
        ("S3://models/adapters/" + "a" * 5000, "1100 characters"),
    ],
)
def test_sources_that_are_refused(cache: Path, tmp_path: Path, source: str, cause: str) -> None:
    store, other = tmp_path / "store", tmp_path / "other"
    for folder in (store / "a", store / "linked", other):
        folder.mkdir(parents=True)
        (folder / CONFIG_NAME).write_text("{}")
    (store / "link").symlink_to(other)
    (store / "linked" / "weights").symlink_to(other / CONFIG_NAME)
    (store / "circle").symlink_to(store / "circle")
    (other / "x.tar.gz").write_bytes(archive(FILES))
    (store / "link.tar.gz").symlink_to(other / "x.tar.gz")
    (store / "damaged.tar.gz").write_bytes(archive(FILES)[:-20])
    (store / "escaping.tgz").write_bytes(archive(FILES | {"../x": b""}))
    os.mkfifo(store / "pipe.tar.gz")
    (store / "empty").mkdir()
    (store / "file").write_text("")
    allowed = sources(store, "s3://models/adapters/a", "s3://models/adapters/french")
    for good in ("a", str(store / "a"), f"file://{store}/a", "linked/../a"):
        with allowed.open(good) as folder:
            assert folder == store / "a"
    with sources(store, other).open(str(other)) as folder:
        assert folder == other
    with raises(InvalidRequest, cause) as failure, allowed.open(source):
        pass
    assert len(str(failure.value)) < 500
    assert "\n" not in str(failure.value)
    assert not [path for path in cache.glob("*") if path.is_dir() and path.suffix != ".partial"]


@pytest.mark.parametrize("name", ["french/", "french", "french.tar.gz"])
def test_adapter_in_s3_is_downloaded_once_and_kept_while_it_is_open(server: S3Server, cache: Path, name: str) -> None:
    """An engine that is started again does not ask S3, and another version in S3 is another adapter."""
    allowed, url = sources("s3://models/adapters/"), f"s3://models/adapters/{name}"
    with allowed.open(url) as folder:
        assert {file.name: file.read_bytes() for file in folder.iterdir()} == FILES
        with server.proxy.breaking("500"), allowed.open(url, str(folder)) as again:
            assert again == folder
        server.proxy.gets.clear()
    with allowed.open(url, str(cache / "gone-0")) as found:
        assert found == folder
    assert not server.proxy.gets
    small = sources("s3://models/adapters", model_cache_size="9")
    with small.open(url), raises(InvalidRequest, "models in use"):
        small.open("s3://models/adapters/weights/").__enter__()


def test_s3_that_does_not_answer_or_has_no_adapter(
    server: S3Server, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    allowed = sources("s3://models/adapters/")
    with server.proxy.breaking("500"), pytest.raises(LoadFailed, match="S3 answered 500"):
        allowed.open("s3://models/adapters/french/").__enter__()
    for name, cause in (
        ("pickled", "adapter_model.bin is a pickle file"),
        ("weights", "'s3://models/adapters/weights' is not an adapter: it has no adapter_config.json"),
        ("linked.tgz", "'link', which is neither a file nor a folder"),
        ("nothing", "there is nothing below this prefix"),
    ):
        with pytest.raises(InvalidRequest, match=cause), allowed.open(f"s3://models/adapters/{name}"):
            pass
    monkeypatch.setenv("SAGEMAKER_SECURE_MODE", "true")
    monkeypatch.setenv("SAGEMAKER_SECURITY_CONTROLS", "DISALLOW_PICKLE_FILES")
    trusting = sources("s3://models/adapters/", allow_pickle=True)
    with (
        pytest.raises(InvalidRequest, match="is forbidden in secure mode"),
        trusting.open("s3://models/adapters/pickled"),
    ):
        pass


def test_formatters_need_an_option_and_are_forbidden_in_secure_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    script = tmp_path / "model.py"
    script.write_text("from djl_python.output_formatter import output_formatter\n\n@output_formatter\ndef f(o): ...\n")
    with raises(InvalidRequest, "formatters model.py option.adapter_formatters"), sources(tmp_path).open(str(tmp_path)):
        pass
    with sources(tmp_path, adapter_formatters=True).open(str(tmp_path)) as folder:
        assert folder == tmp_path
    monkeypatch.setenv("SAGEMAKER_SECURE_MODE", "true")
    monkeypatch.setenv("SAGEMAKER_SECURITY_CONTROLS", "DISALLOW_CUSTOM_INFERENCE_SCRIPTS")
    with (
        raises(InvalidRequest, f"{script} forbidden DISALLOW_CUSTOM_INFERENCE_SCRIPTS"),
        sources(tmp_path, adapter_formatters=True).open(str(tmp_path)),
    ):
        pass


def test_archives_beside_the_model(cache: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    (model / "adapters" / "english").mkdir(parents=True)
    (model / "adapters" / "english" / CONFIG_NAME).write_text("{}")
    (model / "adapters" / "README.md").write_text("")
    french = model / "adapters" / "french.tar.gz"
    french.write_bytes(archive(FILES))
    properties = ServingProperties(enable_lora=True, model_dir=str(model))
    assert find_adapters(properties, None) == {"english": model / "adapters" / "english", "french": french}
    with own_adapter(french, properties) as first:
        assert {file.name: file.read_bytes() for file in first.iterdir()} == FILES
        french.write_bytes(archive(FILES | {WEIGHTS: OTHERS}))
        os.utime(french, ns=(0, 0))
        with own_adapter(french, properties) as second, AdapterSources(properties, None).open(str(french)) as third:
            assert second == third != first
            assert (second / WEIGHTS).read_bytes() == OTHERS
    french.write_bytes(archive({"config.json": b"{}"}))
    with (
        raises(ConfigError, "french.tar.gz not adapter no"),
        own_adapter(french, properties),
    ):
        pass
    (model / "adapters" / "english.tgz").write_bytes(archive(FILES))
    with pytest.raises(ConfigError, match="are two adapters of one name"):
        find_adapters(properties, None)


def test_archive_that_is_refused_takes_no_space(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "linked.tgz").write_bytes(archive(FILES, link="/etc/passwd"))
    for source, store in (("linked.tgz", tmp_path), ("s3://models/adapters/linked.tgz", "s3://models/adapters/")):
        with (
            pytest.raises(InvalidRequest, match="neither a file nor a folder"),
            sources(store, enable_lora=True).open(str(source)),
        ):
            pass
    assert len(list(cache.glob("*.partial"))) == 2
    assert not [path for path in cache.glob("*.partial/**/*") if path.is_file()]


def test_url_in_the_option_is_checked_at_start() -> None:
    with pytest.raises(ConfigError, match="does not name a bucket"):
        sources("s3://Not_A_Bucket/x")
