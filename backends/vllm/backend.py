"""The adapter: requests in, steps, deltas out, and what becomes of vLLM's errors.

On one device the engine core runs in this very process, which measured faster than vLLM's own split into processes and is
ready in a fraction of the time. With tensor or pipeline parallelism vLLM starts its workers from here.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator
from multiprocessing import connection
from pathlib import Path
from typing import TYPE_CHECKING

from backends.vllm import LOG_LEVEL, UNSUPPORTED

# Before vLLM is imported: it reads these once.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")  # nothing leaves the machine
# This process has threads, whose locks a forked one would inherit. It is vLLM's own choice on CPUs.
os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
# For its child processes: they warn of the libraries that vLLM uses, and of what it leaves behind where it does not start.
os.environ.setdefault("PYTHONWARNINGS", "ignore")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # of threads and memory that it binds, once for each process
os.environ["VLLM_LOGGING_LEVEL"] = LOG_LEVEL

from PIL import Image
from vllm import EngineArgs, LLMEngine
from vllm.config import VllmConfig
from vllm.exceptions import VLLMClientError
from vllm.inputs import EngineInput
from vllm.lora.request import LoRARequest

from backends.base import Backend, Capabilities, ModelFiles
from backends.grammar import Vocabulary
from backends.grammar_compiler import GrammarCompiler
from backends.image_preparer import ImagePreparer
from backends.preparing import Preparing, refusal
from backends.vllm.engine_args import GRAMMAR_LIBRARY, TOKENIZER_FILE, engine_arguments, option_of
from backends.vllm.engine_config import engine_config
from backends.vllm.model_runner import check_buffers, typical_processor
from backends.vllm.sampling import engine_sampling_params, token_output
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import ConfigError, EngineDead, InvalidRequest
from lmi_handlers.core.limits import check_adapter
from lmi_handlers.core.load_failure import load_failure
from lmi_handlers.core.outputs import TokenOutput
from lmi_handlers.core.request import TokenRequest

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)
# It logs at length what it then raises. A filter, as vLLM resets levels when it configures its logging.
logging.getLogger("vllm.transformers_utils.repo_utils").addFilter(lambda _record: False)

_LONGEST_REASON = 400
# vLLM looks at a grammar once more when a request starts, and nobody gets a token meanwhile: at most about a third of this.
_GRAMMAR_SECONDS = 0.1
_TRIAL_SECONDS = 2.0  # for that and a few tokens


class VLLMBackend(Backend):
    """One `LLMEngine`. Whatever leaves its `step` is its death: what state an exception leaves it in is not defined."""

    name = "vllm"

    def __init__(self, engine: LLMEngine, model: ModelFiles) -> None:
        """Load the adapters too. Raises `ConfigError` for one that does not fit the model."""
        self._engine = engine
        self._eos_token_ids = model.eos_token_ids
        config = engine.vllm_config
        self._by_priority = config.scheduler_config.policy == "priority"
        self._has_buffers = config.use_v2_model_runner
        self._requests: dict[str, TokenRequest] = {}
        self._progress = 0
        self._preparing: Preparing[str, EngineInput] = Preparing()
        self._grammars: GrammarCompiler[str] | None = None
        self._images: ImagePreparer[EngineInput] | None = None
        processor = engine.renderer.mm_processor
        if processor is not None and processor.info.allowed_mm_limits.get("image", 0) > 0:
            self._images = ImagePreparer(self._render)
        # vLLM itself takes ten seconds to find a dead worker under load; `workers` is its multiprocess executor's own.
        self._workers = [worker.proc for worker in getattr(engine.model_executor, "workers", ())]
        self._adapters = {
            name: LoRARequest(name, number, str(path)) for number, (name, path) in enumerate(model.adapters.items(), 1)
        }
        for name, adapter in self._adapters.items():
            self._load_adapter(name, adapter)
        logger.info(
            "model loaded",
            extra={
                "dtype": str(config.model_config.dtype).removeprefix("torch."),
                "device": config.device_config.device_type,
                "model_runner": 2 if config.use_v2_model_runner else 1,
                "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
                "pipeline_parallel_size": config.parallel_config.pipeline_parallel_size,
                "kv_cache_tokens": (config.cache_config.num_gpu_blocks or 0) * config.cache_config.block_size,
            },
        )
        self._capabilities = Capabilities(
            backend=self.name,
            max_model_len=config.model_config.max_model_len,
            max_num_seqs=config.scheduler_config.max_num_seqs,
            vocab_size=config.model_config.get_vocab_size(),
            max_logprobs=config.model_config.max_logprobs,
            unsupported=(*UNSUPPORTED, *_unsupported_by(config)),
            adapters=tuple(self._adapters),
            device=config.device_config.device_type,
            dtype=str(config.model_config.dtype).removeprefix("torch."),
            takes_images=self._images is not None,
        )
        if config.structured_outputs_config.backend == GRAMMAR_LIBRARY:
            self._grammars = self._grammar_compiler(model)

    @classmethod
    def load(cls, model: ModelFiles, properties: ServingProperties, report: Callable[[str], None]) -> Self:
        """Build the engine. Raises `ConfigError` or `LoadFailed`, in one line, for whatever stops it."""
        if model.path is None:
            raise ConfigError(f"option.model_id: the {cls.name} backend needs a model")
        if not model.path.is_dir():
            raise ConfigError(f"option.model_id: vLLM needs the directory of a checkpoint, not {model.path.name}")
        arguments = engine_arguments(model.path, properties, backend=cls.name, adapters=len(model.adapters))
        report("loading weights")
        try:
            engine = LLMEngine.from_vllm_config(engine_config(arguments), disable_log_stats=True)
        except Exception as error:  # whatever stops the engine from starting, the operator must hear of it
            raise load_failure(load_error(error, arguments), error) from error
        return cls(engine, model)

    @classmethod
    def check_options(cls, properties: ServingProperties) -> None:
        """Ask vLLM's own parser."""
        engine_arguments(Path(), properties, backend=cls.name)

    @property
    def capabilities(self) -> Capabilities:
        """As the engine has configured itself."""
        return self._capabilities

    def add_request(self, request: TokenRequest) -> None:
        """Hand over a sequence, first having its grammar tried and its images prepared. Raises `InvalidRequest`."""
        if request.request_id in self._requests or request.request_id in self._preparing:  # vLLM would mix the two up
            raise InvalidRequest(f"request {request.request_id} is running already")
        check_adapter(request.adapter, self._capabilities)
        wanted = request.sampling_params.structured_outputs
        grammar = None if wanted is None or self._grammars is None else self._grammars.submit(wanted)
        images = None if self._images is None else self._images.submit(request)
        if grammar is None and images is None:
            self._start(request)
        else:
            self._preparing.add(request, grammar, images)

    def abort(self, request_id: str) -> None:
        """Forget a sequence; vLLM says nothing more of it."""
        if not self._preparing.discard(request_id) and self._requests.pop(request_id, None) is not None:
            self._engine.abort_request([request_id])

    def step(self) -> list[TokenOutput]:
        """Run one step of the engine. Raises `EngineDead` for anything that goes wrong in it."""
        results = self._start_prepared()
        if not self._requests:
            if not results:
                self._preparing.wait()
                self._progress -= 1  # what prepares has limits of its own
            return results
        try:
            outputs = self._engine.step()
            if not outputs:
                self._progress = self._computed_tokens()
        except Exception as error:
            raise EngineDead(f"vLLM: {_one_line(error)}") from error
        for output in outputs:
            request = self._requests[output.request_id]
            results.append(token_output(output, request))
            if output.finished:
                del self._requests[output.request_id]
        return results

    @property
    def num_preparing(self) -> int:
        """Those whose grammar is being tried or images prepared, as many of them as there are places."""
        return min(len(self._preparing), self._capabilities.max_num_seqs)

    @property
    def progress(self) -> int:
        """Changes with the tokens that steps without an output have computed, parts of long prompts."""
        return self._progress

    @property
    def kv_cache_usage(self) -> float:
        """The share of vLLM's blocks that sequences hold."""
        usage: float = self._engine.engine_core.engine_core.scheduler.get_kv_cache_usage()
        return usage

    def check_health(self) -> None:
        """Look at the worker processes, where there are any. Raises `EngineDead` naming the one that has died."""
        dead = connection.wait([worker.sentinel for worker in self._workers], timeout=0) if self._workers else ()
        for worker in self._workers:
            if worker.sentinel in dead:
                raise EngineDead(f"vLLM's worker process {worker.name} has died; was it out of memory?")

    def close(self) -> None:
        """End vLLM's worker processes, where there are any, and what tries grammars and prepares images."""
        if self._grammars is not None:
            self._grammars.close()
        if self._images is not None:
            self._images.close()
        self._engine.engine_core.shutdown()

    def _start(self, request: TokenRequest, grammar: str | None = None, prompt: EngineInput | None = None) -> None:
        """Hand a sequence to vLLM, with its grammar's text and its prompt with images where these came first.

        Raises `InvalidRequest`.
        """
        try:
            params = engine_sampling_params(request.sampling_params, self._eos_token_ids, grammar)
            if self._has_buffers:
                # What is counted: the tokens of bad words, and the ends of sequence that vLLM is about to add.
                params.update_from_tokenizer(self._engine.get_tokenizer())
                fields = self._engine.input_processor.generation_config_fields
                params.update_from_generation_config(fields, self._engine.renderer.get_eos_token_id())
                check_buffers(params)
            self._engine.add_request(
                request.request_id,
                prompt or {"type": "token", "prompt_token_ids": request.prompt_token_ids},
                params,
                lora_request=None if request.adapter is None else self._adapters[request.adapter],
                priority=request.priority if self._by_priority else 0,
            )
        except (VLLMClientError, ValueError) as error:
            raise InvalidRequest(_one_line(error)) from error
        self._requests[request.request_id] = request

    def _computed_tokens(self) -> int:
        """Of the requests that run."""
        running = self._engine.engine_core.engine_core.scheduler.running
        return sum(request.num_computed_tokens for request in running)

    def _start_prepared(self) -> list[TokenOutput]:
        """Start the sequences whose grammar is one, and return the last output of those that never will."""
        prepared, refused = self._preparing.collect()
        for item in prepared:
            try:
                self._start(item.request, item.grammar, item.images)
            except InvalidRequest as error:  # noqa: PERF203  each of them fails for itself
                refused.append(refusal(item.request.request_id, error))
        return refused

    def _render(self, request: TokenRequest, images: list[Image.Image]) -> EngineInput:
        """Run vLLM's processor, which makes of an image's token as many as the model wants. Raises `InvalidRequest`.

        Without its cache of processed images, which has a second half in the engine: that would go without an image whose
        request was given up in between.
        """
        tokens = {"prompt_token_ids": request.prompt_token_ids, "multi_modal_data": {"image": images}}
        try:
            rendered: EngineInput = self._engine.renderer.render_cmpl([tokens], skip_mm_cache=True)[0]
        except MemoryError:
            raise
        except Exception as error:  # whatever a model's processor makes of what does not fit
            raise InvalidRequest(f"vLLM refuses the images: {_one_line(error)}", field="messages") from error
        return rendered

    def _grammar_compiler(self, model: ModelFiles) -> GrammarCompiler[str] | None:
        """Return what tries grammars: vLLM would compile any in this process, and without limits."""
        if model.path is None or not (model.path / TOKENIZER_FILE).exists():
            return None
        vocab_size = self._capabilities.vocab_size
        eos_token_ids = tuple(token for token in model.eos_token_ids if token < vocab_size)
        vocabulary = Vocabulary(str(model.path / TOKENIZER_FILE), vocab_size, eos_token_ids)
        return GrammarCompiler(vocabulary, str, time_limit=_TRIAL_SECONDS, cpu_limit=_GRAMMAR_SECONDS)

    def _load_adapter(self, name: str, adapter: LoRARequest) -> None:
        """Before any request asks for it: one that fails to load during a step would take the whole batch with it."""
        try:
            self._engine.add_lora(adapter)
        except Exception as error:
            raise ConfigError(f"option.enable_lora: adapter {name!r} cannot be loaded: {_one_line(error)}") from error


