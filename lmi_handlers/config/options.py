"""Declares every option once: `ServingProperties` has the values, each field's `Option` says what the file may hold.

`python -m lmi_handlers.config.options > docs/options.md` generates the reference page from these declarations.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from lmi_handlers.config.not_provided import NOT_PROVIDED
from lmi_handlers.core.request import MAX_PRIORITY

SERVER = ("server",)
ENGINES = ("transformers", "vllm", "lmi_dist", "tensorrt_llm")
EVERY_BACKEND = ("echo", *ENGINES)
TRANSFORMERS = ("transformers",)
VLLM = ("vllm",)
VLLM_FAMILY = ("vllm", "lmi_dist")
LMI_DIST = ("lmi_dist",)
GPU_ENGINES = ("vllm", "lmi_dist", "tensorrt_llm")
TENSORRT_LLM = ("tensorrt_llm",)
ECHO = ("echo",)

ROLLING_BATCH_BACKENDS = {"scheduler": "transformers", "lmi-dist": "lmi_dist", "trtllm": "tensorrt_llm"}
"""LMI's names for a kind of batching, where they differ from the name of the backend that does it."""


@dataclass(frozen=True)
class Handler:
    """What one of LMI's handlers means here: the backend, and the value of `rolling_batch` if that is not set.

    An asynchronous handler batches continuously even with `option.rolling_batch=disable`, which LMI requires with it.
    """

    backend: str
    rolling_batch: str = "auto"
    asynchronous: bool = False


HANDLERS: dict[str, Handler] = {
    "djl_python.huggingface": Handler("transformers"),
    "djl_python.lmi_dist": Handler("lmi_dist", "lmi-dist"),
    "djl_python.lmi_vllm.vllm_async_service": Handler("vllm", "vllm", asynchronous=True),
    "djl_python.tensorrt_llm": Handler("tensorrt_llm", "trtllm"),
    "djl_python.lmi_trtllm.trtllm_async_service": Handler("tensorrt_llm", "trtllm", asynchronous=True),
}
"""LMI's handlers, by their name in `option.entryPoint`."""


class InvalidValue(ValueError):
    """The text is not a valid value of the option. The message completes "has value 'x': ..."."""


@dataclass(frozen=True, eq=False)
class Option:
    """How a field of `ServingProperties` is written in serving.properties.

    `read_by` has backend names, or "server" for options that the HTTP side or the engine loop reads. `key` is the name
    in the file, if it is not `option.<field>`. `aliases` are more names for the same setting. `spellings` maps what
    users write, in lower case, to the value of the field.
    """

    help: str
    read_by: tuple[str, ...]
    _: KW_ONLY
    key: str = ""
    aliases: tuple[str, ...] = ()
    spellings: Mapping[str, str] = field(default_factory=dict)
    gt: float | None = None
    ge: float | None = None
    le: float | None = None
    deprecated: str = ""


