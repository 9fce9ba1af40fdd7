"""Several hosts on one machine: a network namespace for each, joined by a bridge in one more.

Cuts and losses are made with nft where packets arrive, rates with tc. Nothing outside of these namespaces is
touched. Needs root and the commands ip, nft and tc.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field

TOOLS = ("ip", "nft", "tc")
_SUBNET = "10.87.0"
_networks = itertools.count()


def missing() -> str:
    """Why network namespaces cannot be used here; empty: they can."""
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        return f"there is no command {', '.join(absent)} (Debian: apt install iproute2 nftables)"
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "only root may make network namespaces"
    name = f"coterie-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode:
        return f"network namespaces cannot be made: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", name], check=True)
    return ""


@dataclass
class Hosts:
    """So many hosts in one network. Use it in a `with`, which removes them all."""

    count: int
    addresses: list[str] = field(init=False)
    namespaces: dict[int, str] = field(init=False)

    def __post_init__(self) -> None:
        name = f"coterie-{os.getpid()}-{next(_networks)}"
        self.bridge = f"{name}-bridge"
        self.addresses = [f"{_SUBNET}.{number + 1}" for number in range(self.count)]
        self.namespaces = {number: f"{name}-{number}" for number in range(self.count)}

    def __enter__(self) -> Hosts:
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for name in [*self.namespaces.values(), self.bridge]:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)

    def _make(self) -> None:
        _run("ip", "netns", "add", self.bridge)
        self._at(self.bridge, "ip link add bridge type bridge")
        self._at(self.bridge, "ip link set bridge up")
        for number, name in self.namespaces.items():
            _run("ip", "netns", "add", name)
            port = f"port{number}"
            self._at(self.bridge, f"ip link add {port} type veth peer name eth0 netns {name}")
            self._at(self.bridge, f"ip link set {port} master bridge up")
            self._at(name, "ip link set lo up")
            self._at(name, f"ip address add {self.addresses[number]}/24 dev eth0")
            self._at(name, "ip link set eth0 up")

    # --- trouble ---------------------------------------------------------------------------------

    def cut(self, senders: Iterable[int], receivers: Iterable[int]) -> None:
        """Nothing gets from these senders to these receivers; the other way is open."""
        addresses = ", ".join(self.addresses[number] for number in senders)
        for number in receivers:
            self._drop(number, f"ip saddr {{ {addresses} }}")

    def refuse_inbound(self, number: int) -> None:
        """A firewall: nobody can open a connection to this host, which can open some itself."""
        self._drop(number, "tcp flags & (syn | ack) == syn")

    def partition(self, one: Iterable[int], other: Iterable[int]) -> None:
        one, other = list(one), list(other)
        self.cut(one, other)
        self.cut(other, one)

    def lose(self, percent: int) -> None:
        """Each packet is lost with this probability."""
        for number in self.namespaces:
            self._drop(number, f'iifname "eth0" numgen random mod 100 < {percent}')

    def heal(self) -> None:
        for name in self.namespaces.values():
            self._at(name, "nft flush ruleset")

    def slow_down(self, number: int, rate: str) -> None:
        """A host behind a slow link, in both directions."""
        shape = f"root tbf rate {rate} burst 32kb latency 400ms"
        self._at(self.namespaces[number], f"tc qdisc add dev eth0 {shape}")
        self._at(self.bridge, f"tc qdisc add dev port{number} {shape}")

    def _drop(self, number: int, rule: str) -> None:
        name = self.namespaces[number]
        rules = "add table ip trouble; add chain ip trouble arriving { type filter hook input priority 0; }"
        _run("ip", "netns", "exec", name, "nft", f"{rules}; add rule ip trouble arriving {rule} drop")

    def _at(self, namespace: str, command: str) -> None:
        _run("ip", "netns", "exec", namespace, *command.split())


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
