"""Matches stop strings in text that arrives in pieces.

Written by hand, because text at the end of a piece must be held back if it may be the start of a stop string.
pyahocorasick can continue a search from piece to piece, but does not tell how long that partial match is. The partial
matches of `regex` do not find the stop string that ends first.
"""

from __future__ import annotations

import copy
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


class StopMatcher:
    """Finds the first stop string in the text of one sequence. The text is fed as one piece per token.

    The stop strings are in an automaton, which all sequences of a request share.

    The match that ends first wins. If several end at the same character, the longest wins. So the result does not
    depend on how the text is split into pieces. The text is cut before the match, or after it with
    `include_stop_str_in_output`. A match must end after the first `min_tokens` pieces.

    Each piece that goes in comes out once, in order. It comes out late if its end may be the start of a stop string,
    and shorter if a match cuts it. Time is linear in the text, whatever the stop strings are.
    """

    def __init__(
        self, automaton: StopAutomaton, *, include_stop_str_in_output: bool = False, min_tokens: int = 0
    ) -> None:
        self._automaton = automaton
        self._node = 0
        self._held: deque[str] = deque()
        self._held_length = 0  # characters
        self._include_stop = include_stop_str_in_output
        self._pieces_to_pass = min_tokens
        self.matched: str | None = None
        """The stop string that was found."""

    def feed(self, piece: str) -> list[str]:
        """Return the pieces that later text can no longer change, oldest first.

        If `matched` is set, all pieces are returned, and this must not be called again.
        """
        automaton, node = self._automaton, self._node
        can_match = self._count_piece()
        if node == 0 and automaton.first_characters.isdisjoint(piece):
            return [piece]
        for index, char in enumerate(piece):
            node = automaton.next(node, char)
            length = automaton.match_length[node]
            if length and can_match:
                return self._cut(piece, self._held_length + index + 1, length)
        self._node = node = automaton.open_node(node)
        return self._release(piece, keep=automaton.depth[node])

    def feed_stop(self, stop: str) -> list[str]:
        """Take a stop token that has no text, but is written as `stop`. It counts as an empty piece. Otherwise like `feed`."""
        if self._count_piece():
            self.matched = stop
            return [*self.flush(), ""]
        return self._release("", keep=self._automaton.depth[self._node])

    def flush(self) -> list[str]:
        """Return the pieces that are still held, at the end of a text without a match."""
        pieces = list(self._held)
        self._held.clear()
        self._held_length = self._node = 0
        return pieces

    def fork(self) -> Self:
        """Return one that goes on from here by itself."""
        other = copy.copy(self)
        other._held = self._held.copy()  # noqa: SLF001  a copy of this one
        return other

    def _count_piece(self) -> bool:
        """Count a new piece and return whether a match may end in it."""
        self._pieces_to_pass -= 1
        return self._pieces_to_pass < 0

    def _release(self, piece: str, keep: int) -> list[str]:
        """Hold `piece`, then return the oldest pieces that can go while at least `keep` characters stay held."""
        held = self._held
        held.append(piece)
        length = self._held_length + len(piece)
        released = []
        while held and length - len(held[0]) >= keep:
            length -= len(held[0])
            released.append(held.popleft())
        self._held_length = length
        return released

    def _cut(self, piece: str, end: int, length: int) -> list[str]:
        """Return all pieces, cut at a match of `length` characters that is complete after `end` characters."""
        whole = [*self.flush(), piece]
        self.matched = "".join(whole)[end - length : end]
        if not self._include_stop:
            end -= length
        pieces = []
        for text in whole:
            pieces.append(text[:end])
            end = max(end - len(text), 0)
        return pieces


class StopAutomaton:
    """The Aho-Corasick automaton of a set of stop strings.

    Each node is a prefix of a stop string, and node 0 is the root. The current node is the longest prefix that the text
    so far ends with. `depth` is the length of that prefix. `match_length` is the length of the longest stop string that
    the text so far ends with, or 0 if there is none.

    Comparing at every token from scratch would take time proportional to text length times stop length for strings such
    as "aaaa...b". Building the automaton takes linear time, but a few hundred bytes per character, so build it once per
    request. Immutable once built.
    """

    def __init__(self, stop: tuple[str, ...]) -> None:
        self._children: list[dict[str, int]] = [{}]
        self._fallback = [0]  # for each node, its longest proper suffix that is also a node
        self.depth = [0]
        self.match_length = [0]
        for string in stop:
            self._add(string)
        self._link()
        self.first_characters = frozenset(self._children[0])

    def next(self, node: int, char: str) -> int:
        """Return the node after `char`."""
        while char not in self._children[node]:
            if node == 0:
                return 0
            node = self._fallback[node]
        return self._children[node][char]

    def open_node(self, node: int) -> int:
        """Return the longest suffix of `node` that more text could still complete to a stop string."""
        while node and not self._children[node]:
            node = self._fallback[node]
        return node

    def _add(self, string: str) -> None:
        node = 0
        for char in string:
            if char not in self._children[node]:
                self._children[node][char] = len(self._children)
                self._children.append({})
                self._fallback.append(0)
                self.depth.append(self.depth[node] + 1)
                self.match_length.append(0)
            node = self._children[node][char]
        self.match_length[node] = len(string)

    def _link(self) -> None:
        nodes = deque(self._children[0].values())
        while nodes:
            node = nodes.popleft()
            self.match_length[node] = self.match_length[node] or self.match_length[self._fallback[node]]
            for char, child in self._children[node].items():
                self._fallback[child] = self.next(self._fallback[node], char)
                nodes.append(child)
