"""A module of a package beside the entry point, which imports another one."""

from .constants import SCALE


def scale(values):
    return [value / SCALE for value in values]
