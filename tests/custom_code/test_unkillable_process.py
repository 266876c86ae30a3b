"""A process that SIGKILL does not end, because it waits for a device. Here, the signal never reaches it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from facts import says

from lmi_handlers.config.custom_code import CustomCode
from lmi_handlers.custom_code import runner as runner_module
from lmi_handlers.custom_code.runner import CodeRunner

PROPERTIES = {"model_dir": "", "sessions_path": ""}


def test_it_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "model.py"
    file.write_text("def handle(inputs):\n    return None\n")
    code = CustomCode(path=str(file), directory=str(tmp_path), properties=PROPERTIES)
    kill, groups = os.killpg, []
    monkeypatch.setattr(runner_module, "KILL_TIMEOUT", 0.2)

    async def end() -> int:
        runner = await CodeRunner.start(code, 0, timeout=60)
        monkeypatch.setattr(os, "killpg", lambda group, _: groups.append(group))
        reading = runner._reading
        await asyncio.wait_for(runner.end(), 30)
        assert reading is not None
        await asyncio.wait_for(reading, 30)  # what waits for its answers goes on, too
        assert runner.free == 0
        kill(groups[0], signal.SIGKILL)
        await asyncio.to_thread(runner._process.wait)
        return runner.ended.result()

    assert asyncio.run(end()) == -signal.SIGKILL
    assert says(caplog.text, "process cannot killed")
