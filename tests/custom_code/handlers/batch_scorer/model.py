"""Dynamic batches: the requests of a batch are decoded one by one, and answered together."""

import logging

from djl_python import Input, Output
from djl_python.encode_decode import decode

initialized = False


def predict(numbers):
    return [number * 10 for number in numbers]


def handle(inputs: Input) -> Output:
    global initialized
    if not initialized:
        initialized = True
    if inputs.is_empty():
        return None

    batch = inputs.get_batches()
    numbers = []
    errors = {}
    for i, item in enumerate(batch):
        try:
            numbers.append(decode(item, item.get_property("Content-Type"))["number"])
        except Exception as e:
            logging.exception(f"request {i} of the batch cannot be read")
            errors[i] = str(e)

    predictions = iter(predict(numbers))
    outputs = Output()
    for i in range(inputs.get_batch_size()):
        if i in errors:
            outputs.add({"error": errors[i]}, key="data", batch_index=i)
        else:
            result = {"prediction": next(predictions), "batch": inputs.is_batch(), "size": len(batch)}
            outputs.add_as_json(result, key="data", batch_index=i)
    outputs.add_property("Content-Type", "application/json")
    return outputs
