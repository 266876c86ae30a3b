"""A handler: mean and spread of lists of numbers, up to `batch_size` of them in one call."""

from __future__ import annotations

import statistics

from djl_python import Input, Output


def handle(inputs: Input) -> list[Output] | None:
    """Answer a batch. The first call is empty: load there what you need."""
    if inputs.is_empty():
        return None
    return [answer(request) for request in inputs.get_batches()]


def answer(request: Input) -> Output:
    """Answer one request. If it is wrong, only that one fails."""
    try:
        numbers = request.get_as_json()
        return Output().add_as_json({"mean": statistics.fmean(numbers), "stdev": statistics.stdev(numbers)})
    except (TypeError, ValueError, ArithmeticError) as error:
        return Output().error(f"expected a JSON list of at least two numbers: {error}", code=400)
