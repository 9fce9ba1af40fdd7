"""Worker threads end before the interpreter does."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from coterie.learning.executor import Workers


def test_closing_waits_for_what_runs_however_often_it_is_interrupted() -> None:
    workers, running, released = Workers(1), threading.Event(), threading.Event()
    interruptions: list[int] = []
    finished: list[bool] = []

    def work() -> None:
        running.set()
        finished.append(released.wait(30))

    def insist() -> None:
        for number in range(3):
            time.sleep(0.05)
            interruptions.append(number)
            signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.05)
        released.set()

    main = threading.get_ident()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        workers._pool.submit(work)
        assert running.wait(30)
        interrupting = threading.Thread(target=insist)
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            workers.close()
    finally:
        released.set()
        interrupting.join()
        signal.signal(signal.SIGINT, before)
    assert interruptions == [0, 1, 2]
    assert finished == [True]