def _unsupported_by(config: VllmConfig) -> Iterator[str]:
    """What vLLM cannot do in this configuration."""
    if typical_processor(config) is None:
        yield "typical_p"
    # Off the GPU its adapters' part of the logits takes every row for one to sample from, and a step of two requests fails:
    # https://github.com/vllm-project/vllm/issues/16668
    if config.lora_config is not None and config.device_config.device_type != "cuda":
        yield "prompt_logprobs"
    if config.device_config.device_type == "cpu" and config.scheduler_config.enable_chunked_prefill:
        yield "seed"  # see engine_args.py


def load_error(error: Exception, arguments: EngineArgs) -> ConfigError:
    """Say in one line why vLLM does not start, with the option that its words are about."""
    reason = _words(error)
    quantization = arguments.quantization
    if quantization is not None and re.search(rf"\b{re.escape(str(quantization))}\b", reason):
        argument = "quantization"
    else:
        argument = next((name for name in vars(arguments) if _names(reason, name, arguments)), "model")
    if argument == "model" and re.search(r"\bmemory\b", reason):
        argument = "gpu_memory_utilization"
    return ConfigError(f"{option_of(argument)}: vLLM cannot serve {arguments.model}: {_shortened(reason)}")


def _names(text: str, name: str, arguments: EngineArgs) -> bool:
    """Whether vLLM's words are about `name`: it writes `load_format` in one place, "Load format" in another.

    The latter counts for what somebody has set, and names of one common word say nothing.
    """
    words = name.split("_")
    if len(words) == 1 and name not in ("dtype", "quantization"):
        return False
    between = "[ _]" if getattr(arguments, name) != getattr(EngineArgs, name, None) else "_"
    return re.search(rf"\b{between.join(words)}\b", text, re.IGNORECASE) is not None


def _one_line(error: Exception) -> str:
    return _shortened(_words(error))


def _words(error: Exception) -> str:
    """The words of vLLM's own on one line, without pydantic's around them."""
    text = str(error) or type(error).__name__
    if found := re.search(r"Value error, (.*?)(?: \[type=|$)", text, re.DOTALL):
        text = found[1]
    return " ".join(re.sub(r"\[type=.*", "", text, flags=re.DOTALL).split())


def _shortened(text: str) -> str:
    """Whole sentences, without the hundreds of names that vLLM at times goes on to list."""
    if len(text) <= _LONGEST_REASON:
        return text
    end = text.rfind(". ", 0, _LONGEST_REASON) + 1
    return text[:end] if end else f"{text[:_LONGEST_REASON]}..."