class ServingProperties(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings in effect for one model. Made by `load_properties`, and sent to the engine process as JSON.

    None means the backend's own default. It never holds secrets.
    """

    # Model

    model_id: Annotated[
        str | None,
        Option(
            "Model to serve: a directory, a `.gguf` file or a Hugging Face id. Defaults to the model in the model directory; "
            "where that holds no file of any model, to SmolLM2-135M-Instruct.",
            (*SERVER, *ENGINES),
            aliases=("option.s3url",),
        ),
    ] = None
    model_name: Annotated[
        str | None,
        Option(
            "Name clients may ask for. Defaults to the name of the directory that holds serving.properties, else to one made "
            "from `model_id`; the default model is SmolLM2-135M-Instruct.",
            SERVER,
            aliases=("option.modelName",),
        ),
    ] = None
    revision: Annotated[str | None, Option("Branch, tag or commit on the hub.", (*SERVER, *ENGINES))] = None
    task: Annotated[
        str | None, Option("What the model is for; TGI's `/info` repeats it. Only text is generated.", SERVER)
    ] = None
    trust_remote_code: Annotated[bool, Option("Run Python code that comes with the model.", ENGINES)] = False

    # Engine and batching

    rolling_batch: Annotated[
        str,
        Option(
            "Continuous batching: `auto`, `disable`, or who does it: `scheduler` (the transformers backend), `vllm`, "
            "`lmi-dist`, `trtllm` or the name of any other backend.",
            SERVER,
            spellings={"lmi_dist": "lmi-dist", "tensorrt_llm": "trtllm"},
        ),
    ] = "auto"
    entry_point: Annotated[
        str | None,
        Option(
            "LMI's handler, which chooses the engine: "
            + ", ".join(f"`{name}`" for name in HANDLERS)
            + ". The asynchronous "
            "ones batch continuously also with `rolling_batch=disable`, and on the invoke routes they stream OpenAI's objects "
            "as JSON lines.",
            SERVER,
            key="option.entryPoint",
        ),
    ] = None
    backend: Annotated[
        str,
        Option(
            "Engine to use where `rolling_batch` names none: `auto` or the name of a backend.",
            SERVER,
            # LMI's TensorRT-LLM handler has an option with this name, whose usual value must keep working.
            spellings={"lmi-dist": "lmi_dist", "trtllm": "tensorrt_llm", "pytorch": "tensorrt_llm"},
        ),
    ] = "auto"
    max_rolling_batch_size: Annotated[
        int | None,
        Option(
            "Most sequences generated at the same time. Unset: 32 on transformers and echo, 256 on the other engines.",
            EVERY_BACKEND,
            aliases=("option.max_num_seqs",),
            ge=1,
        ),
    ] = None
    max_rolling_batch_prefill_tokens: Annotated[
        int | None,
        Option("Most prompt tokens in one engine step.", ENGINES, aliases=("option.max_num_batched_tokens",), ge=1),
    ] = None
    batch_size: Annotated[
        int,
        Option(
            "Dynamic batching: requests collected into one static batch. Above 1 it turns rolling batch off.",
            SERVER,
            key="batch_size",
            aliases=("max_dynamic_batch_size",),
            ge=1,
        ),
    ] = 1
    max_batch_delay: Annotated[
        int, Option("Dynamic batching: milliseconds to wait for more requests.", SERVER, key="max_batch_delay", ge=0)
    ] = 100
    job_queue_size: Annotated[
        int, Option("Sequences that may wait; a request for more is refused.", SERVER, key="job_queue_size", ge=1)
    ] = 1000
    min_priority: Annotated[
        int,
        Option("Lowest, and so most urgent, `priority` that a request may ask for.", SERVER, ge=-MAX_PRIORITY, le=0),
    ] = 0
    max_model_len: Annotated[
        int | None,
        Option("Most tokens of prompt and answer together.", EVERY_BACKEND, aliases=("option.max_seq_len",), ge=1),
    ] = None

    # HTTP

    output_formatter: Annotated[
        str | None,
        Option("Format of every answer, unless the request names one. Unset: by the request's `stream`.", SERVER),
    ] = None
    tgi_compat: Annotated[
        bool, Option("Speak TGI on the invoke routes too: its request defaults, arrays, SSE and errors.", SERVER)
    ] = False
    dialect: Annotated[
        Literal["tgi", "mindie"],
        Option(
            "Whose TGI interface `/` speaks, with `tgi_compat` the invoke routes too: TGI's own or MindIE's.", SERVER
        ),
    ] = "tgi"
    enable_streaming: Annotated[
        Literal["false", "true", "huggingface"],
        Option(
            "With `rolling_batch=disable`: stream every answer.",
            SERVER,
            deprecated="clients ask for a stream with `stream` in the request",
        ),
    ] = "false"
    default_accept: Annotated[str | None, Option("Content type where a request has no `Accept`.", SERVER)] = None
    max_request_size: Annotated[
        int,
        Option("Largest request body in bytes.", SERVER, key="max_request_size", ge=1),
    ] = 64 * 1024 * 1024
    predict_timeout: Annotated[
        int, Option("Seconds that one request may take once its body has arrived.", SERVER, ge=1)
    ] = 240
    client_timeout: Annotated[
        int,
        Option(
            "Seconds to wait for a client: for the whole head of its request, for the next bytes of a body, and for it to "
            "take bytes of its answer. Bodies and answers must then average 1 kB/s.",
            SERVER,
            ge=1,
            le=86_400,
        ),
    ] = 30
    web_workers: Annotated[
        int | None,
        Option("Web worker processes; `lmi serve --workers` wins. Not copies of the model.", SERVER, ge=1, le=256),
    ] = None

    cors_allowed_origin: Annotated[
        str | None,
        Option(
            "Origins whose pages in browsers may call this server, separated by commas: `scheme://host[:port]`, `null`, or "
            "`*` for all. "
            "Defaults to the server's own origin and pages on loopback addresses.",
            SERVER,
            key="cors_allowed_origin",
        ),
    ] = None
    compute_type: Annotated[
        str | None,
        Option(
            "What TGI's routes call the hardware in `x-compute-type`. Unset: `cpu+optimized` or `gpu+optimized`, as it is.",
            SERVER,
        ),
    ] = None

    # Limits of a request

    max_input_tokens: Annotated[
        int | None, Option("Most tokens of a prompt. Unset: one less than the model takes in all.", SERVER, ge=1)
    ] = None
    max_best_of: Annotated[int, Option("Highest `best_of` on TGI's routes.", SERVER, ge=1, le=128)] = 2
    max_stop_sequences: Annotated[int, Option("Most stop strings on TGI's routes.", SERVER, ge=0)] = 4
    max_top_n_tokens: Annotated[int, Option("Highest `top_n_tokens` on TGI's routes.", SERVER, ge=0, le=128)] = 5
    max_client_batch_size: Annotated[int, Option("Most prompts that TGI's clients may send at once.", SERVER, ge=1)] = 4
    max_text_bytes: Annotated[
        int, Option("Maximum bytes of a request body, not counting images in `data:` URLs.", SERVER, ge=1)
    ] = 16 * 1024 * 1024
    max_json_values: Annotated[
        int, Option("Maximum JSON values and names in a request body; each token id of a prompt is one.", SERVER, ge=1)
    ] = 500_000
    max_json_containers: Annotated[int, Option("Maximum JSON objects and arrays in a request body.", SERVER, ge=1)] = (
        50_000
    )
    max_batch_records: Annotated[int, Option("Maximum lines of a JSON-lines body.", SERVER, ge=1)] = 100_000
    batch_timeout: Annotated[
        int,
        Option(
            "Seconds that a JSON-lines body may take in all; later records are answered with an error.", SERVER, ge=1
        ),
    ] = 3600
    max_sequences: Annotated[
        int, Option("Maximum sequences of a request: prompts times `n`, `best_of` or `num_beams`.", SERVER, ge=1)
    ] = 1024
    max_messages: Annotated[int, Option("Maximum messages of a chat, and documents.", SERVER, ge=1)] = 2048
    max_content_parts: Annotated[
        int, Option("Maximum content parts of all messages of a chat together.", SERVER, ge=1)
    ] = 10_000
    max_tools: Annotated[int, Option("Maximum tools of a chat.", SERVER, ge=1)] = 512
    max_strings: Annotated[
        int, Option("Maximum number of stop strings; the same bound applies to bad words and to choices.", SERVER, ge=1)
    ] = 1024
    max_string_characters: Annotated[
        int, Option("Maximum characters of all stop strings together; also of bad words, and of choices.", SERVER, ge=1)
    ] = 32_768
    max_token_ids: Annotated[
        int, Option("Maximum entries of `logit_bias`, `stop_token_ids` and `allowed_token_ids`.", SERVER, ge=1)
    ] = 262_144
    max_prompt_logprobs: Annotated[
        int,
        Option(
            "Maximum log probabilities of prompt tokens in one answer, alternatives and sequences counted.",
            SERVER,
            ge=0,
        ),
    ] = 500_000
    max_schema_bytes: Annotated[
        int,
        Option(
            "Maximum bytes of a schema, and of all tools together; maximum characters of one that is given as text, of a grammar "
            "and of a regular expression.",
            SERVER,
            ge=1,
        ),
    ] = 512 * 1024

    # Life of the engine process

    model_loading_timeout: Annotated[int, Option("Seconds that loading the model may take.", SERVER, ge=1)] = 1200
    stall_timeout: Annotated[
        int,
        Option(
            "Seconds without progress after which an engine that has work is ended and started again. Progress is a token, "
            "or a part of a prompt that has been computed. On a CPU an engine that is computing may take ten times as "
            "long.",
            SERVER,
            ge=1,
        ),
    ] = 60
    restart_limit: Annotated[
        int,
        Option(
            "Restarts of a dead engine within `restart_window` before the server gives up.",
            SERVER,
            aliases=("retry_threshold",),
            ge=0,
        ),
    ] = 3
    restart_window: Annotated[int, Option("Seconds over which restarts are counted.", SERVER, ge=1)] = 600

    # Loading the model

    dtype: Annotated[
        Literal["auto", "fp32", "fp16", "bf16", "int8"],
        Option(
            "Type of the weights. `auto` takes the model's own, or float32 on a CPU that only emulates that type (no "
            "bfloat16 arithmetic with AVX2, for example): faster, but twice the memory. The log names the type and the "
            "reason. Also accepts `float32`, `float16` and `bfloat16`.",
            ENGINES,
            aliases=("option.data_type",),
            spellings={"float32": "fp32", "float": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16"},
        ),
    ] = "auto"
    device_map: Annotated[str | None, Option("Where the weights go: `auto`, `cpu`, `cuda`, ...", TRANSFORMERS)] = None
    low_cpu_mem_usage: Annotated[
        bool | None, Option("Load the weights without a second copy in memory.", TRANSFORMERS)
    ] = None
    quantize: Annotated[
        str | None,
        Option(
            "Quantisation method, such as `awq`; each backend has its own.",
            GPU_ENGINES,
            aliases=("option.quantization",),
        ),
    ] = None
    tensor_parallel_degree: Annotated[
        int | Literal["max"],
        Option(
            "GPUs that one layer is split over; `max` takes all.",
            GPU_ENGINES,
            aliases=("option.tensor_parallel_size",),
            ge=1,
        ),
    ] = "max"
    pipeline_parallel_degree: Annotated[
        int,
        Option("Stages that the layers are split into.", GPU_ENGINES, aliases=("option.pipeline_parallel_size",), ge=1),
    ] = 1
    gpu_memory_utilization: Annotated[
        float | None, Option("Share of GPU memory that the engine may take.", GPU_ENGINES, gt=0, le=1)
    ] = None
    enforce_eager: Annotated[bool | None, Option("Do without CUDA graphs.", VLLM_FAMILY)] = None
    load_format: Annotated[str | None, Option("Format of the weight files.", GPU_ENGINES)] = None
    device: Annotated[str | None, Option("Kind of device to run on.", VLLM_FAMILY)] = None
    preloaded_model: Annotated[bool | None, Option("The weights are in memory already.", VLLM_FAMILY)] = None
    cpu_offload_gb_per_gpu: Annotated[
        float | None,
        Option("GiB of weights kept in CPU memory.", VLLM_FAMILY, aliases=("option.cpu_offload_gb",), ge=0),
    ] = None
    tokenizer: Annotated[str | None, Option("Tokenizer, where it is not the model's own.", TENSORRT_LLM)] = None
    tokenizer_mode: Annotated[str | None, Option("How to load the tokenizer.", GPU_ENGINES)] = None
    tokenizer_revision: Annotated[str | None, Option("Revision of the tokenizer.", GPU_ENGINES)] = None
    skip_tokenizer_init: Annotated[bool | None, Option("Load no tokenizer in the engine.", TENSORRT_LLM)] = None

    # Generation

    max_logprobs: Annotated[int | None, Option("Most log probabilities per token.", VLLM_FAMILY, ge=0)] = None
    enable_chunked_prefill: Annotated[bool | None, Option("Split long prompts over several steps.", GPU_ENGINES)] = None
    enable_prefix_caching: Annotated[
        bool | None, Option("Reuse the cache of equal prompt beginnings.", VLLM_FAMILY)
    ] = None
    chat_template: Annotated[
        str | None, Option("Chat template instead of the model's: a path, or Jinja text.", SERVER)
    ] = None
    chat_template_content_format: Annotated[
        Literal["auto", "string", "openai"],
        Option("How the template takes message content: as text, or as a list of parts. `auto` tries.", SERVER),
    ] = "auto"
    enable_auto_tool_choice: Annotated[
        bool | None, Option("Taken for LMI's sake: calls are always found, whatever it says.", SERVER)
    ] = None
    tool_call_parser: Annotated[
        str | None, Option("Format of the model's tool calls, by vLLM's name; else its template tells.", SERVER)
    ] = None
    enable_reasoning: Annotated[
        bool | None,
        Option(
            "Separate reasoning from a chat's answer. `true` without `reasoning_parser`: the chat template tells the format.",
            SERVER,
        ),
    ] = None
    reasoning_parser: Annotated[
        str | None,
        Option(
            "Format of the model's reasoning, by vLLM's name. Separates it unless `enable_reasoning=false`.", SERVER
        ),
    ] = None
    allowed_media_domains: Annotated[
        str | None,
        Option(
            "Hosts that images in chats may be fetched from, over https: `host` or `host:port`, with commas. Unset: none.",
            SERVER,
        ),
    ] = None
    allowed_media_networks: Annotated[
        str | None,
        Option("Networks that these hosts may be in though not public, such as `10.0.0.0/8`, with commas.", SERVER),
    ] = None
    limit_mm_per_prompt: Annotated[
        str | None,
        Option('Most images in a request, as vLLM has it: `{"image": 4}`. Unset: 16.', (*SERVER, *VLLM_FAMILY)),
    ] = None
    max_image_bytes: Annotated[int, Option("Most bytes of all images in a request, as files.", SERVER, ge=1)] = (
        20 * 1024 * 1024
    )
    max_image_pixels: Annotated[
        int, Option("Most pixels of all images in a request together.", SERVER, ge=1, le=1 << 26)
    ] = 1 << 25
    normalize: Annotated[bool | None, Option("Normalise embeddings.", VLLM)] = None
    guided_decoding_backend: Annotated[str | None, Option("Library for grammars.", GPU_ENGINES)] = None

    # Adapters

    enable_lora: Annotated[bool, Option("Serve LoRA adapters.", GPU_ENGINES)] = False
    max_loras: Annotated[int | None, Option("Most adapters in one batch.", GPU_ENGINES, ge=1)] = None
    max_lora_rank: Annotated[int | None, Option("Highest rank of an adapter.", GPU_ENGINES, ge=1)] = None
    max_cpu_loras: Annotated[int | None, Option("Most adapters kept in CPU memory.", GPU_ENGINES, ge=1)] = None
    lora_extra_vocab_size: Annotated[int | None, Option("Most tokens an adapter may add.", VLLM_FAMILY, ge=0)] = None
    lora_dtype: Annotated[str | None, Option("Type of the adapters' weights.", VLLM_FAMILY)] = None
    long_lora_scaling_factors: Annotated[
        str | None, Option("Scaling factors of long-context adapters.", VLLM_FAMILY)
    ] = None
    fully_sharded_loras: Annotated[bool | None, Option("Split adapters over GPUs completely.", VLLM_FAMILY)] = None

    # lmi-dist

    speculative_draft_model: Annotated[str | None, Option("Draft model for speculative decoding.", LMI_DIST)] = None
    speculative_length: Annotated[int | None, Option("Tokens drafted at a time.", LMI_DIST, ge=1)] = None
    draft_model_tp_size: Annotated[int | None, Option("GPUs of the draft model.", LMI_DIST, ge=1)] = None
    record_acceptance_rate: Annotated[bool | None, Option("Report how many drafted tokens are kept.", LMI_DIST)] = None
    speculative_telemetry: Annotated[bool | None, Option("Log figures of speculative decoding.", LMI_DIST)] = None

    # TensorRT-LLM

    max_input_len: Annotated[int | None, Option("Most prompt tokens.", TENSORRT_LLM, ge=1)] = None
    max_output_len: Annotated[int | None, Option("Most generated tokens.", TENSORRT_LLM, ge=1)] = None
    max_num_tokens: Annotated[int | None, Option("Most tokens in one engine step.", TENSORRT_LLM, ge=1)] = None
    max_num_sequences: Annotated[int | None, Option("Most sequences with a cache.", TENSORRT_LLM, ge=1)] = None
    max_beam_width: Annotated[int | None, Option("Widest beam search.", TENSORRT_LLM, ge=1)] = None
    tokens_per_block: Annotated[int | None, Option("Tokens in a cache block.", TENSORRT_LLM, ge=1)] = None
    batching_type: Annotated[str | None, Option("Static or in-flight batching.", TENSORRT_LLM)] = None
    batch_scheduler_policy: Annotated[str | None, Option("How requests join the batch.", TENSORRT_LLM)] = None
    kv_cache_free_gpu_mem_fraction: Annotated[
        float | None,
        Option(
            "Share of free GPU memory for the cache.",
            TENSORRT_LLM,
            aliases=("option.free_gpu_memory_fraction",),
            gt=0,
            le=1,
        ),
    ] = None
    enable_kv_cache_reuse: Annotated[
        bool | None,
        Option("Reuse the cache of equal prompt beginnings.", TENSORRT_LLM, aliases=("option.enable_block_reuse",)),
    ] = None
    enable_overlap_scheduler: Annotated[bool | None, Option("Overlap scheduling with execution.", TENSORRT_LLM)] = None
    use_cuda_graph: Annotated[bool | None, Option("Run decoding from CUDA graphs.", TENSORRT_LLM)] = None
    attn_backend: Annotated[str | None, Option("Attention kernels.", TENSORRT_LLM)] = None
    moe_backend: Annotated[str | None, Option("Mixture-of-experts kernels.", GPU_ENGINES)] = None
    kv_cache_dtype: Annotated[str | None, Option("Type of the cache.", GPU_ENGINES)] = None
    normalize_log_probs: Annotated[bool | None, Option("Normalise log probabilities.", TENSORRT_LLM)] = None
    gather_generation_logits: Annotated[bool | None, Option("Keep the logits.", TENSORRT_LLM)] = None
    context_parallel_size: Annotated[int | None, Option("GPUs a context is split over.", TENSORRT_LLM, ge=1)] = None
    moe_tensor_parallel_size: Annotated[int | None, Option("GPUs an expert is split over.", TENSORRT_LLM, ge=1)] = None
    moe_expert_parallel_size: Annotated[int | None, Option("GPUs experts are spread over.", TENSORRT_LLM, ge=1)] = None
    enable_attention_dp: Annotated[bool | None, Option("Data-parallel attention.", TENSORRT_LLM)] = None
    auto_parallel: Annotated[bool | None, Option("Plan parallelism automatically.", TENSORRT_LLM)] = None
    auto_parallel_world_size: Annotated[int | None, Option("GPUs to plan for.", TENSORRT_LLM, ge=1)] = None
    max_tokens: Annotated[int | None, Option("Most tokens in the cache.", TENSORRT_LLM, ge=1)] = None
    max_attention_window: Annotated[str | None, Option("Attention window of each layer.", TENSORRT_LLM)] = None
    sink_token_length: Annotated[int | None, Option("First tokens kept in the window.", TENSORRT_LLM, ge=0)] = None
    host_cache_size: Annotated[int | None, Option("Bytes of cache in CPU memory.", TENSORRT_LLM, ge=0)] = None
    onboard_blocks: Annotated[bool | None, Option("Bring cache blocks back to the GPU.", TENSORRT_LLM)] = None
    cross_kv_cache_fraction: Annotated[
        float | None, Option("Share of the cache for cross attention.", TENSORRT_LLM, ge=0, le=1)
    ] = None
    secondary_offload_min_priority: Annotated[int | None, Option("Offload from here.", TENSORRT_LLM, ge=0)] = None
    event_buffer_max_size: Annotated[int | None, Option("Cache events kept.", TENSORRT_LLM, ge=0)] = None

    # Echo

    echo_tokens_per_second: Annotated[float | None, Option("Speed of each sequence; unset: full.", ECHO, gt=0)] = None
    echo_load_seconds: Annotated[float, Option("Seconds that loading takes.", ECHO, ge=0)] = 0.0
    echo_fault: Annotated[
        Literal["none", "exit_in_load", "out_of_memory_in_load", "raise_in_load", "slow_load"],
        Option("A failure to rehearse while loading.", ECHO),
    ] = "none"
    echo_faults: Annotated[bool, Option("Let prompts ask for failures.", ECHO)] = False

    # Not options: the model directory, and the names that are not declared

    model_dir: str | None = None
    extra: dict[str, str] = {}

    @property
    def name(self) -> str:
        """The name under which the model is served: `model_name`, else derived from `model_id`, else "model"."""
        if self.model_name is not None:
            return self.model_name
        model_id = (self.model_id or "").rstrip("/")
        if "://" in model_id or model_id.startswith(("/", ".")):
            model_id = model_id.rpartition("/")[2]
        return as_name(model_id) or "model"

    @property
    def backend_name(self) -> str:
        """The requested backend, or "auto" to choose from what is installed."""
        if self.rolling_batch in ("auto", "disable"):
            return self.backend
        return ROLLING_BATCH_BACKENDS.get(self.rolling_batch, self.rolling_batch)

    @property
    def has_asynchronous_handler(self) -> bool:
        """Whether `entry_point` names a handler that streams JSON lines, even for OpenAI's objects."""
        return self.entry_point in HANDLERS and HANDLERS[self.entry_point].asynchronous

    @property
    def rolling(self) -> bool:
        """True for continuous batching, False for dynamic batching of `batch_size` requests."""
        return self.rolling_batch != "disable"


class DeclaredOption(msgspec.Struct, frozen=True, kw_only=True):
    """A field of `ServingProperties` with its `Option`. It accepts values of `types` and the words in `choices`."""

    name: str
    option: Option
    types: tuple[type, ...]
    choices: tuple[str, ...]
    default: Any

    @property
    def key(self) -> str:
        """The name in serving.properties."""
        return self.option.key or f"option.{self.name}"

    @property
    def keys(self) -> tuple[str, ...]:
        """All accepted names, `key` first. `option.<field>` is accepted even where LMI uses no prefix."""
        return tuple(dict.fromkeys((self.key, f"option.{self.name}", *self.option.aliases)))

    @property
    def range(self) -> str:
        """The allowed range in words, or "" if there is none."""
        bounds = (("at least", self.option.ge), ("above", self.option.gt), ("at most", self.option.le))
        return " and ".join(f"{words} {bound}" for words, bound in bounds if bound is not None)

    def parse(self, text: str) -> bool | int | float | str:
        """Return the value that `text` stands for. Raises `InvalidValue`."""
        spelling = self.option.spellings.get(text.lower(), text)
        if spelling.lower() in self.choices:
            return spelling.lower()
        if bool in self.types:
            return _boolean(text)
        if int in self.types:
            return self._in_range(_integer(text, self.choices))
        if float in self.types:
            return self._in_range(_decimal(text))
        if self.choices:
            raise InvalidValue(f"not one of {', '.join(self.choices)}")
        return spelling

    def _in_range(self, number: float) -> float:
        option = self.option
        if (
            (option.ge is not None and number < option.ge)
            or (option.gt is not None and number <= option.gt)
            or (option.le is not None and number > option.le)
        ):
            raise InvalidValue(f"must be {self.range}")
        return number


def _declared() -> dict[str, DeclaredOption]:
    hints = get_type_hints(ServingProperties, include_extras=True)
    declared = {}
    for item in msgspec.structs.fields(ServingProperties):
        annotation = hints[item.name]
        option = next((data for data in getattr(annotation, "__metadata__", ()) if isinstance(data, Option)), None)
        if option is None:
            continue
        held = annotation.__origin__
        members = get_args(held) if isinstance(held, UnionType) or get_origin(held) is Union else (held,)
        declared[item.name] = DeclaredOption(
            name=item.name,
            option=option,
            types=tuple(member for member in members if member in (bool, int, float, str)),
            choices=tuple(word for member in members if get_origin(member) is Literal for word in get_args(member)),
            default=item.default,
        )
    return declared


OPTIONS = _declared()
"""Field name -> declaration, in the order of `ServingProperties`."""

KEYS = {key: declared for declared in OPTIONS.values() for key in declared.keys}
"""Name in serving.properties (aliases included) -> declaration."""

DEPRECATED_KEYS = {
    "option.s3url": "use option.model_id",
    "option.data_type": "use option.dtype",
}
"""Aliases that LMI has deprecated."""

_ONE_PROCESS = "one engine process serves the model"
_NO_MPI = "engines start their own processes, without MPI"
_NO_SCHEDULER = "LMI has removed the scheduler that read it"
_CONVERSION = "it steers the conversion of checkpoints, which is not done here"
_MEMORY = "the engine fails to load where memory does not suffice"
_FRONT_END = "belongs to LMI's Java front end"
_STATUS = "each dialect has fixed status codes"

NO_EFFECT: dict[str, str] = {
    "engine": "the engine is chosen by option.rolling_batch and option.backend",
    "option.mpi_mode": _NO_MPI,
    "option.use_passive_workers": _NO_MPI,
    "option.cluster_size": _NO_MPI,
    "option.async_mode": "every backend takes requests while it generates",
    "option.parallel_loading": _ONE_PROCESS,
    "minWorkers": _ONE_PROCESS,
    "maxWorkers": _ONE_PROCESS,
    "gpu.minWorkers": _ONE_PROCESS,
    "gpu.maxWorkers": _ONE_PROCESS,
    "cpu.minWorkers": _ONE_PROCESS,
    "cpu.maxWorkers": _ONE_PROCESS,
    "max_idle_time": "the engine is never stopped for being idle",
    "load_on_devices": "see option.device_map, option.tensor_parallel_degree and CUDA_VISIBLE_DEVICES",
    "required_memory_mb": _MEMORY,
    "reserved_memory_mb": _MEMORY,
    "gpu.required_memory_mb": _MEMORY,
    "gpu.reserved_memory_mb": _MEMORY,
    "log_request_metric": "metrics need no switch",
    "metrics_aggregation": "metrics are histograms and need no aggregation",
    "option.enable_venv": "the server's own Python environment is used",
    "option.pythonExecutable": "the server's own Python environment is used",
    "option.env": "set environment variables on the container",
    "option.max_output_size": "answers have no size limit",
    "option.load_in_4bit": "deprecated in LMI; use option.quantize with a backend that reads it",
    "option.load_in_8bit": "deprecated in LMI; use option.quantize with a backend that reads it",
    "option.lmcache_auto_config": "LMCache is not provided",
    "option.lmcache_config_file": "LMCache is not provided",
    "option.disable_flash_attn": _NO_SCHEDULER,
    "option.max_sparsity": _NO_SCHEDULER,
    "option.max_splits": _NO_SCHEDULER,
    "option.multi_gpu": _NO_SCHEDULER,
    "option.waiting_steps": _NO_SCHEDULER,
    "option.draft_model_id": "use option.speculative_draft_model with a backend that reads it",
    "option.spec_length": "use option.speculative_length with a backend that reads it",
    "option.use_custom_all_reduce": _CONVERSION,
    "option.multi_block_mode": _CONVERSION,
    "option.use_fused_mlp": _CONVERSION,
    "option.smoothquant_alpha": _CONVERSION,
    "option.smoothquant_per_token": _CONVERSION,
    "option.smoothquant_per_channel": _CONVERSION,
    "option.multi_query_mode": _CONVERSION,
    "option.q_format": _CONVERSION,
    "option.awq_format": _CONVERSION,
    "option.calib_size": _CONVERSION,
    "option.awq_calib_size": _CONVERSION,
    "option.chatglm_model_version": _CONVERSION,
    "option.gpt_model_version": _CONVERSION,
    "option.rotary_base": _CONVERSION,
    "option.rotary_dim": _CONVERSION,
    "option.rotary_scaling_type": _CONVERSION,
    "option.rotary_scaling_factor": _CONVERSION,
    "option.enable_trt_overlap": _CONVERSION,
    "chunked_read_timeout": "a request has one time limit, option.predict_timeout",
    "wait_model_loading": "the port is open, and /ping answers, while the model loads",
    "allow_multi_status": "/ping answers 200 or 503",
    "number_of_netty_threads": _FRONT_END,
    "inference_address": "use `lmi serve --host` and `--port`",
    "management_address": _FRONT_END,
    "cluster_address": _FRONT_END,
    "model_url_pattern": _FRONT_END,
    "plugin_folder": "backends and formatters are added by Python entry points",
    "bad_request_http_code": _STATUS,
    "wlm_error_http_code": _STATUS,
    "throttle_error_http_code": _STATUS,
    "timeout_http_code": _STATUS,
    "server_error_http_code": _STATUS,
    "error_rate_wlm": "/ping follows the engine's state",
    "error_rate_server": "/ping follows the engine's state",
    "error_rate_model": "/ping follows the engine's state",
    "error_rate_any": "/ping follows the engine's state",
}
"""Names in LMI users' files that have no effect here -> why."""


def _mebibytes(text: str) -> str:
    """Convert to bytes. SageMaker's 0 means "streamed to the container", which sets no limit."""
    return "" if text == "0" else str(int(text) * 1024 * 1024) if re.fullmatch(r"\d{1,12}", text, re.ASCII) else text


def _not(text: str) -> str:
    try:
        return "false" if _boolean(text) else "true"
    except InvalidValue:
        return text


def _shards(text: str) -> str:
    return {"true": "max", "false": "1"}.get(text.lower(), text)


@dataclass(frozen=True)
class Variable:
    """An environment variable for the field `option`. `convert` turns its text into the file's."""

    option: str
    convert: Callable[[str], str] = str


# If two variables in one table set the same option, the first one takes precedence.

OVERRIDES: dict[str, Variable] = {
    "SAGEMAKER_MAX_REQUEST_SIZE": Variable("max_request_size"),
    "SAGEMAKER_MAX_PAYLOAD_IN_MB": Variable("max_request_size", _mebibytes),
    "SAGEMAKER_NUM_MODEL_WORKERS": Variable("web_workers"),
    "SAGEMAKER_STARTUP_TIMEOUT": Variable("model_loading_timeout"),
    "SAGEMAKER_MODEL_SERVER_TIMEOUT_SECONDS": Variable("predict_timeout"),
    "SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT": Variable("default_accept"),
    "SERVING_MAX_REQUEST_SIZE": Variable("max_request_size"),
}
"""Variables that take precedence over serving.properties: SageMaker's own, then LMI's for the whole server."""

NATIVE: dict[str, Variable] = {
    "HF_MODEL_ID": Variable("model_id"),
    "HF_REVISION": Variable("revision"),
    "HF_TASK": Variable("task"),
    "DJL_ENTRY_POINT": Variable("entry_point"),
    "TENSOR_PARALLEL_DEGREE": Variable("tensor_parallel_degree"),
    "PIPELINE_PARALLEL_DEGREE": Variable("pipeline_parallel_degree"),
    "MODEL_LOADING_TIMEOUT": Variable("model_loading_timeout"),
    "PREDICT_TIMEOUT": Variable("predict_timeout"),
    "SERVING_BATCH_SIZE": Variable("batch_size"),
    "SERVING_MAX_BATCH_DELAY": Variable("max_batch_delay"),
    "SERVING_JOB_QUEUE_SIZE": Variable("job_queue_size"),
    "SERVING_RETRY_THRESHOLD": Variable("restart_limit"),
}
"""LMI's variables for settings of a model. serving.properties and `OPTION_*` take precedence over them."""

TGI: dict[str, Variable] = {
    "MODEL_ID": Variable("model_id"),
    "REVISION": Variable("revision"),
    "HF_MODEL_REVISION": Variable("revision"),
    "HF_MODEL_QUANTIZE": Variable("quantize"),
    "HF_MODEL_TRUST_REMOTE_CODE": Variable("trust_remote_code"),
    "SM_NUM_GPUS": Variable("tensor_parallel_degree"),
    "NUM_SHARD": Variable("tensor_parallel_degree"),
    "SHARDED": Variable("tensor_parallel_degree", _shards),
    "DTYPE": Variable("dtype"),
    "KV_CACHE_DTYPE": Variable("kv_cache_dtype"),
    "QUANTIZE": Variable("quantize"),
    "TRUST_REMOTE_CODE": Variable("trust_remote_code"),
    "MAX_CONCURRENT_REQUESTS": Variable("job_queue_size"),
    "MAX_BATCH_PREFILL_TOKENS": Variable("max_rolling_batch_prefill_tokens"),
    "MAX_BATCH_SIZE": Variable("max_rolling_batch_size"),
    "MAX_TOTAL_TOKENS": Variable("max_model_len"),
    "MAX_INPUT_TOKENS": Variable("max_input_tokens"),
    "MAX_INPUT_LENGTH": Variable("max_input_tokens"),
    "MAX_BEST_OF": Variable("max_best_of"),
    "MAX_STOP_SEQUENCES": Variable("max_stop_sequences"),
    "MAX_TOP_N_TOKENS": Variable("max_top_n_tokens"),
    "MAX_CLIENT_BATCH_SIZE": Variable("max_client_batch_size"),
    "PAYLOAD_LIMIT": Variable("max_request_size"),
    "CORS_ALLOW_ORIGIN": Variable("cors_allowed_origin"),
    "COMPUTE_TYPE": Variable("compute_type"),
    "ENABLE_CUDA_GRAPHS": Variable("enforce_eager", _not),
    "CUDA_MEMORY_FRACTION": Variable("gpu_memory_utilization"),
}
"""Variables of the Text Generation Inference container and its launcher. They have the lowest precedence."""


def _boolean(text: str) -> bool:
    match text.lower():
        case "true" | "1" | "yes" | "on":
            return True
        case "false" | "0" | "no" | "off":
            return False
    raise InvalidValue("not true or false")


def _integer(text: str, choices: tuple[str, ...]) -> int:
    # int() alone would accept 1_000 and digits of other scripts, and has its own error for very long numbers.
    if not re.fullmatch(r"[+-]?\d+", text, re.ASCII):
        raise InvalidValue(" nor ".join(("not an integer", *choices)))
    if len(text) > 18:  # not every MessagePack and JSON reader supports longer numbers
        raise InvalidValue("too large")
    return int(text)


def _decimal(text: str) -> float:
    if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text, re.ASCII):
        raise InvalidValue("not a number")
    if math.isinf(number := float(text)):
        raise InvalidValue("too large")
    return number


