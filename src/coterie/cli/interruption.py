"""Ending from outside: SIGTERM is like Ctrl-C, and a process that another started ends with it."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from coterie.cli.problems import complain

INTERRUPTED = 130
if sys.platform == "win32":  # where a closed terminal ends a process without a word
    _ENDINGS = [signal.SIGTERM]
else:
    _ENDINGS = [signal.SIGTERM, signal.SIGHUP]


@contextmanager
def ended_like_interrupted() -> Iterator[None]:
    """SIGTERM, or a closed terminal, raises KeyboardInterrupt."""
    before = {number: signal.getsignal(number) for number in _ENDINGS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def same_command_goes_on() -> Iterator[None]:
    """Cells know how to go on, so the same command does."""
    try:
        yield
    except KeyboardInterrupt:
        command = shlex.join(["coterie", *sys.argv[1:]])
        raise KeyboardInterrupt(f"what is finished is kept; go on with: {command}") from None


@contextmanager
def undisturbed() -> Iterator[None]:
    """While cleaning up, which takes seconds at most, another Ctrl-C changes nothing."""
    numbers = (signal.SIGINT, *_ENDINGS)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_with_stdin() -> None:
    """End like on SIGTERM once stdin is closed, which happens however the process at its other end dies."""

    def watch() -> None:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True, name="stdin").start()


def leave(message: str) -> None:
    """Exit as after Ctrl-C, without waiting for a thread that trains; what counts is on the disk already."""
    complain(f"interrupted; {message}", kind="")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(INTERRUPTED)
