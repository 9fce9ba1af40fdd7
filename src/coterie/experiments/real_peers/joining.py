"""From a peer's folder to a process that takes part: `peer.toml`, identity, roster, experiment and data."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from coterie.data import from_peers
from coterie.data.own.code import call_for_data
from coterie.data.own.files import columns_in
from coterie.data.own.one_peer import OwnData, checked, load_own
from coterie.data.targets import Targets, targets_of
from coterie.errors import ConfigError, CoterieError
from coterie.experiments.real_peers.peer_records import RECORDS_FILE, Records
from coterie.experiments.setup.config import resolve, with_absolute_paths
from coterie.experiments.setup.digest import experiment_digest
from coterie.experiments.setup.prepare import Objects, Prepared, prepare
from coterie.experiments.setup.schema import Experiment
from coterie.learning import Executor, ExecutorName, LearningNode, Workers
from coterie.peer.exchange.journal import Journal
from coterie.peer.exchange.membership import Acquaintance
from coterie.peer.exchange.metrics import Metrics
from coterie.peer.network.calling import TlsTransport
from coterie.peer.network.connection import Limits
from coterie.peer.process import Pace, Peer, RoundReport
from coterie.peer.trust.contexts import Contexts
from coterie.peer.trust.identity import Identity
from coterie.peer.trust.names import split_address
from coterie.peer.trust.roster import Roster
from coterie.peer.trust.settings import SHARE, PeerSettings, load_settings
from coterie.peer.watch.monitoring import MONITOR_FILE, Monitor
from coterie.peer.watch.pages import pages_of
from coterie.peer.watch.refusals import Refusals
from coterie.toml_tables import load_toml
from coterie.user_code import data_file_parts, is_file_reference, split_reference

_log = logging.getLogger("coterie.peer")
_MEBIBYTE = 1 << 20
_LOOK_EVERY = 0.25  # seconds between looks at the roster's file


@dataclass
class Joining:
    """A peer that is ready to take part."""

    folder: Path
    settings: PeerSettings
    experiment: Experiment
    prepared: Prepared
    peer: Peer
    transport: TlsTransport
    monitor: Monitor | None  # None: not wanted

    async def take_part(self) -> None:
        """Listen, learn, and stop listening."""
        await self.peer.load()
        await self.transport.start(self.peer)
        try:
            if self.monitor is not None:
                await self.monitor.start()
            await self.peer.run()
        finally:
            if self.monitor is not None:
                await self.monitor.stop()
            await self.transport.stop()


@dataclass
class _LiveRoster:
    """The roster as the peer sees it; the file is read again when it changes."""

    roster: Roster
    number: int
    _members: Mapping[int, Acquaintance] = field(default_factory=dict)
    _looked: float = 0.0

    def __post_init__(self) -> None:
        self._take_over()

    def __call__(self) -> Mapping[int, Acquaintance]:
        if time.monotonic() - self._looked < _LOOK_EVERY:  # it is asked for many times in every exchange
            return self._members
        self._looked = time.monotonic()
        try:
            if self.roster.refresh():
                self._take_over()
                _log.info("the roster has changed: %s", ", ".join(m.name for m in self._members.values()))
        except CoterieError as error:  # a file that is being edited: what was read before holds on
            _log.warning("%s", error)
        return self._members

    def _take_over(self) -> None:
        self._members = {
            number: Acquaintance(card.name, number, card.address)
            for number, card in self.roster.by_number().items()
            if number != self.number
        }


@dataclass(frozen=True)
class _Plan:
    """What a peer's files say, checked."""

    folder: Path
    settings: PeerSettings
    roster: Roster
    experiment: Experiment
    prepared: Prepared

    @property
    def state(self) -> Path:
        return self.folder / "state"


def join(folder: Path, observer: Callable[[RoundReport], None] | None = None) -> Joining:
    """Everything that can be wrong with a peer's files is found here, before anything is sent."""
    plan = _plan(folder)
    metrics, records = Metrics(), Records(folder / RECORDS_FILE)

    def observed(report: RoundReport) -> None:
        records.append(report)
        if observer is not None:
            observer(report)

    transport = _transport(plan, metrics)
    peer = _peer(plan, transport, metrics, observed)
    records.keep_until(peer.journal.round)
    monitor = None
    if plan.settings.metrics:
        monitor = Monitor(plan.settings.metrics, pages_of(peer), plan.state / MONITOR_FILE)
    return Joining(folder, plan.settings, plan.experiment, plan.prepared, peer, transport, monitor)


def _plan(folder: Path) -> _Plan:
    settings = load_settings(folder)
    identity, roster = Identity.load(folder), Roster.load(folder)
    if identity.name != settings.name:
        raise ConfigError(
            f"peer.toml says name = {settings.name!r}, but the certificate is that of {identity.name!r}"
        )
    experiment = experiment_of(settings)
    prepared = prepare_for(experiment, settings)
    _check(experiment, prepared, settings, roster)
    return _Plan(folder, settings, roster, experiment, prepared)


