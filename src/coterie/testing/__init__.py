"""For whoever writes an algorithm: real peers' own code, on a network and a clock in memory.

Nothing here takes real time, and every delay, loss and crash follows from a seed.
"""

from coterie.testing.network import Faults, MemoryNetwork, MemoryTransport, VirtualLoop, run_virtually

__all__ = ["Faults", "MemoryNetwork", "MemoryTransport", "VirtualLoop", "run_virtually"]
