"""A clock that the test holds: what must be about time is tested to the microsecond, and takes none.

`Clock` stands in for the module `time`, and `run` runs a coroutine in an event loop that lives by it: where
the loop would wait, the clock is set forward instead.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class Clock:
    """Tells the time that it was set to; replaces the module `time` in the code under test."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class _Selector(selectors.DefaultSelector):
    """Sets the clock forward where a selector would wait for a timer."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "the loop would wait for ever: nothing is due"
            self.clock.now += timeout
        return ready


class _Loop(asyncio.SelectorEventLoop):
    """Takes its time from the clock, and runs in place what would run in another thread."""

    def __init__(self, clock: Clock) -> None:
        self._held = clock
        super().__init__(_Selector(clock))

    def time(self) -> float:
        return self._held.now

    def run_in_executor(self, _executor: Any, work: Callable[..., Any], *args: Any) -> Any:
        done = self.create_future()
        try:
            done.set_result(work(*args))
        except Exception as error:
            done.set_exception(error)
        return done


def run(clock: Clock, coroutine: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine by the clock; in a thread of its own, because tests of pages leave a running loop."""

    def in_a_loop() -> Any:
        with asyncio.Runner(loop_factory=lambda: _Loop(clock)) as runner:
            return runner.run(coroutine())

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(in_a_loop).result()
