"""The modules of sagemaker-inference-toolkit that scripts import: content types, their codecs, and errors."""

from . import content_types, decoder, encoder, errors

__all__ = ["content_types", "decoder", "encoder", "errors"]
