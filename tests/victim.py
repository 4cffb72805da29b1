"""A process that is killed while it works: what it showed is what others may have seen."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator


class Victim:
    """Fork a process that shows what `shows` yields, line by line, until it is killed.

    It inherits what this process has imported, which would take it half a second to import again.
    """

    def __init__(self, shows: Iterator[object]) -> None:
        read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(read)
                for line in shows:
                    os.write(write, f"{line}\n".encode())
            finally:
                os._exit(1)
        os.close(write)
        self._shown = os.fdopen(read)

    def readline(self) -> str:
        """Wait for the next line."""
        return self._shown.readline()

    def kill(self) -> list[str]:
        """Kill it wherever it is; return the lines that were shown and not read."""
        os.kill(self.pid, signal.SIGKILL)
        with self._shown:
            lines = [line for line in self._shown if line.endswith("\n")]
        assert os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]) == -signal.SIGKILL
        return lines
