"""Every error that Coterie raises on purpose.

    CoterieError
    ├── ConfigError          what the user asked for is unknown, malformed or contradictory
    ├── DataError            a data file is missing or corrupt, or the data cannot be split as asked
    ├── TopologyError        the requested graph does not exist
    ├── ContractError        an algorithm breaks the rules of `coterie.protocol`
    │   └── SealedError      a sealed inbox was asked for something other than its sum or count
    ├── SecureSumError       a secure sum lacks members, or its messages do not fit together
    ├── DivergedError        a loss became NaN or infinite
    ├── RunFailedError       a run stopped after it had started; what it wrote is intact
    ├── PeerError            a peer cannot start, join or go on
    │   ├── RefusedError     another peer's message, or ours at another peer, was not taken, with the reason
    │   └── UnreachableError another peer gave no answer; whether it took the message is unknown
    └── RunFolderError       a run folder exists, is damaged, in use, or cannot be written
        ├── DamagedRunError  its checkpoint or its records are not what was written: it cannot go on
        ├── RunInUseError    another process writes to it
        └── OtherRunError    it holds the run of another experiment

Each message says what was wrong, where, and what to do about it.
"""

from collections.abc import Iterable


class CoterieError(Exception):
    """Base of all errors below; the command line prints its message and no traceback."""


class ConfigError(CoterieError):
    """What the user asked for is unknown, malformed or contradictory."""


class DataError(CoterieError):
    """A data file is missing or corrupt, or the data cannot be split as asked."""


class TopologyError(CoterieError):
    """The requested graph does not exist."""


class ContractError(CoterieError):
    """An algorithm breaks the rules of the protocol."""


class SealedError(ContractError):
    """A sealed inbox was asked for something other than its sum or count."""


class SecureSumError(CoterieError):
    """A secure sum lacks members, or its messages do not fit together; nothing was revealed.

    accused: numbers of the members whose messages are at fault, where that is known.
    """

    def __init__(self, text: str, accused: Iterable[int] = ()) -> None:
        super().__init__(text)
        self.accused = frozenset(accused)


class DivergedError(CoterieError):
    """A loss became NaN or infinite; the records up to that round are intact."""


class RunFailedError(CoterieError):
    """A run stopped after it had started; its records are intact."""


class PeerError(CoterieError):
    """A peer cannot start, join or go on."""


class RefusedError(PeerError):
    """A message was not taken; `reason` is one of `coterie.peer.network.messages.Reason`."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(f"{reason}: {text}")
        self.reason, self.text = reason, text


class UnreachableError(PeerError):
    """A peer gave no answer in time; whether it took the message is unknown, unless nothing was sent."""

    def __init__(self, text: str, *, sent: bool = True) -> None:
        super().__init__(text)
        self.sent = sent


class RunFolderError(CoterieError):
    """A run folder exists, is damaged, in use, or cannot be written."""


class DamagedRunError(RunFolderError):
    """A run's checkpoint or records are not what was written; it cannot go on, and nothing was changed."""


class RunInUseError(RunFolderError):
    """Another process writes to this run's folder; nothing was changed."""


class OtherRunError(RunFolderError):
    """A folder holds the run of another experiment than the one asked for; nothing was changed."""


def printable(text: str, most: int = 300) -> str:
    """What another wrote, fit for a log or a terminal: in one line, without control characters, and cut."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:most])
    return shown if len(shown) <= most and len(text) <= most else shown[: most - 3] + "..."
