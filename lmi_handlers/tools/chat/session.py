"""The loop of a chat: runs commands, asks, and prints answers."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.log import takes_colours
from lmi_handlers.tools.chat.conversation import Conversation, parse_setting
from lmi_handlers.tools.chat.lines import Interrupts, piped_lines, typed_lines
from lmi_handlers.tools.chat.screen import Screen
from lmi_handlers.tools.chat.server import ChatPartner
from lmi_handlers.tools.client.answer import Piece
from lmi_handlers.tools.client.errors import AnswerFailed, CallRefused
from lmi_handlers.tools.client.report_files import json_file

_LONGEST_ANSWER = 16 * 2**20

_HELP = """\
/clear              forget the conversation
/system TEXT        set the system prompt; without TEXT, remove it
/set NAME VALUE     set a parameter, such as /set max_new_tokens 50; without VALUE, remove it
/set                show the parameters
/retry              ask the last question again
/save FILE          write the conversation to a new file, as JSON
/help               show this list
/quit               end the chat, as Ctrl-D does
Ctrl-C stops an answer. A line that ends with a backslash goes on in the next one. // begins a message with a slash."""


def run(server: ChatPartner, conversation: Conversation, history_file: Path | None) -> None:
    """Chat until the input ends. Exits with status 1 if anything failed and the input was no terminal."""
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    screen = Screen(interactive=interactive, coloured=interactive and takes_colours(sys.stdout))
    interrupts = Interrupts()
    chat = _Chat(server, conversation, screen, interrupts)
    screen.note(f"chat with {server}; /help lists the commands")
    for name, value in server.suggested(conversation).items():
        if name not in conversation.parameters:
            conversation.set(name, value)
            screen.note(f"{name} is {value}, because the model is small; /set {name} removes that")
    try:
        if interactive:
            interrupts.install()
            chat.run(typed_lines(history_file, interrupts))
        else:
            chat.run(piped_lines())
    except BrokenPipeError:  # nobody reads the answers
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    if chat.has_failed and not interactive:
        sys.exit(1)


class _Chat:
    def __init__(self, server: ChatPartner, conversation: Conversation, screen: Screen, interrupts: Interrupts) -> None:
        self._server = server
        self._conversation = conversation
        self._screen = screen
        self._interrupts = interrupts
        self._question: str | None = None
        self._is_answered = False
        self.has_failed = False

    def run(self, lines: Iterator[str]) -> None:
        for line in lines:
            if not line.strip():
                continue
            if not line.startswith("/"):
                self._ask(line)
            elif line.startswith("//"):
                self._ask(line[1:])
            elif line.split()[0] in ("/quit", "/exit"):
                return
            else:
                self._command(line)

    def _command(self, line: str) -> None:
        name, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        conversation, screen = self._conversation, self._screen
        try:
            match name:
                case "/clear":
                    conversation.turns.clear()
                    self._question = None
                case "/system":
                    conversation.system = rest or None
                case "/set" if rest:
                    conversation.set(*parse_setting(rest, None))
                case "/set":
                    limit = {} if conversation.limit is None else {"max_new_tokens": conversation.limit}
                    for parameter, value in (limit | conversation.parameters).items():
                        screen.note(f"{parameter} {msgspec.json.encode(value).decode()}")
                case "/retry":
                    self._retry()
                case "/save":
                    self._save(rest)
                case "/help":
                    for entry in _HELP.splitlines():
                        screen.note(entry)
                case _:
                    raise ConfigError(f"{name[:100]} is not a command; /help lists the commands")
        except ConfigError as error:
            self._fail(error)

    def _retry(self) -> None:
        if self._question is None:
            raise ConfigError("nothing has been asked yet")
        if self._is_answered:
            self._conversation.take_back()
        self._ask(self._question)

    def _save(self, name: str) -> None:
        if not name:
            raise ConfigError("/save needs the name of a file")
        data = json_file({"messages": self._conversation.messages})
        try:
            with Path(name).expanduser().open("xb") as file:
                file.write(data)
        except (OSError, RuntimeError, ValueError) as error:  # no home, or a null character
            raise ConfigError(f"{name} cannot be written: {getattr(error, 'strerror', None) or error}") from error
        self._screen.note(f"saved {name}")

    def _ask(self, question: str) -> None:
        """Ask, and print the answer. A question without an answer is not part of the conversation."""
        conversation, screen = self._conversation, self._screen
        self._question = question
        self._is_answered = False
        conversation.say("user", question)
        pieces: list[str] = []
        try:
            with self._interrupts.allowed(), contextlib.closing(self._server.answer(conversation)) as answer:
                self._print(answer, pieces)
            self._is_answered = True
        except KeyboardInterrupt:
            screen.end_line()
            screen.note("stopped")
            self._is_answered = any(pieces)
        except (AnswerFailed, CallRefused, ConfigError) as error:
            self._fail(error)
        screen.end_line()
        if self._is_answered:
            conversation.say("assistant", "".join(pieces))
        else:
            conversation.take_back()

    def _print(self, answer: Iterator[Piece], pieces: list[str]) -> None:
        size = 0
        for piece in answer:
            text = piece.text
            size += len(text)
            if piece.is_reasoning:
                self._screen.reasoning(text)
            else:
                pieces.append(text)
                self._screen.answer(text)
            if size > _LONGEST_ANSWER:
                raise AnswerFailed(f"the answer is longer than {_LONGEST_ANSWER} characters")

    def _fail(self, error: Exception) -> None:
        self.has_failed = True
        self._screen.error(str(error))
