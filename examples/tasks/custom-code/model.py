"""A handler: mean and spread of lists of numbers. `inputs.get_batches()` has the requests of a batch."""

from __future__ import annotations

import statistics

from djl_python import Input, Output


def handle(inputs: Input) -> Output | None:
    """Answer a batch. A request that cannot be answered gets an error of its own."""
    if inputs.is_empty():  # the first call: load what you need
        return None
    output = Output()
    for index, request in enumerate(inputs.get_batches()):
        numbers = request.get_as_json()
        if (
            isinstance(numbers, list)
            and len(numbers) > 1
            and all(isinstance(number, (int, float)) for number in numbers)
        ):
            answer = {"mean": statistics.fmean(numbers), "stdev": statistics.stdev(numbers)}
        else:
            answer = {"error": "a list of at least two numbers is expected"}
        output.add_as_json(answer, batch_index=index)
    return output
