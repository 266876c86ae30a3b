"""The worker: a thread instead of processes with GPUs. It steps all requests that fit into the batch."""

from __future__ import annotations

import math
import threading
from typing import Any

import torch

from tensorrt_llm.controls import controls
from tensorrt_llm.executor.result import Logprob, RequestOutput, Response
from tensorrt_llm.sampling_params import implies_greedy

_FAULT_AT = 3


def context_logits(prompt: list[int], vocab_size: int) -> torch.Tensor:
    """Return the model's logits for each position of a prompt, `[prompt, vocabulary]`: arbitrary but fixed numbers."""
    positions = torch.arange(1, len(prompt) + 1)[:, None] * torch.tensor(prompt)[:, None]
    return torch.sin(positions * 0.7 + torch.arange(vocab_size)[None, :] * 1.3) * 3


def logprob(token_id: int) -> float:
    """Return the logprob of a generated token."""
    return -math.log(2 + token_id)


class Job:
    """A request in the worker."""

    def __init__(
        self,
        result: RequestOutput,
        prompt: list[int],
        params: Any,
        *,
        lora_request: Any,
        cache_salt: str | None,
        streaming: bool,
    ) -> None:
        self.result = result
        self.prompt = prompt
        self.params = params
        self.adapter = 0 if lora_request is None else int(lora_request.lora_int_id)
        self.cache_salt = cache_salt
        self.streaming = streaming
        self.produced: list[int] = []
        self.cached_tokens = 0
        self.response = Response()
        self.stop_token_ids = list(params.stop_token_ids or [])
        self.end_id = -1 if params.ignore_eos else params.end_id


class Worker:
    """Echoes prompts, in a rolling batch of `max_batch_size`."""

    def __init__(self, args: Any, vocab_size: int, max_seq_len: int) -> None:
        self.stopped = False
        self._args = args
        self._vocab_size = vocab_size
        self._max_seq_len = max_seq_len
        self._settings = controls.step_seconds, controls.tokens_per_response, controls.end_id_in_token_ids
        self._jobs: dict[int, Job] = {}
        self._cached: set[tuple[str | None, int]] = set()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="tensorrt_llm worker", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Add a request. It waits if the batch is full."""
        with self._changed:
            self._jobs[job.result.request_id] = job
            self._changed.notify()

    def abort(self, request_id: int) -> None:
        """Cancel a request and send its last response."""
        with self._changed:
            job = self._jobs.pop(request_id, None)
        if job is not None:
            job.result._put(Response(finish="CANCELLED"))

    def shutdown(self) -> None:
        """End."""
        with self._changed:
            self.stopped = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        seconds, tokens_per_response, _ = self._settings
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.stopped or self._jobs, timeout=None)
                if self.stopped:
                    return
                batch = list(self._jobs.values())[: self._args.max_batch_size]
                for job in batch:
                    for _ in range(tokens_per_response):
                        if not self._advance(job):
                            break
                    if job.streaming or job.response.finish is not None:
                        self._respond(job)
                self._changed.wait(seconds or 1e-6)

    def _respond(self, job: Job) -> None:
        response, job.response = job.response, Response()
        response.cached_tokens = job.cached_tokens
        if job.result.request_id in self._jobs or response.finish is not None:
            job.result._put(response)

    def _advance(self, job: Job) -> bool:
        """Generate the job's next token and return whether the job continues."""
        if not job.produced and not self._prefill(job):
            return False
        if len(job.produced) + 1 == _FAULT_AT and self._fault(job):
            return False
        token_id = self._next_token(job)
        ends = token_id == job.end_id
        job.produced.append(token_id)
        if not ends or self._settings[2]:
            job.response.token_ids.append(token_id)
            if job.params.logprobs:
                job.response.logprobs.append(self._logprobs(token_id, job.params.logprobs))
        if ends:
            return self._finish(job, "END_ID")
        if token_id in job.stop_token_ids:
            job.response.stop_word = token_id
            return self._finish(job, "STOP_WORDS")
        room = self._max_seq_len - len(job.prompt)
        if len(job.produced) >= min(room, job.params.max_tokens or room):
            return self._finish(job, "LENGTH")
        return True

    def _finish(self, job: Job, finish: str) -> bool:
        job.response.finish = finish
        self._jobs.pop(job.result.request_id, None)
        return False

    def _prefill(self, job: Job) -> bool:
        if len(job.prompt) >= self._max_seq_len:
            del self._jobs[job.result.request_id]
            job.result._put(f"prompt length {len(job.prompt)} exceeds max_seq_len {self._max_seq_len}")
            return False
        reusable = len(job.prompt) > 1 and self._args.kv_cache_config.enable_block_reuse
        reused = reusable and (job.cache_salt, job.prompt[0]) in self._cached
        self._cached.add((job.cache_salt, job.prompt[0]))
        job.cached_tokens = int(reused)
        logits = context_logits(job.prompt, self._vocab_size)
        if job.params.return_context_logits:
            job.response.context_logits = logits[1:] if reused else logits
        if job.params.prompt_logprobs:
            best = logits.log_softmax(dim=-1).topk(job.params.prompt_logprobs)
            job.response.prompt_logprobs = [
                {token: Logprob(value, rank) for rank, (token, value) in enumerate(zip(*row, strict=True), 1)}
                for row in zip(best.indices.tolist(), best.values.tolist(), strict=True)
            ]
        return True

    def _next_token(self, job: Job) -> int:
        count = len(job.produced)
        if count >= len(job.prompt) and job.end_id >= 0 and count >= (job.params.min_tokens or 0):
            return int(job.end_id)
        token_id = (job.prompt[count % len(job.prompt)] + job.adapter) % self._vocab_size
        if implies_greedy(job.params):
            return token_id
        return (token_id + 1 + (job.params.seed or 0) + count) % self._vocab_size

    def _logprobs(self, token_id: int, count: int) -> dict[int, Logprob]:
        if self._args.sampler_type == "TRTLLMSampler":
            return {token_id: Logprob(logprob(token_id), 1)}
        # The other sampler's are the likeliest, and what was sampled need not be among them.
        return {(token_id + rank) % self._vocab_size: Logprob(-float(rank), rank) for rank in range(1, count + 1)}

    def _fault(self, job: Job) -> bool:
        match controls.faults.get(job.prompt[0]):
            case "error":
                del self._jobs[job.result.request_id]
                job.result._put("the worker could not go on with this request")
            case "timeout":
                self._finish(job, "TIMED_OUT")
            case "cancel":
                self._finish(job, "CANCELLED")
            case "die":
                self.stopped = True
                for other in self._jobs.values():
                    other.result._put(MemoryError("CUDA out of memory"))
            case "vanish":
                self.stopped = True
            case _:
                return False
        return True
