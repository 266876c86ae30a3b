"""A server with several models, one of which has an adapter."""

from __future__ import annotations

from pathlib import Path

import pytest
from lora import train_adapter
from model_store import ECHO, StoreServer

pytestmark = pytest.mark.long


def test_models_are_listed_with_their_adapters(tiny_llama: Path, tmp_path: Path) -> None:
    import transformers

    options = f"option.model_id={tiny_llama}\noption.rolling_batch=scheduler\noption.enable_lora=true\n"
    server = StoreServer(tmp_path, {"a": ECHO, "m": options}, environ={"SERVING_LOAD_MODELS": "a=a"})
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_llama)
    train_adapter(model, server.store / "m" / "adapters" / "legal", 1, r=2, target_modules="all-linear")
    server.wait_ready()
    try:
        assert server.ask("POST", "/models?url=m").status_code == 200
        listed = server.ask("GET", "/v1/models").json()["data"]
        assert [(info["id"], info["parent"]) for info in listed] == [("a", None), ("m", None), ("legal", "m")]
        assert server.ask("GET", "/v1/models/legal").json()["parent"] == "m"
        assert server.ask("GET", "/v1/models/short").status_code == 404
    finally:
        server.stop()
