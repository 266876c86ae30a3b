"""Turns a model's files into a folder that is ready to load: downloads them, and converts GGUF once.

Only what is light is imported here. A model that is ready costs a few `stat` calls, and torch and transformers
are only loaded if there is something to convert.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lmi_handlers.core.convert_once import convert_once
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.plugins import importing
from lmi_handlers.model_files.cache_dir import converted_dir, prepared_dir
from lmi_handlers.model_files.complete import check_complete
from lmi_handlers.model_files.hub import download
from lmi_handlers.model_files.locate import find_model, locate_model, looked_in, no_conversion
from lmi_handlers.model_files.without_adapters import without_adapters


def resolve_model(
    model_id: str | None,
    *,
    model_dir: Path | None,
    revision: str | None,
    cache_dir: Path,
    report: Callable[[str], None],
    allow_pickle: bool = False,
    weights: bool = True,
) -> Path:
    """Return a folder with `config.json`, a tokenizer and weights, ready for `from_pretrained`.

    With `allow_pickle`, pickled weights are downloaded if the hub has no others. Without `weights`, none are downloaded
    from the hub or looked for in a folder.
    The arguments are those of `locate_model`. `report` is called with short phases such as "converting x.gguf". Raises
    `ConfigError`, or `LoadFailed` if another try may help.
    """
    path = locate_model(model_id, model_dir=model_dir, revision=revision, cache_dir=cache_dir, weights=weights)
    if path is None:
        repo_id = str(model_id)
        where = looked_in(repo_id, model_dir)
        path = download(
            repo_id,
            where,
            revision=revision,
            cache_dir=cache_dir,
            report=report,
            allow_pickle=allow_pickle,
            weights=weights,
        )
        found = find_model(path, f"option.model_id: {repo_id}, as downloaded to {path},", weights=weights)
        check_complete(found, weights=weights)
        return found
    return path if path.is_dir() else _convert_weights(path, cache_dir, report)


# GGUF


def prepare_gguf(gguf_file: Path, cache_dir: Path, report: Callable[[str], None]) -> Path:
    """Return a folder with the text bundle of `gguf_file`, for an engine that reads the weights from the file itself.

    Needs neither torch nor transformers. Raises `ConfigError`, or `LoadFailed` if another try may help.
    """
    from lmi_handlers.text.bundle import build_gguf_bundle

    check_complete(gguf_file)
    return convert_once(prepared_dir(gguf_file, cache_dir), functools.partial(build_gguf_bundle, gguf_file), report)


def _convert_weights(gguf_file: Path, cache_dir: Path, report: Callable[[str], None]) -> Path:
    def convert(folder: Path) -> None:
        _convert(gguf_file, folder, report)

    return convert_once(converted_dir(gguf_file, cache_dir), convert, report)


def _convert(gguf_file: Path, folder: Path, report: Callable[[str], None]) -> None:
    """Convert `gguf_file` into `folder`: bfloat16 safetensors, tokenizer, chat template and generation defaults."""
    report(f"converting {gguf_file.name}")
    try:
        with importing():
            import gguf  # without it, transformers' own error names no option
            import torch
            from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    except ImportError as error:
        raise ConfigError(no_conversion(str(error))) from error
    with _progress_reported(gguf_file.name, report), _read_once(gguf), without_adapters():
        try:
            tokenizer = AutoTokenizer.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
            model = AutoModelForCausalLM.from_pretrained(
                gguf_file.parent,
                gguf_file=gguf_file.name,
                quantization_config=GgufConfig(dequantize=True),
                dtype=torch.bfloat16,
            )
        except (ImportError, KeyError, NotImplementedError, ValueError) as error:
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise ConfigError(f"option.model_id: {gguf_file} cannot be converted: {reason}") from error
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


@contextmanager
def _read_once(gguf: Any) -> Iterator[None]:
    """Let transformers parse the file once instead of three times, and build the map of tensor names once.

    It builds the map for each of the model's modules. Converting a model of 135M parameters takes half as long.
    """
    originals = {name: getattr(gguf, name) for name in ("GGUFReader", "get_tensor_name_map")}
    for name, function in originals.items():
        setattr(gguf, name, functools.lru_cache(maxsize=1)(function))
    try:
        yield
    finally:
        for name, function in originals.items():
            setattr(gguf, name, function)


@contextmanager
def _progress_reported(name: str, report: Callable[[str], None]) -> Iterator[None]:
    """Report progress to `report` instead of in transformers' progress bars, some of which cannot be turned off."""
    # Imported by name: both modules are untyped, and one does not export its bar.
    reader: Any = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    logging = importlib.import_module("transformers.utils.logging")

    def tqdm(tensors: Sequence[object], **_options: object) -> Iterator[object]:
        reported = 0
        for number, tensor in enumerate(tensors):
            if (percent := 100 * number // len(tensors)) >= reported + 10:
                reported = percent
                report(f"converting {name}: {percent} %")
            yield tensor

    bars_enabled = logging.is_progress_bar_enabled()
    bar = reader.tqdm
    logging.disable_progress_bar()
    reader.tqdm = tqdm
    try:
        yield
    finally:
        reader.tqdm = bar
        if bars_enabled:
            logging.enable_progress_bar()
