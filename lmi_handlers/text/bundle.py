"""The text bundle: what web workers need to know about a model's tokenizer.

The engine process writes it while it loads: a directory with tokenizer.json and bundle.json. Only `AutoTokenizer` can
read every model's tokenizer, but it imports torch, which costs each worker 473 MB and 4 s. So it runs once, in the
engine process, which imports torch anyway. For an engine that reads GGUF files itself, the bundle is made from the
file's header, without torch and transformers.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from lmi_handlers.core.errors import ConfigError, InvalidRequest
from lmi_handlers.core.files import write_whole
from lmi_handlers.core.gguf import read_gguf_header
from lmi_handlers.core.load_failure import load_failure
from lmi_handlers.core.near_file import did_you_mean
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.text.byte_level import byte_characters
from lmi_handlers.text.checkpoint_tokenizer import TOKENIZER_FILE as TOKENIZER_FILE
from lmi_handlers.text.checkpoint_tokenizer import load_tokenizer
from lmi_handlers.text.gguf_tokenizer import build_tokenizer, special_tokens, split_warning

ContentFormat = Literal["auto", "string", "openai"]

logger = logging.getLogger(__name__)

BUNDLE_FILE = "bundle.json"


class TextBundle(msgspec.Struct, frozen=True, kw_only=True):
    """The content of bundle.json.

    `vocab_size` is the number of rows of the model's output, which may be more than the tokenizer has tokens.
    `eos_token_ids` has no duplicates. Its order is generation_config.json, then config.json, then the tokenizer.
    `special_tokens` maps names such as "bos_token" to the token's text, for chat templates.
    `chat_templates` maps names to Jinja sources. The usual template is named "default".
    `model_max_length` is in tokens, or None if the model does not set it.
    `sampling_defaults` has what generation_config.json says of fields of `SamplingParams`. `check_sampling_defaults` checks
    the values, if requests are to have them.
    `image_token` is the placeholder text for an image in a prompt, or None if the model takes no images.
    `audio_token` is the same for a sound.
    `media_tokens` maps the placeholders for images, videos and audio to their ids.
    `content_format` is the value of `option.chat_template_content_format`.
    `template_kwargs` are variables of chat templates that a request may set otherwise.
    `prompts` are the texts that an embedding model wants in front of others, by name (sentence-transformers' prompts).
    `token_type_ids` tells whether the model wants to know which of two texts a token belongs to.
    `tokenizer_hash` changes with the content of tokenizer.json.
    `warning` says how the tokenizer may differ from the model's own. It is logged at every start.
    """

    vocab_size: int
    eos_token_ids: tuple[int, ...]
    special_token_ids: tuple[int, ...]
    special_tokens: dict[str, str] = {}
    chat_templates: dict[str, str] = {}
    model_max_length: int | None = None
    sampling_defaults: dict[str, Any] = {}
    image_token: str | None = None
    audio_token: str | None = None
    media_tokens: dict[str, int] = {}
    content_format: ContentFormat = "auto"
    template_kwargs: dict[str, Any] = {}
    prompts: dict[str, str] = {}
    token_type_ids: bool = False
    tokenizer_hash: str = ""
    warning: str = ""

    @property
    def chat_template(self) -> str | None:
        """The default template, or None if there is none."""
        return self.chat_templates.get("default")

    @property
    def tool_template(self) -> str:
        """The template for requests with tools, or "" if the model has no template."""
        return self.chat_templates.get("tool_use") or self.chat_template or ""


def load_text_bundle(directory: Path) -> TextBundle:
    """Read a bundle from a directory. Raises `ConfigError` if it cannot be read."""
    try:
        return msgspec.json.decode((directory / BUNDLE_FILE).read_bytes(), type=TextBundle)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"no text bundle can be read from {directory}: {error}") from error


def build_text_bundle(
    model_dir: Path,
    directory: Path,
    *,
    trust_remote_code: bool = False,
    gguf_file: str | None = None,
    chat_template: str | None = None,
    content_format: ContentFormat = "auto",
    template_kwargs: dict[str, Any] | None = None,
) -> TextBundle:
    """Write the bundle of the model in `model_dir` to `directory` and return it.

    `gguf_file` names the file in `model_dir` to read the tokenizer from if there is no other. `chat_template` is a
    Jinja source that replaces the model's own. Imports transformers, so only the engine process calls this. Raises
    `ConfigError` if the tokenizer cannot be loaded or the bundle cannot be written.
    """
    tokenizer, backend = load_tokenizer(model_dir, trust_remote_code=trust_remote_code, gguf_file=gguf_file)
    processor = load_processor(model_dir, trust_remote_code=trust_remote_code)
    config = _read_json(model_dir / "config.json")
    generation_config = _read_json(model_dir / "generation_config.json")
    bundle = TextBundle(
        vocab_size=_first_int(config, ("vocab_size",)) or len(tokenizer),
        eos_token_ids=_eos_token_ids(generation_config, config, _text_config(config), tokenizer.eos_token_id),
        special_token_ids=_special_token_ids(backend, tokenizer.all_special_ids),
        special_tokens={name: str(token) for name, token in tokenizer.special_tokens_map.items()},
        chat_templates=_chat_templates(
            chat_template or tokenizer.chat_template or getattr(processor, "chat_template", None)
        ),
        image_token=getattr(processor, "image_token", None),
        audio_token=getattr(processor, "audio_token", None),
        media_tokens=_media_tokens(processor, tokenizer),
        content_format=content_format,
        template_kwargs=template_kwargs or {},
        prompts=_prompts(_read_json(model_dir / "config_sentence_transformers.json")),
        token_type_ids="token_type_ids" in tokenizer.model_input_names,
        model_max_length=_model_max_length(config, tokenizer.model_max_length),
        sampling_defaults=_sampling_defaults(generation_config),
    )
    return _write(bundle, backend, directory)


def build_gguf_bundle(gguf_file: Path, directory: Path) -> TextBundle:
    """Write the bundle of the model in `gguf_file` to `directory` and return it. Needs neither torch nor transformers.

    Raises `ConfigError` if the file cannot be read, or its tokenizer is not supported.
    """
    header = read_gguf_header(gguf_file)
    try:
        backend = build_tokenizer(header.metadata)
        named = special_tokens(header.metadata)
    except Exception as error:  # tokenizers raises nothing more specific
        reason = (
            f"the metadata lacks {error}" if isinstance(error, KeyError) else " ".join(str(error).split())[:_MAX_REASON]
        )
        raise ConfigError(f"option.model_id: the tokenizer in {gguf_file} cannot be read: {reason}") from error
    template = header.metadata.get("tokenizer.chat_template")
    bundle = TextBundle(
        vocab_size=len(header.metadata["tokenizer.ggml.tokens"]),
        eos_token_ids=_eos_token_ids(header.metadata.get("tokenizer.ggml.eos_token_id")),
        special_token_ids=_special_token_ids(backend, ()),
        special_tokens=named,
        chat_templates=_chat_templates(template),
        model_max_length=header.context_length,
        warning=split_warning(header.metadata),
    )
    _write(bundle, backend, directory)
    return bundle


def copy_text_bundle(
    source: Path,
    directory: Path,
    *,
    chat_template: str | None = None,
    content_format: ContentFormat = "auto",
    template_kwargs: dict[str, Any] | None = None,
) -> TextBundle:
    """Copy the bundle in `source` to `directory` and return it, with `chat_template` instead of its own if given."""
    bundle = load_text_bundle(source)
    bundle = msgspec.structs.replace(
        bundle,
        chat_templates=_chat_templates(chat_template) or bundle.chat_templates,
        content_format=content_format,
        template_kwargs=template_kwargs or {},
    )
    _write(bundle, Tokenizer.from_file(str(source / TOKENIZER_FILE)), directory)
    return bundle


def read_chat_template(option: str, model_dir: Path | None) -> str:
    """Return the template that `option.chat_template` specifies, either as a file or as the template text itself.

    Raises `ConfigError` if the file cannot be read.
    """
    if "{" in option:
        return option
    file = Path(option) if model_dir is None else model_dir / option
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"option.chat_template={option} is neither a template nor a file with one: {error}{did_you_mean(file)}"
        ) from error


def build_byte_bundle(
    directory: Path, *, chat_template: str | None = None, template_kwargs: dict[str, Any] | None = None
) -> TextBundle:
    """Write a bundle that needs no model: ids 0 to 255 are the UTF-8 bytes and id 256 is "<|endoftext|>"."""
    backend = Tokenizer(models.BPE(vocab={char: byte for byte, char in enumerate(byte_characters())}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.TemplateProcessing(single="$A", pair="$A:0 $B:1", special_tokens=[])
    backend.add_special_tokens(["<|endoftext|>"])
    end_id = 256
    bundle = TextBundle(
        vocab_size=backend.get_vocab_size(),
        eos_token_ids=(end_id,),
        special_token_ids=(end_id,),
        special_tokens={"eos_token": "<|endoftext|>"},
        chat_templates={"default": chat_template or _BYTE_CHAT_TEMPLATE},
        template_kwargs=template_kwargs or {},
        token_type_ids=True,
    )
    return _write(bundle, backend, directory)


def load_processor(model_dir: Path, *, trust_remote_code: bool) -> Any | None:
    """Return the model's transformers processor, which turns images or sounds into model input.

    Returns None if the model takes neither or the processor cannot be loaded.
    """
    if not any((model_dir / name).exists() for name in _PROCESSOR_FILES):
        return None
    from transformers import AutoProcessor

    try:
        processor = AutoProcessor.from_pretrained(model_dir, trust_remote_code=trust_remote_code)  # type: ignore[no-untyped-call]
    except Exception as error:  # noqa: BLE001  a model may bring its own code, which may raise anything
        logger.warning(
            "images and sounds are not available, because the model's processor cannot be loaded",
            extra={"reason": str(error)},
        )
        return None
    parts = (getattr(processor, part, None) for part in ("image_processor", "feature_extractor"))
    return processor if any(part is not None for part in parts) else None


_MAX_REASON = 500
"""Characters of an error of a library, which may have a token of any length."""

_BYTE_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
_SAMPLING_NAMES = ("temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty")
_PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")
_MAX_LENGTH_NAMES = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "n_ctx",
    "max_sequence_length",
)
_NO_MAX_LENGTH = 2**31  # transformers returns 1e30 if the tokenizer sets no limit


def _media_tokens(processor: Any | None, tokenizer: Any) -> dict[str, int]:
    """Return the placeholder tokens for images, videos and audio, with their ids."""
    known: dict[str, int] = tokenizer.get_vocab()
    tokens = (str(getattr(processor, f"{kind}_token", "")) for kind in ("image", "video", "audio"))
    return {token: known[token] for token in tokens if token in known}


def _read_json(file: Path) -> dict[str, Any]:
    """Return the JSON object in `file`, or an empty one if the file does not exist.

    Raises `ConfigError` if the file cannot be read.
    """
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise load_failure(ConfigError(f"{file} cannot be read: {error}"), error) from error


def check_sampling_defaults(model_dir: Path) -> None:
    """Raise `ConfigError` if a request could not have the sampling defaults of generation_config.json."""
    try:
        msgspec.convert(_sampling_defaults(_read_json(model_dir / "generation_config.json")), SamplingParams)
    except (msgspec.ValidationError, InvalidRequest) as error:
        raise ConfigError(f"option.generation_config=auto: generation_config.json: {error}") from error


def _sampling_defaults(generation_config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: generation_config[name] for name in _SAMPLING_NAMES if generation_config.get(name) is not None}


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a multimodal model's config.json that describes its language model."""
    part = config.get("text_config")
    return part if isinstance(part, dict) else {}


def _first_int(config: Mapping[str, Any], names: Iterable[str]) -> int | None:
    for part in (config, _text_config(config)):
        for name in names:
            if isinstance(value := part.get(name), int):
                return value
    return None


def _eos_token_ids(*sources: Mapping[str, Any] | int | None) -> tuple[int, ...]:
    ids: dict[int, None] = {}  # a set that keeps its order
    for source in sources:
        value = source.get("eos_token_id") if isinstance(source, Mapping) else source
        ids.update(dict.fromkeys(value if isinstance(value, list) else () if value is None else (value,)))
    return tuple(ids)


def _special_token_ids(backend: Tokenizer, named: Iterable[int]) -> tuple[int, ...]:
    added = backend.get_added_tokens_decoder()
    return tuple(sorted({*named, *(token_id for token_id, token in added.items() if token.special)}))


def _chat_templates(template: str | Mapping[str, str] | None) -> dict[str, str]:
    if template is None:
        return {}
    return {"default": template} if isinstance(template, str) else dict(template)


def _prompts(config: Mapping[str, Any]) -> dict[str, str]:
    found = config.get("prompts")
    return {name: text for name, text in found.items() if isinstance(text, str)} if isinstance(found, dict) else {}


def _model_max_length(config: Mapping[str, Any], tokenizer_limit: int) -> int | None:
    if (length := _first_int(config, _MAX_LENGTH_NAMES)) is not None:
        return length
    return int(tokenizer_limit) if tokenizer_limit < _NO_MAX_LENGTH else None


def _write_changed(path: Path, data: bytes) -> None:
    """Write a file, unless it is there already: an engine must be able to restart while the disk is full."""
    if not (path.exists() and path.stat().st_size == len(data) and path.read_bytes() == data):
        write_whole(path, data)


def _write(bundle: TextBundle, backend: Tokenizer, directory: Path) -> TextBundle:
    # A tokenizer.json may have padding and truncation settings from training. They must not pad or cut prompts.
    backend.no_padding()
    backend.no_truncation()
    tokenizer = backend.to_str().encode()
    bundle = msgspec.structs.replace(bundle, tokenizer_hash=hashlib.sha256(tokenizer).hexdigest())
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _write_changed(directory / TOKENIZER_FILE, tokenizer)
        _write_changed(directory / BUNDLE_FILE, msgspec.json.encode(bundle))
    except OSError as error:
        verdict = ConfigError(f"the text bundle cannot be written to {directory}: {error}")
        raise load_failure(verdict, error) from error
    return bundle