def _transport(plan: _Plan, metrics: Metrics) -> TlsTransport:
    settings, contexts = plan.settings, Contexts(plan.folder, plan.roster)
    host, port = split_address(settings.listen)
    return TlsTransport(
        settings.name,
        host,
        port,
        server_context=contexts.server,
        client_context=contexts.client,
        identify=plan.roster.identify,
        spool=plan.state / "spool",
        limits=Limits(in_memory=settings.memory * _MEBIBYTE // 8),
        refused=Refusals(metrics, lambda: plan.roster.members),
    )


def _peer(
    plan: _Plan, transport: TlsTransport, metrics: Metrics, observer: Callable[[RoundReport], None]
) -> Peer:
    settings, experiment, prepared = plan.settings, plan.experiment, plan.prepared
    node = node_of(experiment, prepared, settings.number)
    return Peer(
        name=settings.name,
        address=settings.address,
        node=node,
        algorithm=prepared.algorithm,
        topology=prepared.topology,
        rounds=experiment.rounds,
        digest=experiment_digest(experiment),
        roster=_LiveRoster(plan.roster, settings.number),
        transport=transport,
        journal=Journal(plan.state, earlier=settings.checkpoints),
        pace=_pace(settings),
        in_step=settings.mode == "synchronous",
        alone=settings.alone,
        quorum=settings.quorum,
        staleness=settings.staleness,
        withheld=node.withheld(experiment.batchnorm == "local"),
        sign=lambda message: Identity.load(plan.folder).sign(message),
        verify=plan.roster.verify,
        evaluates=experiment.evaluates,
        keep_best=experiment.stopping.keep == "best",
        observer=observer,
        metrics=metrics,
    )


def experiment_of(settings: PeerSettings) -> Experiment:
    """The experiment that a peer's settings name."""
    path = Path(settings.experiment)
    return resolve(with_absolute_paths(load_toml(path), path.parent))


def prepare_for(experiment: Experiment, settings: PeerSettings) -> Prepared:
    """As for a simulation, with the data of this one node only."""
    if experiment.models:
        raise ConfigError("real peers have one architecture so far: leave out `models` of the experiment")
    if settings.data == SHARE:
        return prepare(experiment)
    targets = targets_of(experiment.task)
    if experiment.classes is None and targets in ("classes", "tokens") and experiment.task != "binary":
        raise ConfigError(
            "peers with data of their own must agree on the number of classes: set classes = ... in the "
            "experiment's file"
        )
    own = from_peers(
        [load_peer_data(settings.data, targets)],
        validation=experiment.splitting.validation,
        seed=experiment.seed,
        n_classes=2 if experiment.task == "binary" else experiment.classes,
        task=experiment.task,
    )
    place = min(settings.number, experiment.peers - 1)  # a hub's data only show what samples look like
    return prepare(experiment, Objects(dealt=own.spread(place, experiment.peers)))


def executor_of(experiment: Experiment) -> ExecutorName:
    """A single peer has nothing to stack."""
    asked = experiment.execution.executor
    return "looped" if asked == "auto" else asked


def load_peer_data(reference: str, targets: Targets = "classes") -> OwnData:
    """What `data = "..."` in a `peer.toml` names: a file .npz, .csv or .parquet, or file.py:function."""
    if not is_file_reference(reference):
        return load_own(data_file_parts(reference)[0], targets, columns_in(reference))
    file, name = split_reference(reference)
    return checked(call_for_data(reference, {}), f"{name} in {file}", targets)


def node_of(experiment: Experiment, prepared: Prepared, number: int) -> LearningNode:
    ids = torch.tensor([number])
    return LearningNode(
        ids=ids,
        federation=prepared.federation.of_nodes(ids, prepared.topology.hub),
        module=prepared.module,
        executor=Executor(
            executor_of(experiment),
            prepared.module,
            Workers(experiment.execution.workers or 1),
            experiment.execution.precision,
        ),
        training=experiment.training,
        seed=experiment.seed,
        rounds=experiment.rounds,
        hub=prepared.topology.hub,
        clusters=prepared.federation.clusters,
        own_module=prepared.own_module,
        shared=experiment.shared,
        task=prepared.task,
    )


def _check(experiment: Experiment, prepared: Prepared, settings: PeerSettings, roster: Roster) -> None:
    nodes, hub = prepared.topology.nodes, prepared.topology.hub
    last = f"0 to {nodes - 1}" + (f", the hub is number {hub}" if hub is not None else "")
    if settings.number >= nodes:
        raise ConfigError(f"number {settings.number} is not in this experiment: its nodes are {last}")
    strangers = [card.name for n, card in roster.by_number().items() if n >= nodes]
    if strangers:
        raise ConfigError(
            f"{', '.join(strangers)} of the roster have numbers beyond the experiment's: {last}"
        )
    missing = set(range(nodes)) - set(roster.by_number()) - {settings.number}
    if missing and not roster.members:
        raise ConfigError("the roster is empty; add the cards of the others with: coterie peer trust CARD")
    if missing:  # a member that was removed, or has not joined yet, is absent
        _log.warning("the roster lacks the cards of number %s", ", ".join(map(str, sorted(missing))))
    if experiment.stopping.patience is not None:
        raise ConfigError(
            "stopping.patience needs the mean validation score of all peers, which no real peer knows: leave "
            "it out; stopping.keep = 'best' lets each peer keep its own best model"
        )
    if settings.mode == "free" and not prepared.algorithm.facts.free_running:
        raise ConfigError(
            f"algorithm {experiment.algorithm!r} needs rounds in step; set mode = 'synchronous' in peer.toml"
        )
    if settings.mode == "free" and prepared.algorithm.needs_step():
        raise ConfigError(
            "a secure sum needs its members in the same round; set mode = 'synchronous' in peer.toml, or "
            "settings.sealed = false in the experiment"
        )


def _pace(settings: PeerSettings) -> Pace:
    return Pace(
        deadline=settings.deadline,
        join=settings.join_seconds,
        heartbeat=settings.heartbeat,
        suspect_after=settings.suspect_after,
    )
