"""Waiting for a change at this peer, and for not longer than so many seconds."""

from __future__ import annotations

import asyncio


class Signal:
    """Wakes everyone who waits. Check the condition first and wait without an `await` in between.

    Made of plain futures: `asyncio.wait_for` loses a cancellation that comes together with the event, before
    Python 3.12.
    """

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Future[bool], None] = {}  # woken in the order in which they came

    def fire(self) -> None:
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            _wake(waiter, True)

    async def wait(self, timeout: float) -> bool:
        """Until the next `fire`, or so many seconds; whether it was a `fire`."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        timer = loop.call_later(timeout, _wake, waiter, False)
        self._waiters[waiter] = None
        try:
            return await waiter
        finally:
            timer.cancel()
            self._waiters.pop(waiter, None)


def _wake(waiter: asyncio.Future[bool], fired: bool) -> None:
    if not waiter.done():
        waiter.set_result(fired)
