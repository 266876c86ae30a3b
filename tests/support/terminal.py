"""`lmi` on a pseudo-terminal of its own, as a person would run it."""

from __future__ import annotations

import codecs
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

from serving import ENVIRON

COLOUR = re.compile(r"\x1b\[\d*m")


class Terminal:
    """A running command of `lmi`. `raw` is what it has written so far, and `keyboard` the file to write keys to."""

    def __init__(self, *arguments: str, **environ: str) -> None:
        clean = {key: value for key, value in ENVIRON.items() if not key.startswith(("LMI_", "OPTION_", "SERVING_"))}
        command = [sys.executable, "-m", "lmi_handlers.commands.interruptible", "lmi_handlers.commands.cli", *arguments]
        self.keyboard, end = pty.openpty()
        self.process = subprocess.Popen(
            command,
            stdin=end,
            stdout=end,
            stderr=end,
            env=clean | {"TERM": "xterm"} | environ,
            start_new_session=True,
            preexec_fn=lambda: os.close(
                os.open(os.ttyname(0), os.O_RDWR)
            ),  # opening it makes it the controlling terminal
        )
        os.close(end)
        self.raw = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()  # a read may end within a character

    @property
    def text(self) -> str:
        """The output so far, without colours."""
        self._read(0)
        return COLOUR.sub("", self.raw.replace("\r\n", "\n"))

    def wait_for(self, words: str, timeout: float = 60) -> None:
        deadline = time.monotonic() + timeout
        is_open = True
        while words not in self.text:
            assert is_open, self.text
            assert time.monotonic() < deadline, self.text
            is_open = self._read(0.2)

    def type(self, keys: str) -> None:
        os.write(self.keyboard, keys.encode())

    def ended(self, timeout: float = 60) -> int:
        """Wait for the end, and return the exit status."""
        deadline = time.monotonic() + timeout
        while self.process.poll() is None:
            self._read(0.1)
            assert time.monotonic() < deadline, self.text
        return self.process.wait()

    def press_ctrl_c(self, words: str, timeout: float = 60) -> None:
        """Press Ctrl-C, and wait for `words`.

        A signal that comes when Python is about to wait for a line is only noticed with the next one. Here, that is the one
        for a window of another size, which does nothing else. A second Ctrl-C could mean more than the first.
        """
        self.type("\x03")
        deadline = time.monotonic() + timeout
        while words not in self.text:
            assert time.monotonic() < deadline, self.text
            assert self.process.poll() is None, self.text
            time.sleep(0.2)
            self.process.send_signal(signal.SIGWINCH)

    def interrupted(self, timeout: float = 60) -> int:
        """Press Ctrl-C until the command has ended, and return its exit status. `press_ctrl_c` says why once may not do."""
        deadline = time.monotonic() + timeout
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.text
            self.type("\x03")
            next_press = time.monotonic() + 2  # another one would kill it while it ends
            while self.process.poll() is None and time.monotonic() < next_press:
                self._read(0.1)
        return self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(120)
        os.close(self.keyboard)

    def _read(self, timeout: float) -> bool:
        """Read the available output. Return false if all processes on the terminal have ended."""
        while select.select([self.keyboard], [], [], timeout)[0]:
            try:
                data = os.read(self.keyboard, 65536)
            except OSError:
                return False
            self.raw += self._decoder.decode(data)
            timeout = 0
        return True
