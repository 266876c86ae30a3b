"""The alphabet of byte-level BPE."""

from __future__ import annotations


def byte_characters() -> list[str]:
    """Return the character for each byte in the vocabulary of a byte-level BPE, as defined by GPT-2.

    Bytes that are printable in Latin-1 map to that character. The other bytes map, in order, to U+0100 and up.
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]
