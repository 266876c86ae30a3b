"""Where clients may load models from."""

from __future__ import annotations

from pathlib import Path

import pytest
from s3_server import S3Server

from lmi_handlers.config.store_settings import StoreSettings
from lmi_handlers.core.errors import ConfigError, ModelNotFound
from lmi_handlers.models.source import opened

# boto3 leaves a connection that broke to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def test_clients_load_from_the_listed_folders_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = S3Server()
    try:
        for name, value in server.environ.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("LMI_CACHE_DIR", str(tmp_path / "cache"))
        files = {"config.json": b"{}", "model.safetensors": b"weights"}
        folders = ("models/m", "models-2/m", "n")
        server.put("open", {f"{folder}/{name}": data for folder in folders for name, data in files.items()})
        environ = {"LMI_MODEL_STORE": str(tmp_path), "LMI_MODEL_SOURCES": "s3://open/models, s3://other/"}
        store = StoreSettings.from_environ(environ, None)
        assert store is not None
        with opened("s3://open/models/m/", store, is_operators=False) as folder:
            assert (folder / "config.json").is_file()
        with opened("s3://open/n/", store, is_operators=True) as folder:
            assert (folder / "config.json").is_file()
        for url in ("s3://open/models-2/m/", "S3://open/n/", "s3://open/", "s3://open/models", "s3://others/m"):
            with pytest.raises(ModelNotFound, match="LMI_MODEL_SOURCES"), opened(url, store, is_operators=False):
                pass
    finally:
        server.stop()


@pytest.mark.parametrize("sources", ["s3://", "/models", "s3://a/,https://b/"])
def test_sources_are_folders_in_s3(tmp_path: Path, sources: str) -> None:
    with pytest.raises(ConfigError, match="LMI_MODEL_SOURCES"):
        StoreSettings.from_environ({"LMI_MODEL_STORE": str(tmp_path), "LMI_MODEL_SOURCES": sources}, None)
