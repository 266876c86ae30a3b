"""All metrics, under TGI's and vLLM's names, so that dashboards for either also work with this server.

Those that are called `lmi_` are this server's own.

`python -m lmi_handlers.metrics.catalogue > docs/metrics.md` writes the reference page.

Sources of names, labels and buckets: TGI 3.3.7, router/src/server.rs and router/src/infer/; vLLM,
vllm/v1/metrics/loggers.py and buckets.py.
"""

from __future__ import annotations

from lmi_handlers.core.load_phase import LoadPhase
from lmi_handlers.metrics.series import Catalogue
from lmi_handlers.metrics.shadow import SAMPLINGS, ShadowOutcome

FAILURES = ("validation", "template", "overloaded", "generation", "dropped", "timeout", "not_ready")
FINISHED_REASONS = ("stop", "length", "abort", "error")
OTHER_STATUS = "other"
STATUSES = (
    *("200", "204", "400", "404", "408", "409", "413", "415", "422", "424", "429", "500", "501", "502", "503", "504"),
    OTHER_STATUS,
)

_TGI_SECONDS = [float(f"{0.0001 * 1.5**step:.6g}") for step in range(1, 36)]
_REQUEST_SECONDS = [0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680]
_FIRST_TOKEN_SECONDS = [
    *[0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160],
    *[640, 2560],
]
_TOKEN_SECONDS = [
    *[0.001, 0.0025, 0.005],  # in addition to vLLM's: small models are faster than its first bucket
    *[0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80],
]
_TOKENS = [*(mantissa * 10**power for power in range(6) for mantissa in (1, 2, 5)), 1_000_000]

CATALOGUE = Catalogue()
_counter, _gauge, _histogram = CATALOGUE.counter, CATALOGUE.gauge, CATALOGUE.histogram

REQUESTS = _counter("tgi_request_count", "requests", "Requests that have ended, successfully or not.")
SUCCESSES = _counter("tgi_request_success", "requests", "Requests answered in full.")
FAILED = _counter("tgi_request_failure", "requests", "Requests that failed, by cause.", "err", FAILURES)
DURATION = _histogram(
    "tgi_request_duration", "seconds", "Time from the arrival of a request to the end of its answer.", _TGI_SECONDS
)
VALIDATION_DURATION = _histogram(
    "tgi_request_validation_duration", "seconds", "Time to parse and tokenise a request.", _TGI_SECONDS
)
QUEUE_DURATION = _histogram(
    "tgi_request_queue_duration", "seconds", "Time that a request waited in the engine's queue.", _TGI_SECONDS
)
INFERENCE_DURATION = _histogram(
    "tgi_request_inference_duration", "seconds", "Time from leaving the queue to the end of the answer.", _TGI_SECONDS
)
TIME_PER_TOKEN = _histogram(
    "tgi_request_mean_time_per_token_duration",
    "seconds",
    "Inference time of an answer per token of a sequence.",
    _TGI_SECONDS,
)
INPUT_LENGTH = _histogram("tgi_request_input_length", "tokens", "Prompt tokens per request.", _TOKENS)
GENERATED_TOKENS = _histogram(
    "tgi_request_generated_tokens", "tokens", "Generated tokens per answer, over all sequences.", _TOKENS
)
MAX_NEW_TOKENS = _histogram(
    "tgi_request_max_new_tokens", "tokens", "Maximum tokens per sequence, as requested.", _TOKENS
)
QUEUE_SIZE = _gauge("tgi_queue_size", "sequences", "Sequences waiting in the engine's queue.")
BATCH_SIZE = _gauge("tgi_batch_current_size", "sequences", "Sequences in the engine's batch.")

