"""A limit on the time that a learner's function may take: its loop may have no end."""

import signal
import threading
from contextlib import contextmanager

SECONDS = 10


class StillRunning(BaseException):
    """Raised in a function that takes too long; an `except Exception` of its own lets it pass."""


@contextmanager
def time_limit():
    """Raise StillRunning in the block after SECONDS, if signals can do that here.

    They cannot on Windows and outside the main thread; there is no limit then. An alarm that was
    set before waits until the block ends.

    >>> with time_limit():
    ...     print("in time")
    in time
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not (in_main_thread and hasattr(signal, "setitimer")):
        yield
        return
    earlier_handler = signal.signal(signal.SIGALRM, _stop)
    earlier_timer = signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier_handler)
        signal.setitimer(signal.ITIMER_REAL, *earlier_timer)


def _stop(number, frame):
    raise StillRunning(f"was still running after {SECONDS:g} s: does its loop ever end?")
