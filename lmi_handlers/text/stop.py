"""Stop strings, matched on text that comes in pieces."""

from __future__ import annotations

from collections import deque


class StopMatcher:
    """Looks for the first of several stop strings in one sequence's text, fed as one piece per token.

    The strings are in an automaton, which all sequences of a request share.

    The first is the one that ends first, and of several that end together the longest: so a match does not depend on
    how the text is cut into pieces. It is cut from the text, or the text ends with it where
    `include_stop_str_in_output`. A match must end after the first `min_tokens` pieces.

    Pieces come out as they went in, one for one and in order, but later where their end may yet turn out to be the
    start of a stop string, and shortened where a match cuts them. The time taken is linear in the text, whatever the
    stop strings are.
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
        self.matched = False

    def feed(self, piece: str) -> list[str]:
        """Return the pieces, oldest first, that no later text can change; all of them where `matched` is now true.

        Once it is true, call this no more.
        """
        automaton, node = self._automaton, self._node
        can_match = self._count_piece()
        if node == 0 and automaton.first_characters.isdisjoint(piece):
            return [piece]
        for index, char in enumerate(piece):
            node = automaton.next(node, char)
            length = automaton.match_length[node]
            if length and can_match:
                return self._cut(piece, self._held_length + index + 1 - (0 if self._include_stop else length))
        self._node = node = automaton.open_node(node)
        return self._release(piece, keep=automaton.depth[node])

    def feed_stop(self) -> list[str]:
        """Take a stop that has no text, with an empty piece of its own; otherwise like `feed`."""
        if self._count_piece():
            self.matched = True
            return [*self.flush(), ""]
        return self._release("", keep=self._automaton.depth[self._node])

    def flush(self) -> list[str]:
        """Return the pieces still held: the text has ended, and no stop string with it."""
        pieces = list(self._held)
        self._held.clear()
        self._held_length = self._node = 0
        return pieces

    def _count_piece(self) -> bool:
        """Count a piece that has come in, and return whether a match may end in it."""
        self._pieces_to_pass -= 1
        return self._pieces_to_pass < 0

    def _release(self, piece: str, keep: int) -> list[str]:
        """Hold `piece`, and return the oldest pieces without which `keep` characters are still held."""
        held = self._held
        held.append(piece)
        length = self._held_length + len(piece)
        released = []
        while held and length - len(held[0]) >= keep:
            length -= len(held[0])
            released.append(held.popleft())
        self._held_length = length
        return released

    def _cut(self, piece: str, end: int) -> list[str]:
        """Return all pieces, shortened to `end` characters in all."""
        self.matched = True
        pieces = []
        for text in [*self.flush(), piece]:
            pieces.append(text[:end])
            end = max(end - len(text), 0)
        return pieces


class StopAutomaton:
    """The Aho-Corasick automaton of a set of stop strings: node 0 is the root, a node is a prefix of some stop string.

    Being at a node means that it is the longest such prefix with which the text so far ends. `depth` is its length, and
    `match_length` that of the longest whole stop string with which the text so far ends, 0 where there is none.

    Comparing anew at each token would take the product of two lengths for strings such as "aaaa...b". Building this is linear in
    the strings, but takes some hundred bytes per character: build it once per request. Immutable once made.
    """

    def __init__(self, stop: tuple[str, ...]) -> None:
        self._children: list[dict[str, int]] = [{}]
        self._fallback = [0]  # the longest proper suffix of a node that is a node too
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
        """Return the longest suffix of `node` that a longer text could still make a stop string of."""
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