RUNNING = _gauge("vllm:num_requests_running", "sequences", "Sequences in the engine's batch.")
WAITING = _gauge("vllm:num_requests_waiting", "sequences", "Sequences waiting in the engine's queue.")
KV_CACHE_USAGE = _gauge("vllm:kv_cache_usage_perc", "share", "Share of the KV cache in use, from 0 to 1.")
GPU_CACHE_USAGE = _gauge("vllm:gpu_cache_usage_perc", "share", "The same, under the name of vLLM up to 0.9.")
PROMPT_TOKENS = _counter(
    "vllm:prompt_tokens_total", "tokens", "Prompt tokens of all requests that have received a token."
)
CACHED_TOKENS = _counter(
    "vllm:prompt_tokens_cached_total", "tokens", "Those of them that the engine found in its prefix cache."
)
GENERATION_TOKENS = _counter("vllm:generation_tokens_total", "tokens", "Generated tokens, counted as they arrive.")
FINISHED = _counter(
    "vllm:request_success_total",
    "sequences",
    "Sequences that have ended, by reason.",
    "finished_reason",
    FINISHED_REASONS,
)
TIME_TO_FIRST_TOKEN = _histogram(
    "vllm:time_to_first_token_seconds",
    "seconds",
    "Time from the arrival of a request to its first token.",
    _FIRST_TOKEN_SECONDS,
)
INTER_TOKEN_LATENCY = _histogram(
    "vllm:inter_token_latency_seconds",
    "seconds",
    "Time between two tokens of a sequence, counted as they arrive.",
    _TOKEN_SECONDS,
)
TIME_PER_OUTPUT_TOKEN = _histogram(
    "vllm:request_time_per_output_token_seconds",
    "seconds",
    "Decode time of an answer per token of a sequence after its first.",
    _TOKEN_SECONDS,
)
E2E_LATENCY = _histogram(
    "vllm:e2e_request_latency_seconds",
    "seconds",
    "Time from the arrival of a request to the end of its answer.",
    _REQUEST_SECONDS,
)
QUEUE_TIME = _histogram(
    "vllm:request_queue_time_seconds", "seconds", "Time that a request waited in the engine's queue.", _REQUEST_SECONDS
)
INFERENCE_TIME = _histogram(
    "vllm:request_inference_time_seconds",
    "seconds",
    "Time from leaving the queue to the end of the answer.",
    _REQUEST_SECONDS,
)
PREFILL_TIME = _histogram(
    "vllm:request_prefill_time_seconds", "seconds", "Time from leaving the queue to the first token.", _REQUEST_SECONDS
)
DECODE_TIME = _histogram(
    "vllm:request_decode_time_seconds",
    "seconds",
    "Time from the first token to the end of the answer.",
    _REQUEST_SECONDS,
)
REQUEST_PROMPT_TOKENS = _histogram("vllm:request_prompt_tokens", "tokens", "Prompt tokens per request.", _TOKENS)
REQUEST_COMPUTED_TOKENS = _histogram(
    "vllm:request_prefill_kv_computed_tokens",
    "tokens",
    "Prompt tokens per request that were not in the prefix cache.",
    _TOKENS,
)
REQUEST_GENERATION_TOKENS = _histogram(
    "vllm:request_generation_tokens", "tokens", "Generated tokens per answer, over all sequences.", _TOKENS
)
REQUEST_MAX_TOKENS = _histogram(
    "vllm:request_params_max_tokens", "tokens", "Maximum tokens per sequence, as requested.", _TOKENS
)
REQUEST_LONGEST_SEQUENCE = _histogram(
    "vllm:request_max_num_generation_tokens", "tokens", "Generated tokens of an answer's longest sequence.", _TOKENS
)
REQUEST_SAMPLES = _histogram("vllm:request_params_n", "sequences", "Sequences per prompt (`n`).", [1, 2, 5, 10, 20])

ENGINE_COUNTERS = {
    field: _counter(f"vllm:{field}_total", unit, documentation)
    for field, unit, documentation in (
        ("prefix_cache_queries", "tokens", "Prompt tokens that were looked up in the prefix cache."),
        ("prefix_cache_hits", "tokens", "Prompt tokens that were found in the prefix cache."),
        (
            "external_prefix_cache_queries",
            "tokens",
            "Prompt tokens that were looked up in the file of `option.prefix_cache_file`.",
        ),
        ("external_prefix_cache_hits", "tokens", "Prompt tokens that were read from that file."),
        ("spec_decode_num_draft_tokens", "tokens", "Tokens that speculative decoding proposed."),
        ("spec_decode_num_accepted_tokens", "tokens", "Proposed tokens that were accepted."),
        ("num_preemptions", "preemptions", "Times that a running sequence lost its KV cache to others."),
    )
}
"""By field of `EngineCounters`."""

