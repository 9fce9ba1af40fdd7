"""All algorithms by the names that users type. A new one is a file and a line here."""

from __future__ import annotations

from typing import Any

from coterie.algorithms.blend_dfl import BlendDFL
from coterie.algorithms.d_psgd import DPSGD
from coterie.algorithms.dac import DAC
from coterie.algorithms.dac_var import DACVar
from coterie.algorithms.dfedavgm import DFedAvgM
from coterie.algorithms.dfedavgm_p import DFedAvgMP
from coterie.algorithms.dfedpgp import DFedPGP
from coterie.algorithms.dfedsam import DFedSAM
from coterie.algorithms.dis_pfl import DisPFL
from coterie.algorithms.ditto import Ditto
from coterie.algorithms.fedavg import FedAvg
from coterie.algorithms.fedavg_plus import FedAvgPlus
from coterie.algorithms.fedbabu import FedBABU
from coterie.algorithms.fedper import FedPer
from coterie.algorithms.fedprox import FedProx
from coterie.algorithms.fedrep import FedRep
from coterie.algorithms.gossip_fedavg import GossipFedAvg
from coterie.algorithms.kd_pdfl import KDPDFL
from coterie.algorithms.local import Local
from coterie.algorithms.oracle import Oracle
from coterie.algorithms.osgp import OSGP
from coterie.algorithms.per_fedavg import PerFedAvg
from coterie.algorithms.pfedkd_wcl import PFedKDWCL
from coterie.algorithms.pfedme import PFedMe
from coterie.algorithms.ppdl import PPDL
from coterie.algorithms.ppdl_var import PPDLVar
from coterie.algorithms.random_gossip import RandomGossip
from coterie.algorithms.star_fedavg import StarFedAvg
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
algorithms.register("blend-dfl")(BlendDFL)
algorithms.register("pfedkd-wcl")(PFedKDWCL)
algorithms.register("dfedpgp")(DFedPGP)
algorithms.register("osgp")(OSGP)
algorithms.register("dfedavgm-p")(DFedAvgMP)
algorithms.register("kd-pdfl")(KDPDFL)
algorithms.register("star-fedavg")(StarFedAvg)
algorithms.register("fedavg-plus")(FedAvgPlus)
algorithms.register("ditto")(Ditto)
algorithms.register("per-fedavg")(PerFedAvg)
algorithms.register("pfedme")(PFedMe)
algorithms.register("dfedsam")(DFedSAM)
algorithms.register("ppdl")(PPDL)
algorithms.register("ppdl-var")(PPDLVar)
algorithms.register("dac")(DAC)
algorithms.register("dac-var")(DACVar)
algorithms.register("fedper")(FedPer)
algorithms.register("fedrep")(FedRep)
algorithms.register("fedbabu")(FedBABU)
algorithms.register("dis-pfl")(DisPFL)
