"""Arrays in and out: NDList, .npz and CSV, by content type."""

import numpy as np
from djl_python import Input, Output
from djl_python.np_util import to_nd_list


def handle(inputs: Input) -> Output:
    if inputs.is_empty():
        return None

    content_type = inputs.get_property("content-type")
    if content_type == "text/csv":
        rows = inputs.get_as_csv()
        total = np.sum([[float(value) for value in row.values()] for row in rows], axis=0)
        return Output().add_as_json({"total": total, "count": np.int64(len(rows))})

    arrays = [array * 2 for array in inputs.get_data()]
    outputs = Output()
    if content_type == "tensor/npz":
        outputs.add_as_npz(arrays)
    else:
        outputs.add(to_nd_list(arrays))
    outputs.add_property("Content-Type", content_type)
    return outputs
