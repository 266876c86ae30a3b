"""A module beside inference.py."""


def column(data):
    return [float(value) for value in data["instances"]]
