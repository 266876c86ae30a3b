"""Backends with one defect each, which `BackendContract` must find."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from backends.echo.backend import EchoBackend, _Sequence
from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.core.engine_counters import EngineCounters
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.core.request import EncodedPrompt, TokenRequest

Tops = list[list[tuple[int, float]] | None] | None


class Broken(EchoBackend):
    """`found_by` is the check that is meant for the defect, and `message` is part of what it says.

    `also` are other checks that rightly fail, or None if nearly all of them do.
    """

    found_by: ClassVar[str]
    message: ClassVar[str]
    also: ClassVar[frozenset[str] | None] = frozenset()


class AnotherName(Broken):
    found_by = "test_declaration"
    message = "Capabilities.backend must be the declared name"

    @property
    def capabilities(self) -> Capabilities:
        return msgspec.structs.replace(super().capabilities, backend="parrot")


class MoreThanDeclared(Broken):
    found_by = "test_declaration"
    message = "Capabilities.unsupported must list what the declaration lists"

    @property
    def capabilities(self) -> Capabilities:
        return msgspec.structs.replace(super().capabilities, unsupported=())


class BatchSizeOfItsOwn(Broken):
    found_by = "test_capabilities"
    message = "option.max_rolling_batch_size must set Capabilities.max_num_seqs"

    @property
    def capabilities(self) -> Capabilities:
        return msgspec.structs.replace(super().capabilities, max_num_seqs=32)


class CacheUsageInPercent(Broken):
    found_by = "test_reports_of_an_idle_engine"
    message = "kv_cache_usage is a share from 0 to 1"

    @property
    def kv_cache_usage(self) -> float:
        return 35.0


class PromptIgnored(Broken):
    found_by = "test_greedy_is_deterministic"
    message = "different prompts must have different answers"
    also = frozenset({"test_prompt_logprobs", "test_thinking_token_budget"})

    def add_request(self, request: TokenRequest) -> None:
        prompt = EncodedPrompt([120] * len(request.prompt.token_ids))
        super().add_request(msgspec.structs.replace(request, prompt=prompt))


class SeedOfTheBatch(Broken):
    found_by = "test_seed_reproduces_a_sample_in_any_batch"
    message = "other sequences in the batch must not change a seeded sample"
    also = frozenset({"test_continuation"})

    def _advance(self, sequence: _Sequence) -> TokenOutput | None:
        output = super()._advance(sequence)
        if output is not None and sequence.request.sampling_params.seed is not None and len(self._sequences) > 1:
            return msgspec.structs.replace(output, token_ids=[output.token_ids[0] + 1])
        return output


class OneTokenTooMany(Broken):
    found_by = "test_max_tokens"
    message = "token_ids must have max_tokens new tokens in total"

    def add_request(self, request: TokenRequest) -> None:
        super().add_request(request)
        if request.sampling_params.max_tokens == 1:
            self._sequences[request.request_id].max_tokens += 1


class NeverEnds(Broken):
    found_by = "test_max_tokens"
    message = "no output for 0.2 s, although sequences are running"

    def _advance(self, sequence: _Sequence) -> TokenOutput | None:
        if (sequence.request.sampling_params.max_tokens, sequence.produced) == (7, 6):
            return None
        return super()._advance(sequence)


class NoModelLength(Broken):
    found_by = "test_model_length_ends_a_sequence"
    message = "the sequence has more tokens than option.max_model_len allows"
    also = frozenset({"test_longest_prompt_has_room_for_one_token"})

    def add_request(self, request: TokenRequest) -> None:
        super().add_request(request)
        self._sequences[request.request_id].max_tokens = request.sampling_params.max_tokens or 1_000_000


class LongestPromptRejected(Broken):
    found_by = "test_longest_prompt_has_room_for_one_token"
    message = "too long"

    def add_request(self, request: TokenRequest) -> None:
        if len(request.prompt.token_ids) == self.capabilities.max_model_len - 1:
            raise InvalidRequest("too long")
        super().add_request(request)


class WrongFinishReason(Broken):
    found_by = "test_stop_token_ids"
    message = "the last output must have finish_reason STOP_SEQUENCE, not "

    def _advance(self, sequence: _Sequence) -> TokenOutput | None:
        output = super()._advance(sequence)
        if output is not None and output.finish_reason is FinishReason.STOP_SEQUENCE:
            return msgspec.structs.replace(output, finish_reason=FinishReason.LENGTH)
        return output


class EndOfSequenceLeftOut(Broken):
    found_by = "test_end_of_sequence"
    message = "token_ids must include the end-of-sequence id, once"

    def _advance(self, sequence: _Sequence) -> TokenOutput | None:
        output = super()._advance(sequence)
        if output is not None and output.finish_reason is FinishReason.EOS_TOKEN:
            return msgspec.structs.replace(output, token_ids=[])
        return output


class EndNotIgnored(Broken):
    found_by = "test_ignore_eos"
    message = "ignore_eos must let the sequence go on to max_tokens"

    def _advance(self, sequence: _Sequence) -> TokenOutput | None:
        params = sequence.request.sampling_params
        if params.logit_bias and sequence.produced >= params.min_tokens:
            return self._end(sequence)
        return super()._advance(sequence)

    def _end(self, sequence: _Sequence) -> TokenOutput:
        end_id = self._eos_token_id or 0
        request_id = sequence.request.request_id
        return TokenOutput(request_id=request_id, token_ids=[end_id], finish_reason=FinishReason.EOS_TOKEN)


class MinTokensIgnored(EndNotIgnored):
    found_by = "test_min_tokens"
    message = "the answer must have from min_tokens to max_tokens tokens"

    def _advance(self, sequence: _Sequence) -> TokenOutput | None:
        params = sequence.request.sampling_params
        if params.logit_bias and not params.ignore_eos:
            return self._end(sequence)
        return EchoBackend._advance(self, sequence)


class EndOfThoughtLeftOut(Broken):
    found_by = "test_thinking_token_budget"
    message = "ModelFiles.thinking.forced_end must follow as many tokens as thinking_token_budget allows"
    also = frozenset({"test_continuation"})

    def add_request(self, request: TokenRequest) -> None:
        super().add_request(request)
        self._sequences[request.request_id].thinking = None


class BudgetOfTheWholeAnswer(Broken):
    found_by = "test_a_budget_that_is_not_used_up"
    message = "thinking_token_budget must not change what is generated before it is used up"

    def add_request(self, request: TokenRequest) -> None:
        super().add_request(request)
        if request.sampling_params.thinking_token_budget == 12:
            self._sequences[request.request_id].max_tokens -= 1


class LogprobsForNothing(Broken):
    found_by = "test_no_logprobs_unless_requested"
    message = "the request has no logprobs"

    def _advance(self, sequence: _Sequence) -> TokenOutput | None:
        output = super()._advance(sequence)
        return None if output is None else msgspec.structs.replace(output, logprobs=[-0.5])


class UnsortedAlternatives(Broken):
    found_by = "test_logprobs"
    message = "alternatives must be sorted, the most probable first"
    also = frozenset({"test_prompt_logprobs", "test_prompt_logprobs_in_one_batch"})

    def _top(self, token_id: int, count: int) -> list[tuple[int, float]]:
        return super()._top(token_id, count)[::-1]


class FewAlternatives(Broken):
    found_by = "test_maximum_logprobs"
    message = "top_logprobs must have Capabilities.max_logprobs alternatives if the request asks for as many"

    def _top(self, token_id: int, count: int) -> list[tuple[int, float]]:
        return super()._top(token_id, min(count, 10))


class LogprobsCostAToken(Broken):
    found_by = "test_logprobs_do_not_change_the_tokens"
    message = "logprobs must not change what is generated"

    def add_request(self, request: TokenRequest) -> None:
        super().add_request(request)
        if request.sampling_params.logprobs is not None:
            self._sequences[request.request_id].max_tokens -= 1


class PromptLogprobsWithEachOutput(Broken):
    found_by = "test_prompt_logprobs"
    message = "only the first output of a sequence may have prompt_logprobs"
    also = frozenset({"test_maximum_logprobs", "test_prompt_logprobs_in_one_batch"})

    def _prompt_logprobs(self, sequence: _Sequence) -> tuple[list[float | None] | None, Tops]:
        produced, sequence.produced = sequence.produced, 1
        try:
            return super()._prompt_logprobs(sequence)
        finally:
            sequence.produced = produced


class AlternativesOfTheBatch(Broken):
    found_by = "test_prompt_logprobs_in_one_batch"
    message = "prompt_top_logprobs differ from those of the same prompt alone"

    def _prompt_logprobs(self, sequence: _Sequence) -> tuple[list[float | None] | None, Tops]:
        logprobs, top = super()._prompt_logprobs(sequence)
        most = max(each.request.sampling_params.prompt_logprobs or 0 for each in self._sequences.values())
        return logprobs, top and [None, *(self._top(token, most) for token in sequence.request.prompt.token_ids[1:])]


class IdleStepFails(Broken):
    found_by = "test_step_with_nothing_to_do"
    message = "there is nothing to do"
    also = None

    def step(self) -> list[TokenOutput]:
        if not self._sequences:
            raise RuntimeError("there is nothing to do")
        return super().step()


class LateAbort(Broken):
    found_by = "test_no_output_after_abort"
    message = "step returned an output for a sequence that had been aborted"
    also = frozenset({"test_abort_ignores_ids_that_are_not_running"})
    aborted: ClassVar[set[str]] = set()

    def abort(self, request_id: str) -> None:
        self.aborted.add(request_id)

    def step(self) -> list[TokenOutput]:
        outputs = super().step()
        for request_id in self.aborted:
            super().abort(request_id)
        return outputs


class UnknownIdRaises(Broken):
    found_by = "test_abort_ignores_ids_that_are_not_running"
    message = "KeyError"

    def abort(self, request_id: str) -> None:
        del self._sequences[request_id]


class CachedTokensWithEachOutput(Broken):
    found_by = "test_cached_prompt_tokens"
    message = "only the first output of a sequence may have num_cached_tokens"
    also = None

    def _advance(self, sequence: _Sequence) -> TokenOutput | None:
        output = super()._advance(sequence)
        return None if output is None else msgspec.structs.replace(output, num_cached_tokens=0)


class WholePromptCached(Broken):
    found_by = "test_cached_prompt_tokens"
    message = "the last one is always computed"
    also = None

    def _advance(self, sequence: _Sequence) -> TokenOutput | None:
        output, prompt = super()._advance(sequence), sequence.request.prompt.token_ids
        return output and msgspec.structs.replace(output, num_cached_tokens=len(prompt))


class CountersDecrease(Broken):
    found_by = "test_cached_prompt_tokens"
    message = "counters must not decrease: prefix_cache_queries"
    looked_up: ClassVar[int] = 10000

    def add_request(self, request: TokenRequest) -> None:
        super().add_request(request)
        CountersDecrease.looked_up -= 1

    @property
    def counters(self) -> EngineCounters:
        return EngineCounters(prefix_cache_queries=self.looked_up)


class FullBatchLosesSequences(Broken):
    found_by = "test_more_sequences_than_the_batch_holds"
    message = "no output for 0.2 s, although sequences are running"

    def add_request(self, request: TokenRequest) -> None:
        if len(self._sequences) < self.capabilities.max_num_seqs:
            super().add_request(request)


class TokensOfTheNextSequence(Broken):
    found_by = "test_more_sequences_than_the_batch_holds"
    message = "a full batch must not change what is generated"
    also = frozenset(
        {
            "test_seed_reproduces_a_sample_in_any_batch",
            "test_no_output_after_abort",
            "test_thinking_token_budget",
            "test_continuation",
        }
    )

    def step(self) -> list[TokenOutput]:
        outputs = super().step()
        others = [*outputs[1:], *outputs[:1]]
        return [
            msgspec.structs.replace(output, token_ids=other.token_ids)
            for output, other in zip(outputs, others, strict=True)
        ]


class ContinuationBeginsAgain(Broken):
    found_by = "test_continuation"
    message = "a sequence that was cut after 1 tokens must go on as if it had not been"

    def add_request(self, request: TokenRequest) -> None:
        super().add_request(msgspec.structs.replace(request, generated=()))


class LateSequenceHasOtherTokens(Broken):
    found_by = "test_joining_and_leaving_changes_no_other_sequence"
    message = "another sequence has changed this one's tokens"

    def add_request(self, request: TokenRequest) -> None:
        if any(sequence.produced > len(sequence.request.generated) for sequence in self._sequences.values()):
            prompt = EncodedPrompt([120] * len(request.prompt.token_ids))
            request = msgspec.structs.replace(request, prompt=prompt)
        super().add_request(request)


DEFECTS: list[type[Broken]] = [
    kind
    for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, Broken) and kind is not Broken
]