ENGINE_SECONDS = _counter("lmi_engine_seconds_total", "seconds", "Engine seconds of all requests that have ended.")
KV_BLOCK_SECONDS = _counter(
    "lmi_kv_block_seconds_total", "seconds", "KV block seconds of these requests, measured or estimated."
)
BUSY_SECONDS = _counter("lmi_engine_busy_seconds_total", "seconds", "Time that the engine's steps have taken.")
RESPONSES = _counter(
    "lmi_responses_total", "responses", "Responses to requests for an API, by HTTP status.", "status", STATUSES
)
JOINED = _counter(
    "lmi_joined_requests_total", "requests", "Requests that got the answer of an equal one: see [retries](retries.md)."
)
DOWNLOADED_BYTES = _gauge("lmi_download_bytes", "bytes", "Bytes of the model in S3 that are in the cache.")
DOWNLOAD_SIZE = _gauge("lmi_download_size_bytes", "bytes", "Bytes of all files that the model in S3 needs.")
LOAD_SECONDS = _gauge(
    "lmi_load_seconds",
    "seconds",
    "How long each phase of the last load took.",
    "phase",
    [phase.value for phase in LoadPhase],
)
SHADOW_ANSWERS = _counter(
    "lmi_shadow_answers_total",
    "answers",
    "Answers that were chosen to be compared with the shadow engine, by outcome.",
    "outcome",
    [outcome.value for outcome in ShadowOutcome],
)
SHADOW_TOKENS = _counter(
    "lmi_shadow_tokens_total", "tokens", "Tokens of the answers that were compared.", "sampling", SAMPLINGS
)
SHADOW_AGREEING_TOKENS = _counter(
    "lmi_shadow_agreeing_tokens_total",
    "tokens",
    "Those of them that the shadow engine would have chosen.",
    "sampling",
    SAMPLINGS,
)
SHADOW_NATS = _counter(
    "lmi_shadow_nats_total",
    "nats",
    "Sum of the shadow engine's negative log probabilities of these tokens.",
    "sampling",
    SAMPLINGS,
)
SHADOW_MODEL_NATS = _counter(
    "lmi_shadow_model_nats_total",
    "nats",
    "Sum of those of the model's own engine. Zero if it gives none.",
    "sampling",
    SAMPLINGS,
)
SHADOW_READ_TOKENS = _counter(
    "lmi_shadow_read_tokens_total", "tokens", "Tokens that the shadow engine has read, prompts included."
)
SHADOW_SECONDS = _histogram(
    "lmi_shadow_seconds", "seconds", "Time in which it has read a prompt with its answer.", _REQUEST_SECONDS
)
LOG_LINES_DROPPED = _counter("lmi_log_lines_dropped_total", "lines", "Lines of the log that nobody read in time.")

_PAGE = """\
# Metrics

Generated from `lmi_handlers/metrics/` by
`python -m lmi_handlers.metrics.catalogue > docs/metrics.md`.

`GET /metrics` returns Prometheus' text format, on the same port as the APIs and as soon as the
server listens. SageMaker's detailed observability reads it there. The values cover the whole
server, whichever web worker answers. Counters start at zero when the server starts, and are kept
when a worker or an engine is replaced. Every series exists from the start, except those of API
keys and tenants and the two for routers (see below the table).

* A request asks for one answer. It is one body, or one record of a batch body. Each request is
  counted once, when it ends, however it ends: answered, failed, rejected by the server or the
  engine, or abandoned by its client. A wrong path, method or API key does not count as a request.
* A sequence is one of the texts generated for a request. `n`, lists of prompts and beams make
  several.
* Histograms of an *answer* leave out requests that failed. The others include every request that
  has received a token.
* Gauges are reported by the engine and are at most a tenth of a second old. They are zero while no
  engine is loaded. Only `openvino`, `transformers` and `vllm` report the use of their KV cache.
* `lmi_log_lines_dropped_total` stays zero on servers with several models. The log has the number.
* `lmi_load_seconds` describes the last load, whether the server or only its engine was started.
  Each series is set when its phase ends. All phases add up to the time until the engine was ready.
"""

