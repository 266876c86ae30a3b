"""All metrics, under TGI's and vLLM's names, so that dashboards for either also work with this server.

`python -m lmi_handlers.metrics.catalogue > docs/metrics.md` writes the reference page.

Sources of names, labels and buckets: TGI 3.3.7, router/src/server.rs and router/src/infer/; vLLM,
vllm/v1/metrics/loggers.py and buckets.py.
"""

from __future__ import annotations

from lmi_handlers.metrics.series import Catalogue

FAILURES = ("validation", "template", "overloaded", "generation", "dropped", "timeout", "not_ready")
FINISHED_REASONS = ("stop", "length", "abort", "error")

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

REQUESTS = _counter("tgi_request_count", "requests", "Requests that have ended, in whatever way.")
SUCCESSES = _counter("tgi_request_success", "requests", "Requests answered to the end.")
FAILED = _counter("tgi_request_failure", "requests", "Requests not answered to the end, by cause.", "err", FAILURES)
DURATION = _histogram(
    "tgi_request_duration", "seconds", "Arrival of a request to the end of its complete answer.", _TGI_SECONDS
)
VALIDATION_DURATION = _histogram(
    "tgi_request_validation_duration", "seconds", "Parsing and tokenising a request.", _TGI_SECONDS
)
QUEUE_DURATION = _histogram(
    "tgi_request_queue_duration", "seconds", "Wait of a request in the engine's queue.", _TGI_SECONDS
)
INFERENCE_DURATION = _histogram(
    "tgi_request_inference_duration", "seconds", "Leaving the queue to the end of the complete answer.", _TGI_SECONDS
)
TIME_PER_TOKEN = _histogram(
    "tgi_request_mean_time_per_token_duration",
    "seconds",
    "Inference duration of a complete answer, divided by the tokens of a sequence.",
    _TGI_SECONDS,
)
INPUT_LENGTH = _histogram("tgi_request_input_length", "tokens", "All prompts of a request together.", _TOKENS)
GENERATED_TOKENS = _histogram(
    "tgi_request_generated_tokens", "tokens", "All sequences of a complete answer together.", _TOKENS
)
MAX_NEW_TOKENS = _histogram(
    "tgi_request_max_new_tokens", "tokens", "The most that a sequence of the request may have.", _TOKENS
)
QUEUE_SIZE = _gauge("tgi_queue_size", "sequences", "Sequences that wait in the engine's queue now.")
BATCH_SIZE = _gauge("tgi_batch_current_size", "sequences", "Sequences in the engine's batch now.")

