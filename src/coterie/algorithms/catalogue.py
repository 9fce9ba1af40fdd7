"""All algorithms by the names that users type. A new one is a file and a line here."""

from __future__ import annotations

from typing import Any

from coterie.algorithms.d_psgd import DPSGD
from coterie.algorithms.dfedavgm import DFedAvgM
from coterie.algorithms.fedavg import FedAvg
from coterie.algorithms.fedprox import FedProx
from coterie.algorithms.gossip_fedavg import GossipFedAvg
from coterie.algorithms.local import Local
from coterie.algorithms.oracle import Oracle
from coterie.algorithms.random_gossip import RandomGossip
from coterie.protocol import Algorithm
from coterie.registry import Registry

algorithms: Registry[Algorithm[Any]] = Registry("algorithm")

algorithms.register("local")(Local)
algorithms.register("gossip-fedavg")(GossipFedAvg)
algorithms.register("d-psgd")(DPSGD)
algorithms.register("dfedavgm")(DFedAvgM)
algorithms.register("random-gossip")(RandomGossip)
algorithms.register("oracle")(Oracle)
algorithms.register("fedavg")(FedAvg)
algorithms.register("fedprox")(FedProx)