_DIFFERENCES = """\
TGI's series have no label except `err`. All of vLLM's have `model_name` and `engine`, which is
always `0`. Those that are called `lmi_` are this server's own, and have no label of the model.

`lmi_responses_total` also counts requests that generate nothing, such as `/tokenize`, and a batch
body once. It leaves out `/ping`, `/metrics`, and what is rejected before it reaches an API: wrong
paths, methods and API keys. A stream whose status was 200 when it failed is counted as 200.

For routers such as the Gateway API Inference Extension, llm-d and dynamo, there are two of vLLM's
series with values in their labels. `vllm:lora_requests_info` has `max_lora`,
`running_lora_adapters` and `waiting_lora_adapters` (names separated by commas), and the time of the
last change as its value; it is there with `option.enable_lora`. `vllm:cache_config_info` has
`block_size`, `num_gpu_blocks` and `engine`, on engines that report the use of their KV cache. Of
vLLM's configuration, the other labels are left out. Neither has `model_name`, except on a server
with several models.

Where clients need an [API key](operating.md#api-keys), `lmi_key_requests_total`,
`lmi_key_prompt_tokens_total` and others count requests and what they have used by `key_label`, from
the first request on, and with `option.tenant_attribute`, `lmi_tenant_requests_total` and others by
`tenant` ([receipts.md](receipts.md#tenants) lists them). A request that generates nothing is left
out.

The engine counts `vllm:prefix_cache_*`, `vllm:spec_decode_*` and `vllm:num_preemptions_total`.
`openvino`, `transformers` and `vllm` count all of them; `vllm` counts the last two when a sequence
ends. `tensorrt_llm` counts only the prefix cache. What an engine does not count stays zero.

| `err` | the request |
| --- | --- |
| `validation` | was rejected because of what it asks for |
| `template` | has messages that the chat template cannot render |
| `overloaded` | was rejected because the queue was full |
| `generation` | failed in the engine, or because the engine failed |
| `dropped` | was abandoned by its client |
| `timeout` | took longer than `predict_timeout`; not one of TGI's causes |
| `not_ready` | arrived while the engine was loading, restarting or shutting down; not one of TGI's causes |

| `outcome` | the answer, with [a shadow engine](shadow.md) |
| --- | --- |
| `compared` | was read by the shadow engine |
| `dropped` | found too many others waiting |
| `not_ready` | came while the shadow engine did not serve |
| `too_long` | has more tokens, with its prompt, than are compared; or none |
| `failed` | could not be read; the log says why |

| `sampling` | the tokens |
| --- | --- |
| `greedy` | were the most probable ones |
| `sampled` | were drawn at random, or chosen under penalties, biases or a grammar |

| `finished_reason` | the sequence |
| --- | --- |
| `stop` | ended with the end-of-sequence token or with a stop string or token of the request |
| `length` | reached its maximum number of tokens |
| `abort` | was aborted, because its client disconnected or its time was up |
| `error` | failed, alone or with its request |

| `phase` | the time |
| --- | --- |
| `starting` | until the engine process runs: since `lmi serve` was called, or since the engine was restarted |
| `importing the engine` | to import its libraries |
| `preparing the model` | to find it, and to download or convert it if necessary |
| `preparing the tokenizer` | to load it and to write what the web workers need |
| `waiting for resources` | until a Ray cluster has what the engine needs |
| `loading weights` | to load them, and whatever else the backend does not report as a phase of its own |
| `compiling the model` | to compile it for the device |
| `checking the model` | to compare its results with those of a reference |
| `warming up` | for first runs, before any request |

## Not provided

* TGI's `tgi_batch_*` except the size: engines do not report which part of a step was prefill.
* vLLM's series of single engine steps and cache blocks (`vllm:iteration_tokens_total`,
  `vllm:kv_block_*`, `vllm:num_requests_waiting_by_reason`, `vllm:prompt_tokens_by_source`), and
  those that vLLM itself has removed (`vllm:num_requests_swapped`, `vllm:cpu_cache_usage_perc`).
* DJL's names (`RequestLatency`, `QueueLength` and others).
"""


def metrics_page() -> str:
    """Return the text of docs/metrics.md."""
    rows = [
        f"| `{metric.name}` | {metric.kind} | {metric.unit} | {f'`{metric.label}`' if metric.label else ''} "
        f"| {metric.documentation} |"
        for metric in CATALOGUE.metrics
    ]
    table = ["| name | type | unit | label | meaning |", "| --- | --- | --- | --- | --- |", *rows]
    return "\n".join([_PAGE, *table, "", _DIFFERENCES])


if __name__ == "__main__":
    print(metrics_page(), end="")
