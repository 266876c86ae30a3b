"""A module beside model.py."""

NAMES = {False: "NEGATIVE", True: "POSITIVE"}
