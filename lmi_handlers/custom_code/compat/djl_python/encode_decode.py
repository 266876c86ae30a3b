"""`from djl_python.encode_decode import decode, encode`."""

from lmi_handlers.custom_code.encode_decode import decode, decode_csv, encode, encode_csv

__all__ = ["decode", "decode_csv", "encode", "encode_csv"]
