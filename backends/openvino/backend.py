"""The OpenVINO adapter: converts a model once, and compiles it for this CPU."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from backends.base import ModelFiles
from backends.max_model_len import choose_max_model_len
from backends.openvino import DECLARATION
from backends.openvino.checkpoint import context_length, convert_checkpoint, converter
from backends.openvino.gguf import convert_gguf
from backends.openvino.model import (
    EXACT,
    INTEGER,
    INTEGER_AND_BFLOAT16,
    MODEL_NAME,
    Change,
    Parts,
    change_model,
    compile_model,
)
from backends.openvino.options import OpenVinoOptions
from backends.openvino.precision import FLOATS, INTEGERS, INTEGERS_AND_BFLOAT16, choose_precision, is_quantised
from backends.openvino.quantize import quantize
from backends.openvino.runner import OpenVinoRunner, kv_block, try_out
from backends.openvino.weight_forms import use_floats, use_integers
from backends.paged.backend import MAX_LOGPROBS, PagedBackend
from backends.paged.memory import available_on_cpu, choose_num_blocks, free_memory
from backends.paged.options import DEFAULT_BATCH_SIZE, DEFAULT_PREFILL_TOKENS
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.core.convert_once import convert_once
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.gguf import read_gguf_header
from lmi_handlers.core.load_phase import LoadPhase
from lmi_handlers.text.bundle import TOKENIZER_FILE

logger = logging.getLogger(__name__)

_PROPERTIES = {FLOATS: EXACT, INTEGERS: INTEGER, INTEGERS_AND_BFLOAT16: INTEGER_AND_BFLOAT16}


class OpenVinoBackend(PagedBackend):
    """Continuous batching on a CPU, with the weights as the files have them, in float32 or with 8-bit integers."""

    @classmethod
    def load(cls, model: ModelFiles, properties: ServingProperties, report: Callable[[str], None]) -> OpenVinoBackend:
        """Convert the model if that has not been done yet, and compile the result."""
        if model.path is None or model.cache is None:
            raise ConfigError("option.model_id: the openvino backend needs a model")
        path, gguf_file, options = model.path, model.gguf_file, properties.options_of(OpenVinoOptions)
        max_num_seqs = properties.max_rolling_batch_size or DEFAULT_BATCH_SIZE
        header = None if gguf_file is None else read_gguf_header(gguf_file)
        limit = context_length(path) if header is None else header.context_length
        max_model_len = choose_max_model_len(limit, properties.max_model_len)

        DECLARATION.check_choices(properties)
        method = properties.quantize
        dtype, reason = choose_precision(properties, header)
        if properties.dtype == "int8" and dtype == FLOATS:
            logger.warning("option.dtype: int8 is not available; float32 is used", extra={"reason": reason})
        logger.info("dtype selected", extra={"dtype": dtype, "reason": reason})
        form, changes = "", list[Change]()
        if method is not None:
            changes.append(functools.partial(quantize, method=method))
        if is_quantised(properties, header):
            form, change = ("floats-2", use_floats) if dtype == FLOATS else ("integers-2", use_integers)
            changes.append(change)

        def convert(partial: Path) -> None:
            if gguf_file is not None:
                convert_gguf(gguf_file, partial, report, changes)
                return
            convert_checkpoint(path, partial, report, trust_remote_code=properties.trust_remote_code)
            if changes:
                report(f"converting {path.name}: {method}")
                change_model(partial / MODEL_NAME, changes)

        report(LoadPhase.MODEL)
        # Another version may read the file differently.
        forms = [f"openvino-{version('openvino')}", method, form]
        name = "-".join(form for form in forms if form)
        tools = converter(trust_remote_code=properties.trust_remote_code)
        folder = convert_once(model.cache / name, convert, report, converter=tools)
        report(LoadPhase.COMPILING)
        compiled, dtype = _compile(folder / MODEL_NAME, dtype)
        compile_again = functools.partial(compile_model, folder / MODEL_NAME, _PROPERTIES[dtype])
        block_size, bytes_per_block = kv_block(compiled)
        num_blocks = choose_num_blocks(
            properties.kv_cache_memory_bytes,
            bytes_per_block=bytes_per_block,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            free=(free := free_memory()),
            available=available_on_cpu(free),
        )
        runner = OpenVinoRunner(compiled, num_blocks, compile_again)
        backend = cls(
            runner,
            Capabilities(
                backend="openvino",
                max_model_len=max_model_len,
                max_num_seqs=max_num_seqs,
                vocab_size=runner.vocab_size,
                max_logprobs=MAX_LOGPROBS,
                unsupported=tuple(DECLARATION.unsupported),
                device="cpu",
                dtype=dtype,
                takes_cache_salt=True,
            ),
            eos_token_ids=model.eos_token_ids,
            tokenizer_file=model.path / TOKENIZER_FILE,
            max_prefill_tokens=properties.max_rolling_batch_prefill_tokens or DEFAULT_PREFILL_TOKENS,
            enable_prefix_caching=options.enable_prefix_caching is not False,
            prompt_lookup_num_tokens=options.prompt_lookup_num_tokens or 0,
            thinking=model.thinking,
        )
        report(LoadPhase.WARM_UP)
        backend.warm_up()
        backend.open_prefix_file(options, model)
        return backend


def _compile(ir_file: Path, dtype: str) -> tuple[Parts, str]:
    """Return the compiled model and its data type. Where bfloat16 fails, float32 takes its place."""
    if dtype == INTEGERS_AND_BFLOAT16:
        try:
            return _compile_and_try_out(ir_file, _PROPERTIES[dtype]), dtype
        except RuntimeError as error:  # a processor says what it has, and not which kernels OpenVINO has for it
            cause = str(error).strip().rpartition("\n")[2]
            logger.warning("bfloat16 fails; float32 is used", extra={"cause": cause})
            dtype = INTEGERS
    # The other one is freed by now: both may not fit in memory.
    return compile_model(ir_file, _PROPERTIES[dtype]), dtype


def _compile_and_try_out(ir_file: Path, properties: dict[str, str]) -> Parts:
    compile_again = functools.partial(compile_model, ir_file, properties)
    compiled = compile_again()
    try_out(compiled, compile_again)
    return compiled
