"""An image in, a smaller image or its colours out."""

import io

from djl_python.inputs import Input
from djl_python.outputs import Output

size = None


def handle(inputs: Input) -> Output:
    global size
    if size is None:
        size = int(inputs.get_properties()["size"])
    if inputs.is_empty():
        return None

    try:
        image = inputs.get_as_image().convert("RGB").resize((size, size))
    except Exception:
        return Output(code=400, message="Bad Request").add("The body is not an image", key="data")
    if inputs.get_property("accept") == "application/json":
        colors = [{"count": count, "color": color} for count, color in image.getcolors()]
        return Output().add_as_json(colors).add_property("Content-Type", "application/json")
    content = io.BytesIO()
    image.save(content, format="PNG")
    return Output().add(content.getvalue(), key="image").add_property("content-type", "image/png")
