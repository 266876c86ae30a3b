"""A linear model under another file name, with a package of its own and weights in its folder."""

import csv
import os
import sys

from djl_python import Input, Output

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from preprocessing.scaling import scale  # noqa: E402

weights = []


def load(model_dir):
    with open(os.path.join(model_dir, "weights.csv")) as file:
        return [float(row["weight"]) for row in csv.DictReader(file)]


def predict_pixels(inputs: Input) -> Output:
    if not weights:
        weights.extend(load(inputs.get_property("model_dir")))
    if inputs.is_empty():
        return None
    print("pixels", inputs.get_as_string())
    pixels = scale(inputs.get_as_json()["pixels"])
    return Output().add(str(sum(weight * pixel for weight, pixel in zip(weights, pixels))))
