"""A model's result for a prompt -> the `TokenOutput` that its request asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.nn.functional import normalize

from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.core.pooling_params import Activation, PoolingParams
from lmi_handlers.core.request import TokenRequest


def pooled_output(
    request: TokenRequest, computed: torch.Tensor, activation: Callable[..., torch.Tensor]
) -> TokenOutput:
    """Return the output of a request. `computed` is what the model computed, in float32 on the CPU.

    Its shape is `[size]` for "embed" and "embed_sparse", `[tokens, size]` for "embed_all", `[labels]` for "classify".
    `activation` is the function of scores that the model's own files name.
    """
    params = request.pooling_params or PoolingParams()
    if params.task == "classify":
        computed = activation(computed) if params.activation == "model" else _ACTIVATIONS[params.activation](computed)
    elif params.task == "embed":
        computed = computed[: params.dimensions]
        computed = normalize(computed, dim=0) if params.normalize else computed
    if not computed.isfinite().all():
        return failed_output(request, "the model computed a number that is not finite for this input")
    if params.task == "embed_sparse":
        indices = computed.nonzero().flatten()
        data = indices.int().numpy().tobytes() + computed[indices].numpy().tobytes()
    else:
        data = computed.numpy().tobytes()
    return TokenOutput(
        request_id=request.request_id, token_ids=[], finish_reason=FinishReason.EOS_TOKEN, embedding=data
    )


def failed_output(request: TokenRequest, cause: str) -> TokenOutput:
    """Return the output of a request that failed alone."""
    return TokenOutput(request_id=request.request_id, token_ids=[], finish_reason=FinishReason.ERROR, error=cause)


_ACTIVATIONS: Mapping[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "sigmoid": torch.sigmoid,
    "softmax": lambda scores: scores.softmax(dim=-1),
    "none": lambda scores: scores,
}
