"""All the names that users can type, and where what they stand for lives. Needs no PyTorch.

A name's module is imported when somebody asks for it. So an unknown name fails at once, and the file that
adds a method, a data set, a network or a graph is announced by one line here.
"""

from __future__ import annotations

from typing import Any

from coterie.registry import Registry

algorithms: Registry[Any] = Registry(
    "algorithm",
    {
        "local": "coterie.algorithms.local:Local",
        "gossip-fedavg": "coterie.algorithms.gossip_fedavg:GossipFedAvg",
        "d-psgd": "coterie.algorithms.d_psgd:DPSGD",
        "dfedavgm": "coterie.algorithms.dfedavgm:DFedAvgM",
        "random-gossip": "coterie.algorithms.random_gossip:RandomGossip",
        "oracle": "coterie.algorithms.random_gossip:Oracle",
        "fedavg": "coterie.algorithms.fedavg:FedAvg",
        "fedprox": "coterie.algorithms.fedprox:FedProx",
        "blend-dfl": "coterie.algorithms.blend_dfl:BlendDFL",
        "pfedkd-wcl": "coterie.algorithms.pfedkd_wcl:PFedKDWCL",
        "dfedpgp": "coterie.algorithms.dfedpgp:DFedPGP",
        "osgp": "coterie.algorithms.osgp:OSGP",
        "dfedavgm-p": "coterie.algorithms.dfedavgm:DFedAvgMP",
        "kd-pdfl": "coterie.algorithms.kd_pdfl:KDPDFL",
        "star-fedavg": "coterie.algorithms.star_fedavg:StarFedAvg",
        "fedavg-plus": "coterie.algorithms.fedavg_plus:FedAvgPlus",
        "ditto": "coterie.algorithms.ditto:Ditto",
        "per-fedavg": "coterie.algorithms.per_fedavg:PerFedAvg",
        "pfedme": "coterie.algorithms.pfedme:PFedMe",
        "dfedsam": "coterie.algorithms.dfedsam:DFedSAM",
        "ppdl": "coterie.algorithms.ppdl:PPDL",
        "ppdl-var": "coterie.algorithms.ppdl:PPDLVar",
        "dac": "coterie.algorithms.dac:DAC",
        "dac-var": "coterie.algorithms.dac:DACVar",
        "fedper": "coterie.algorithms.fedper:FedPer",
        "fedrep": "coterie.algorithms.fedrep:FedRep",
        "fedbabu": "coterie.algorithms.fedbabu:FedBABU",
        "dis-pfl": "coterie.algorithms.dis_pfl:DisPFL",
        "pdfl": "coterie.algorithms.pdfl:PDFL",
        "cobo": "coterie.algorithms.cobo:CoBo",
        "dpfl": "coterie.algorithms.dpfl:DPFL",
        "pfedgraph": "coterie.algorithms.pfed_graph:PFedGraph",
        "dbe": "coterie.algorithms.dbe:DBE",
        "fedala": "coterie.algorithms.fedala:FedALA",
        "facade": "coterie.algorithms.facade:FACADE",
        "dfedsalt": "coterie.algorithms.dfedsalt:DFedSalt",
        "kin": "coterie.algorithms.kin:Kin",
    },
    check="coterie.protocol.algorithm:require_algorithm",
)

sources: Registry[Any] = Registry(
    "data set",
    {
        "cifar-10": "coterie.data.sources.cifar:Cifar10",
        "cifar-100": "coterie.data.sources.cifar:Cifar100",
        "digits": "coterie.data.sources.digits:Digits",
        "huggingface": "coterie.data.sources.huggingface:HuggingFace",
        "mnist": "coterie.data.sources.idx:Mnist",
        "fashion-mnist": "coterie.data.sources.idx:FashionMnist",
        "emnist": "coterie.data.sources.idx:Emnist",
        "iot-devices": "coterie.data.sources.iot:IotDevices",
        "synthetic": "coterie.data.sources.synthetic:Synthetic",
        "tiny-imagenet": "coterie.data.sources.tiny_imagenet:TinyImagenet",
    },
)

