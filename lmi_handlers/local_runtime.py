"""placeholder"""
from __future__ import annotations
from flask import Blueprint
def local_runtime(*, split_payload_parts: bool) -> Blueprint:
    return Blueprint("local_runtime", __name__)