RUNNING = _gauge("vllm:num_requests_running", "sequences", "Sequences in the engine's batch now.")
WAITING = _gauge("vllm:num_requests_waiting", "sequences", "Sequences that wait in the engine's queue now.")
KV_CACHE_USAGE = _gauge(
    "vllm:kv_cache_usage_perc", "share", "Keys and values of the running sequences: 1 is all that there is room for."
)
PROMPT_TOKENS = _counter("vllm:prompt_tokens_total", "tokens", "Prompt tokens of the requests that have had a token.")
GENERATION_TOKENS = _counter("vllm:generation_tokens_total", "tokens", "Generated tokens, counted as they come.")
FINISHED = _counter(
    "vllm:request_success_total", "sequences", "Sequences that have ended, by why.", "finished_reason", FINISHED_REASONS
)
TIME_TO_FIRST_TOKEN = _histogram(
    "vllm:time_to_first_token_seconds", "seconds", "Arrival of a request to its first token.", _FIRST_TOKEN_SECONDS
)
INTER_TOKEN_LATENCY = _histogram(
    "vllm:inter_token_latency_seconds",
    "seconds",
    "From one token of a sequence to the next, counted as they come.",
    _TOKEN_SECONDS,
)
TIME_PER_OUTPUT_TOKEN = _histogram(
    "vllm:request_time_per_output_token_seconds",
    "seconds",
    "Decode time of a complete answer, divided by the tokens of a sequence after its first.",
    _TOKEN_SECONDS,
)
E2E_LATENCY = _histogram(
    "vllm:e2e_request_latency_seconds",
    "seconds",
    "Arrival of a request to the end of its complete answer.",
    _REQUEST_SECONDS,
)
QUEUE_TIME = _histogram(
    "vllm:request_queue_time_seconds", "seconds", "Wait of a request in the engine's queue.", _REQUEST_SECONDS
)
INFERENCE_TIME = _histogram(
    "vllm:request_inference_time_seconds",
    "seconds",
    "Leaving the queue to the end of the complete answer.",
    _REQUEST_SECONDS,
)
PREFILL_TIME = _histogram(
    "vllm:request_prefill_time_seconds", "seconds", "Leaving the queue to the first token.", _REQUEST_SECONDS
)
DECODE_TIME = _histogram(
    "vllm:request_decode_time_seconds", "seconds", "First token to the end of the complete answer.", _REQUEST_SECONDS
)
REQUEST_PROMPT_TOKENS = _histogram(
    "vllm:request_prompt_tokens", "tokens", "All prompts of a request together.", _TOKENS
)
REQUEST_GENERATION_TOKENS = _histogram(
    "vllm:request_generation_tokens", "tokens", "All sequences of a complete answer together.", _TOKENS
)
REQUEST_MAX_TOKENS = _histogram(
    "vllm:request_params_max_tokens", "tokens", "The most that a sequence of the request may have.", _TOKENS
)

_PAGE = """\
# Metrics

Generated from `lmi_handlers/metrics/` by `python -m lmi_handlers.metrics.catalogue > docs/metrics.md`.

`GET /metrics` answers in Prometheus' text format, on the port of everything else and from the first moment on; SageMaker's
detailed observability reads it there. It speaks for the whole server, whichever web worker answers. Counters begin at zero
with the server and outlive its workers and engines. Every series is there from the start.

* A request is what asks for one answer: a body, or each record of a batch body. It is counted at its end and once, however
  it ends: answered, failed, refused before or by the engine, its client gone.
  What has a wrong path, method or API key is no request.
* A sequence is one of the texts that are generated for it; `n`, lists of prompts and beams make several.
* Histograms of a *complete answer* leave out requests that failed. The others take every request that has had a token.
* Gauges are what the engine says, a tenth of a second ago at most; zero while none is loaded. Of its cache
  only `transformers` and `vllm` say something.
"""

_DIFFERENCES = """\
TGI's series have no label but `err`; all of vLLM's have `model_name` and `engine`, which is always `0`.

| `err` | the request |
| --- | --- |
| `validation` | was refused for what it asks |
| `template` | has messages that the chat template cannot render |
| `overloaded` | found the queue full |
| `generation` | failed in the engine, or with it |
| `dropped` | lost its client |
| `timeout` | was not done within `predict_timeout`; not one of TGI's |
| `not_ready` | came while the engine was loading, restarting or shutting down; not one of TGI's |

| `finished_reason` | the sequence |
| --- | --- |
| `stop` | came to its end: the end-of-sequence token, or what the request asked to stop at |
| `length` | had all the tokens that it may have |
| `abort` | was given up: its client was gone or its time was over |
| `error` | failed, alone or with its request |

## Not here

* TGI's `tgi_batch_*` but the size: an engine's step does not say which part of it was prefill.
* vLLM's prefix cache and preemption counters: engines keep these to themselves.
"""


def metrics_page() -> str:
    """Return the text of docs/metrics.md."""
    rows = [
        f"| `{metric.name}` | {metric.kind} | {metric.unit} | {f'`{metric.label}`' if metric.label else ''} "
        f"| {metric.meaning} |"
        for metric in CATALOGUE.metrics
    ]
    table = ["| name | type | unit | label | meaning |", "| --- | --- | --- | --- | --- |", *rows]
    return "\n".join([_PAGE, *table, "", _DIFFERENCES])


if __name__ == "__main__":
    print(metrics_page(), end="")