partitions: Registry[Any] = Registry(
    "partition",
    {
        "rotations": "coterie.data.partitions.clustered:rotations",
        "label-groups": "coterie.data.partitions.clustered:label_groups",
        "label-pairs": "coterie.data.partitions.clustered:LabelPairs",
        "dirichlet": "coterie.data.partitions.dirichlet:Dirichlet",
        "dirichlet-prior": "coterie.data.partitions.dirichlet:DirichletPrior",
        "dirichlet-blocks": "coterie.data.partitions.dirichlet:DirichletBlocks",
        "iid": "coterie.data.partitions.iid:Iid",
        "natural": "coterie.data.partitions.iid:Natural",
        "pathological": "coterie.data.partitions.pathological:Pathological",
        "digit-pairs": "coterie.data.partitions.pathological:DigitPairs",
    },
    check="coterie.data.partitions.partition:require_partition",
)

models: Registry[Any] = Registry(
    "model",
    {
        "blend-cnn": "coterie.models.blend:blend_cnn",
        "mlr": "coterie.models.dense:mlr",
        "mlp": "coterie.models.dense:mlp",
        "iot-mlp": "coterie.models.dense:iot_mlp",
        "emnist-cnn": "coterie.models.emnist:emnist_cnn",
        "emnist-cnn-bn": "coterie.models.emnist:emnist_cnn_bn",
        "ppdl-cnn": "coterie.models.ppdl:ppdl_cnn",
        "lenet": "coterie.models.ppdl:lenet",
        "resnet18-gn": "coterie.models.resnet:resnet18_gn",
    },
)

tasks: Registry[Any] = Registry(
    "task",
    {
        "classification": "coterie.learning.tasks:Classification",
        "binary": "coterie.learning.tasks:Binary",
        "multi-label": "coterie.learning.tasks:MultiLabel",
        "regression": "coterie.learning.tasks:Regression",
        "next-token": "coterie.learning.tasks:NextToken",
    },
    check="coterie.learning.tasks:require_task",
)

guards: Registry[Any] = Registry(
    "guard",
    {
        "near": "coterie.algorithms.robust.guards:Near",
        "clipping": "coterie.algorithms.robust.guards:Clipping",
        "balance": "coterie.algorithms.robust.guards:Balance",
        "ubar": "coterie.algorithms.robust.guards:Ubar",
        "trimmed-mean": "coterie.algorithms.robust.guards:TrimmedMean",
        "geometric-median": "coterie.algorithms.robust.guards:GeometricMedian",
    },
)

attacks: Registry[Any] = Registry(
    "attack",
    {
        "scaling": "coterie.algorithms.robust.attacks:Scaling",
        "sign-flip": "coterie.algorithms.robust.attacks:SignFlip",
        "gaussian": "coterie.algorithms.robust.attacks:Gaussian",
        "ipm": "coterie.algorithms.robust.attacks:InnerProduct",
        "alie": "coterie.algorithms.robust.attacks:ALittleIsEnough",
        "dissensus": "coterie.algorithms.robust.attacks:Dissensus",
        "mimic": "coterie.algorithms.robust.attacks:Mimic",
        "label-flip": "coterie.experiments.setup.lying:flip_labels",
    },
)

pretrained: Registry[Any] = Registry("pretrained model", {"hf": "coterie.models.pretrained:hugging_face"})

adapters: Registry[Any] = Registry("adapter", {"lora": "coterie.models.adapters:LoRA"})

augmentations: Registry[Any] = Registry(
    "augmentation",
    {
        "crop": "coterie.learning.augmentation:crop",
        "flip": "coterie.learning.augmentation:flip",
        "cutout": "coterie.learning.augmentation:cutout",
    },
)

topologies: Registry[Any] = Registry(
    "topology",
    {
        "directed": "coterie.topology.directed:Directed",
        "exponential": "coterie.topology.directed:Exponential",
        "edges": "coterie.topology.making:Edges",
        "ring": "coterie.topology.lattices:Ring",
        "full": "coterie.topology.lattices:Full",
        "star": "coterie.topology.lattices:Star",
        "grid": "coterie.topology.lattices:Grid",
        "torus": "coterie.topology.lattices:Torus",
        "random-regular": "coterie.topology.random_graphs:RandomRegular",
        "erdos-renyi": "coterie.topology.random_graphs:ErdosRenyi",
        "small-world": "coterie.topology.random_graphs:SmallWorld",
        "fading": "coterie.topology.random_graphs:Fading",
    },
    check="coterie.topology.graphs:require_graph_kind",
)
