"""A child process that misbehaves as each question asks."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from backends.limited_process import serve


def prepare(setup: bytes) -> Callable[[bytes], bytes]:
    """`spin` takes seconds of processor time, `sleep` takes seconds of real time."""

    def answer(question: bytes) -> bytes:
        what, _, seconds = question.decode().partition(" ")
        if what == "spin":
            while time.process_time() < float(seconds):
                pass
        elif what == "sleep":
            time.sleep(float(seconds))
        elif what == "abort":
            os.abort()
        elif what == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif what == "grow":
            bytes(2**30)
        return setup + b" " + str(os.getppid()).encode()

    return answer


if __name__ == "__main__":
    serve(prepare, memory=2**28)
