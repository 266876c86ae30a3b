"""A module beside model.py."""

from djl_python.request_io import TextInput


class Question(TextInput):
    language: str
