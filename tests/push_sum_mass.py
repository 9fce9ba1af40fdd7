"""Push-sum's mass over all peers, which losses and crashes must not change."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from coterie.algorithms.dfedpgp import DFedPGP
from coterie.peer.exchange.journal import ParcelId
from coterie.peer.network.messages import decode_tree, shape_of
from coterie.peer.process import Peer


def total_mass(peers: Mapping[int, Peer]) -> float:
    """Mass of all committed states, of shares that are taken but not used, and of those in limbo."""
    total = 0.0
    for peer in peers.values():
        total += float(peer.state.mass[0]) + float(getattr(peer.state, "mass_in_flight", torch.zeros(1))[0])
        kept = (peer.journal.kept_body(parcel) for parcel in peer.holdings.unused())
        total += sum(_share_mass(peer, body) for body in kept)
        for parcel in peer.doubts.open:
            if not peers[parcel.number].holdings.owns(ParcelId(peer.number, parcel.round, parcel.slot)):
                total += _share_mass(peer, peer.journal.doubted(parcel))
    return total


def _share_mass(peer: Peer, body: bytes) -> float:
    shared = peer.node.body if isinstance(peer.algorithm, DFedPGP) else tuple(peer.state.params)
    like = shape_of({"values": {n: peer.state.params[n] for n in shared}, "mass": {"mu": peer.state.mass}})
    return float(decode_tree(body, like)["mass"]["mu"][0])  # type: ignore[index, arg-type]
