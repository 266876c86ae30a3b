"""A request is checked against what the backend can do before it is submitted."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from capabilities import capabilities
from facts import raises

from lmi_handlers.core.capabilities import (
    check_adapter,
    check_cache_salt,
    check_continuation,
    check_continued_length,
    check_not_ended,
    check_prompt,
    check_sampling_params,
)
from lmi_handlers.core.errors import InvalidRequest, UnsupportedFeature
from lmi_handlers.core.pooling_params import PoolingParams
from lmi_handlers.core.request import BeamSearchParams, GenerationRequest, Prompt
from lmi_handlers.core.sampling_params import SamplingParams

KNOWN = capabilities(
    max_model_len=96,
    vocab_size=128,
    max_logprobs=20,
    max_output_len=50,
    unsupported=("watermark", "typical_p"),
    adapters=("loud",),
)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "prompt 1 95 tokens 0"),
        ([5] * 96, "prompt 1 95 tokens 96"),
        ([5, 128], "ids prompt 0 127 128"),
        ([5, -1], "ids prompt 0 127 -1"),
    ],
)
def test_prompt(prompt: list[int], message: str) -> None:
    check_prompt([0, 127] * 47, KNOWN)
    with raises(InvalidRequest, message):
        check_prompt(prompt, KNOWN)


def test_prompt_under_a_lower_limit() -> None:
    assert capabilities(max_model_len=96, max_input_len=40).max_input_tokens == 40
    assert capabilities(max_model_len=96, max_input_len=96).max_input_tokens == 95


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (SamplingParams(logprobs=21), "logprobs: 20 21"),
        (SamplingParams(prompt_logprobs=21), "prompt_logprobs: 20 21"),
        (SamplingParams(max_tokens=51), "max_tokens: 50 51"),
        (SamplingParams(logit_bias={1: 1.0, 4000: 1.0}), "logit_bias: 0 127 4000"),
        (SamplingParams(stop_token_ids=(-1, 5)), "stop_token_ids: 0 127 -1"),
        (SamplingParams(allowed_token_ids=(128,)), "allowed_token_ids: 0 127 128"),
    ],
)
def test_sampling_params(params: SamplingParams, message: str) -> None:
    with raises(InvalidRequest, message):
        check_sampling_params(params, KNOWN)


def test_prompt_logprobs_may_have_a_limit_of_their_own() -> None:
    check_sampling_params(SamplingParams(prompt_logprobs=5), capabilities(max_logprobs=0, max_prompt_logprobs=5))


def test_unsupported_field() -> None:
    check_sampling_params(SamplingParams(typical_p=1.0), KNOWN)
    with raises(UnsupportedFeature, "typical_p: not supported echo"):
        check_sampling_params(SamplingParams(typical_p=0.5), KNOWN)


def test_adapter() -> None:
    check_adapter(None, KNOWN)
    check_adapter("loud", KNOWN)
    with raises(InvalidRequest, "adapters: x loud"):
        check_adapter("x", KNOWN)
    with raises(UnsupportedFeature, "adapters: not supported echo"):
        check_adapter("x", capabilities(unsupported=("adapters",)))


def test_cache_salt() -> None:
    """A backend that does not say that it takes salts gets none, because nobody would notice that it ignores them."""
    check_cache_salt(None, KNOWN)
    check_cache_salt("x", capabilities(takes_cache_salt=True))
    with raises(UnsupportedFeature, "cache_salt: not supported echo"):
        check_cache_salt("x", KNOWN)


CONTINUES = capabilities(max_model_len=96, vocab_size=128, continues=True, not_continued=("seed", "presence_penalty"))


def continued(*generated: int, **fields: Any) -> GenerationRequest:
    fields = {"prompts": (Prompt("a"),), **fields}
    params = SamplingParams(**fields.pop("params", {}))
    return GenerationRequest(request_id="r", sampling_params=params, generated=generated, **fields)


def test_continuation() -> None:
    """A backend that does not say that it continues answers gets none to continue, or it would begin them again."""
    check_continuation(continued(), KNOWN)
    check_continuation(continued(5, 127, params={"max_tokens": 3, "temperature": 0.0, "seed": 1}), CONTINUES)
    with raises(UnsupportedFeature, "echo continue"):
        check_continuation(continued(5), KNOWN)


@pytest.mark.parametrize(
    "fields",
    [
        {"prompts": (Prompt("a"), Prompt("b"))},
        {"params": {"n": 2}},
        {"beam_search": BeamSearchParams(num_beams=2)},
        {"pooling_params": PoolingParams(task="embed")},
    ],
)
def test_only_one_sequence_is_continued(fields: dict[str, Any]) -> None:
    with raises(InvalidRequest, "one sequence", code="invalid_continuation"):
        check_continuation(continued(5, **fields), CONTINUES)


@pytest.mark.parametrize("params", [{"seed": 1}, {"presence_penalty": 0.5, "temperature": 0.0}])
def test_parameters_with_which_a_backend_does_not_continue(params: dict[str, Any]) -> None:
    with raises(UnsupportedFeature, f"{next(iter(params))}: echo continue"):
        check_continuation(continued(5, params=params), CONTINUES)


@pytest.mark.parametrize("generated", [(5, 128), (-1, 5)])
def test_continued_tokens_are_in_the_vocabulary(generated: tuple[int, ...]) -> None:
    with raises(InvalidRequest, "tokens", code="invalid_continuation"):
        check_continuation(continued(*generated), CONTINUES)


def test_an_answer_with_all_its_tokens_is_not_continued() -> None:
    with raises(InvalidRequest, "2 tokens", code="continuation_finished"):
        check_continuation(continued(5, 5, params={"max_tokens": 2}), CONTINUES)
    with raises(InvalidRequest, "2 tokens", code="continuation_finished"):
        check_continuation(continued(5, 5), msgspec.structs.replace(CONTINUES, max_output_len=2))
    check_continued_length(90, (5,) * 5, CONTINUES)
    check_continued_length(96, (), CONTINUES)
    with raises(InvalidRequest, "96 96", code="continuation_finished"):
        check_continued_length(90, (5,) * 6, CONTINUES)


@pytest.mark.parametrize(
    ("generated", "params", "ended"),
    [
        ((5, 2), {}, True),
        ((2, 5), {}, False),
        ((5, 2), {"ignore_eos": True}, False),
        ((5, 7), {"stop_token_ids": (7,), "ignore_eos": True}, True),
        ((5, 7), {"stop_token_ids": (7,), "min_tokens": 3}, False),
    ],
)
def test_an_answer_that_has_ended_is_not_continued(
    generated: tuple[int, ...], params: dict[str, Any], ended: bool
) -> None:
    asked = continued(*generated, params=params)
    if not ended:
        check_not_ended(asked, (2,))
        return
    with raises(InvalidRequest, str(generated[-1]), code="continuation_finished"):
        check_not_ended(asked, (2,))