def as_name(text: str) -> str:
    """Return `text` with everything but ASCII letters, digits and underscores replaced by underscores, as LMI does."""
    return re.sub(r"\W", "_", text, flags=re.ASCII)


def text_of(value: object) -> str:
    """Return `value` as it is written in serving.properties, "" for None."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


_PAGE = """\
# Options

Generated from `lmi_handlers/config/options.py` by `python -m lmi_handlers.config.options > docs/options.md`.

Options come from `serving.properties` in the model directory and from the environment. For each option the first of
these that has a value counts; an empty value counts as none.

1. the variables marked *overrides* below
2. `serving.properties`
3. `OPTION_NAME` in the environment, for `option.name`
4. LMI's other variables
5. the variables of the Text Generation Inference container
6. the default

`lmi check` prints every option that is set, with its value and its source, and with `--all` the others too. It ends with status
1 where `lmi serve` would not start, and where a name is unknown. A port that is taken is only a warning.
"""


def options_page() -> str:
    """Return the text of docs/options.md."""
    server = [declared for declared in OPTIONS.values() if "server" in declared.option.read_by]
    engine = [declared for declared in OPTIONS.values() if "server" not in declared.option.read_by]
    return "\n".join(
        [
            _PAGE,
            "## Server\n",
            *_options_table(server),
            "\n## Engines\n",
            "Where no default is given, the backend's own holds. One that is set, but not read, is warned of.\n",
            *_options_table(engine),
            "\n## Environment\n",
            *_environment_table(),
            "\n`HF_TOKEN` stays in the environment, where the hub's client reads it.\n",
            "`LOG_FORMAT` is `json` or `text`: one JSON object per line, or lines for people. Defaults to `text` where standard",
            "error is a terminal, in colours unless `NO_COLOR` is set, and to `json` anywhere else. Lines that begin",
            "with `lmi: `, about the configuration, are text in both.\n",
            "## Accepted, without effect\n",
            "| name | why |",
            "| --- | --- |",
            *(f"| `{key}` | {why} |" for key, why in NO_EFFECT.items()),
            "\n## Not supported\n",
            "Whatever would change answers and is not there ends the start, or the request, with an error that says so.\n",
            "| name | where | accepted | instead |",
            "| --- | --- | --- | --- |",
            *_not_provided_table(),
            "",
        ]
    )


def _options_table(options: list[DeclaredOption]) -> list[str]:
    rows = ["| name | value | default | read by | meaning |", "| --- | --- | --- | --- | --- |"]
    for declared in options:
        default = f"`{text_of(declared.default)}`" if declared.default is not None else ""
        cells = (f"`{declared.key}`", _kind(declared), default, ", ".join(declared.option.read_by), _meaning(declared))
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def _kind(declared: DeclaredOption) -> str:
    names = {bool: "`true`, `false`", int: "integer", float: "number", str: "text"}
    words = [*(names[kind] for kind in declared.types), *(f"`{choice}`" for choice in declared.choices)]
    return ", ".join(filter(None, [*words, declared.range]))


def _meaning(declared: DeclaredOption) -> str:
    option = declared.option
    deprecated = f" Deprecated: {option.deprecated}." if option.deprecated else ""
    aliases = f" Also {', '.join(f'`{alias}`' for alias in option.aliases)}." if option.aliases else ""
    return option.help + deprecated + aliases


def _environment_table() -> list[str]:
    rows = ["| variable | option | strength |", "| --- | --- | --- |"]
    for strength, variables in (("overrides", OVERRIDES), ("LMI", NATIVE), ("TGI", TGI)):
        for name, variable in variables.items():
            rows.append(f"| `{name}` | `{OPTIONS[variable.option].key}` | {strength} |")
    return rows


def _not_provided_table() -> list[str]:
    names: dict[tuple[str, str, str], list[str]] = {}
    for row in NOT_PROVIDED:
        alike = (row.place.value, ", ".join(f"`{word}`" for word in row.harmless), row.instead)
        names.setdefault(alike, []).append(f"`{row.name}`")
    return [f"| {' | '.join([', '.join(found), *alike])} |" for alike, found in names.items()]


if __name__ == "__main__":
    print(options_page(), end="")
