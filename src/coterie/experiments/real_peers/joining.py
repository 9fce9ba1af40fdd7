"""From a peer's folder to a process that takes part: `peer.toml`, identity, roster, experiment and data."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

import torch

from coterie.errors import ConfigError, CoterieError
from coterie.experiments.real_peers.folder import experiment_of
from coterie.experiments.real_peers.notices import Notices, is_invited, say_farewell, wants_to_leave
from coterie.experiments.real_peers.own_rows import OwnRows, sizes_of
from coterie.experiments.real_peers.peer_records import RECORDS_FILE, Records
from coterie.experiments.real_peers.terms import AgreedTerms
from coterie.experiments.setup.config import require_pace
from coterie.experiments.setup.digest import experiment_digest, experiment_parts
from coterie.experiments.setup.groups import bound_of, require_groups
from coterie.experiments.setup.prepare import Objects, Prepared, prepare
from coterie.experiments.setup.schema import Experiment
from coterie.learning import Executor, ExecutorName, LearningNode, Workers
from coterie.peer.exchange.journal import Journal
from coterie.peer.exchange.membership import Acquaintance
from coterie.peer.exchange.metrics import Metrics
from coterie.peer.network.calling import TlsTransport
from coterie.peer.network.connection import Limits
from coterie.peer.process import Pace, Peer
from coterie.peer.trust.cards import Card, card_of
from coterie.peer.trust.contexts import Contexts
from coterie.peer.trust.identity import Identity
from coterie.peer.trust.names import split_address
from coterie.peer.trust.roster import Roster
from coterie.peer.trust.settings import SHARE, PeerSettings, load_settings
from coterie.peer.turn import RoundReport
from coterie.peer.watch.audit import AUDIT_FILE, Audit, AuditLog
from coterie.peer.watch.monitoring import MONITOR_FILE, Monitor, read_token
from coterie.peer.watch.pages import pages_of
from coterie.peer.watch.refusals import Refusals
from coterie.peer.watch.witness import Witness

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
    audit: Audit
    witness: Witness

    async def take_part(self) -> None:
        """Listen, learn, and stop listening."""
        await self.peer.load()
        with self._audited():
            await self.transport.start(self.witness.before(self.peer))
            try:
                if self.monitor is not None:
                    await self.monitor.start()
                await self.peer.run()
                if self.peer.left:
                    say_farewell(self.peer, self.folder)
            finally:
                if self.monitor is not None:
                    await self.monitor.stop()
                await self.transport.stop()

    @contextlib.contextmanager
    def _audited(self) -> Iterator[None]:
        """What happens meanwhile is written down."""
        logged = AuditLog(self.audit)
        self.audit.open()
        self.audit.write("started", round=self.peer.journal.round, digest=self.peer.digest)
        _log.addHandler(logged)
        try:
            yield
            self.audit.write("finished", round=self.peer.journal.round)
        except BaseException as error:
            self.audit.write(
                "ended", round=self.peer.journal.round, reason=str(error) or type(error).__name__
            )
            raise
        finally:
            _log.removeHandler(logged)
            self.audit.close()


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
            if self.roster.refresh() or self._known != (self.roster.members, self.roster.left):
                self._take_over()
                _log.info("the roster has changed: %s", ", ".join(m.name for m in self._members.values()))
        except CoterieError as error:  # a file that is being edited: what was read before holds on
            _log.warning("%s", error)
        return self._members

    def _take_over(self) -> None:
        self._known = self.roster.members, self.roster.left
        left = {name: entry.round for name, entry in self.roster.left.items()}
        self._members = {
            number: Acquaintance(
                card.name, number, card.address, left.get(card.name), card.name in self.roster.invited
            )
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
    rows: OwnRows | None  # None: its data are a share of the experiment's

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @cached_property
    def digest(self) -> str:
        return experiment_digest(self.experiment)

    def own_card(self) -> Card:
        return card_of(Identity.load(self.folder), self.settings)

    def name_of(self, number: int) -> str:
        """Of a member, or of this peer itself."""
        if number == self.settings.number:
            return self.settings.name
        card = self.roster.by_number().get(number)
        return str(number) if card is None else card.name


def join(folder: Path, observer: Callable[[RoundReport], None] | None = None) -> Joining:
    """Everything that can be wrong with a peer's files is found here, before anything is sent."""
    plan = _plan(folder)
    metrics, records = Metrics(), Records(folder / RECORDS_FILE)

    def observed(report: RoundReport) -> None:
        records.append(report)
        if observer is not None:
            observer(report)

    transport, audit = _transport(plan, metrics), Audit(folder / AUDIT_FILE)
    witness = Witness(transport, audit, plan.name_of)
    peer = _peer(plan, transport, witness, metrics, observed)
    records.keep_until(peer.journal.round)
    _tell_of_new_data(records, peer)
    monitor = None
    if plan.settings.metrics:
        pages = pages_of(peer, lambda: Identity.load(folder).certificate.not_valid_after_utc.timestamp())
        token = partial(read_token, Path(plan.settings.metrics_token))
        if plan.settings.metrics_token:
            token()  # a mistake is found at once
        shown = token if plan.settings.metrics_token else None
        monitor = Monitor(plan.settings.metrics, pages, plan.state / MONITOR_FILE, shown)
    return Joining(
        folder, plan.settings, plan.experiment, plan.prepared, peer, transport, monitor, audit, witness
    )


def _tell_of_new_data(records: Records, peer: Peer) -> None:
    """What has changed while this peer did not run."""
    now, before = peer.samples(), next((line.get("samples") for line in reversed(records.read())), None)
    if before and any(before.get(part) != count for part, count in now.items()):
        said = ", ".join(f"{part} {before.get(part)}, now {count}" for part, count in now.items())
        _log.warning("the data have changed since round %d: samples %s", peer.journal.round, said)


def _plan(folder: Path) -> _Plan:
    settings = load_settings(folder)
    identity, roster = Identity.load(folder), Roster.load(folder)
    if identity.name != settings.name:
        raise ConfigError(
            f"peer.toml says name = {settings.name!r}, but the certificate is that of {identity.name!r}"
        )
    experiment = experiment_of(settings)
    rows = None if settings.data == SHARE else OwnRows(experiment, settings)
    prepared = prepare_for(experiment, rows)
    _check(experiment, prepared, settings, roster)
    return _Plan(folder, settings, roster, experiment, prepared, rows)


def _transport(plan: _Plan, metrics: Metrics) -> TlsTransport:
    settings, contexts = plan.settings, Contexts(plan.folder, plan.roster)
    host, port = split_address(settings.listen) if settings.listen else ("", -1)
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
        relay=settings.address,
    )


def _peer(
    plan: _Plan,
    transport: TlsTransport,
    witness: Witness,
    metrics: Metrics,
    observer: Callable[[RoundReport], None],
) -> Peer:
    settings, experiment, prepared = plan.settings, plan.experiment, plan.prepared
    agreed = AgreedTerms(plan.state, settings, experiment, plan.digest)
    experiment = agreed.in_force(experiment)
    node = node_of(experiment, prepared, settings.number)
    return Peer(
        name=settings.name,
        address=settings.address,
        node=node,
        algorithm=prepared.algorithm,
        topology=prepared.topology,
        rounds=agreed.now.rounds,
        digest=plan.digest,
        parts=experiment_parts(experiment),
        roster=_LiveRoster(plan.roster, settings.number),
        transport=witness,
        journal=Journal(plan.state, earlier=settings.checkpoints, afresh=prepared.algorithm.facts.per_sample),
        pace=replace(_pace(settings), deadline=agreed.now.deadline),
        in_step=settings.mode == "synchronous",
        alone=settings.alone,
        quorum=settings.quorum,
        invited=is_invited(plan.folder),
        leaves=partial(wants_to_leave, plan.state),
        bulletin=Notices(plan.folder, plan.roster, plan.own_card, plan.digest),
        terms=agreed.wanted,
        adopted=agreed.adopt,
        staleness=settings.staleness,
        withheld=node.withheld(experiment.batchnorm == "local"),
        sign=lambda message: Identity.load(plan.folder).sign(message),
        verify=plan.roster.verify,
        lending=transport,
        evaluates=agreed.evaluates,
        keep_best=experiment.stopping.keep == "best",
        observer=observer,
        renew=None if plan.rows is None else partial(plan.rows.renew, node),
        samples=lambda: sizes_of(node.federation),
        metrics=metrics,
    )


def prepare_for(experiment: Experiment, rows: OwnRows | None) -> Prepared:
    """As for a simulation, with the data of this one node only if it has some of its own."""
    if experiment.models:
        raise ConfigError("real peers have one architecture so far: leave out `models` of the experiment")
    return prepare(experiment, None if rows is None else Objects(dealt=rows.federation()))


def executor_of(experiment: Experiment) -> ExecutorName:
    """A single peer has nothing to stack."""
    asked = experiment.execution.executor
    return "looped" if asked == "auto" else asked


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
        bound=bound_of(experiment),
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
    if missing:  # a member that was removed, or has not been invited yet
        free = ", ".join(map(str, sorted(missing)))
        _log.warning("the roster has no cards of number %s: these places are free", free)
    require_groups(experiment, prepared.algorithm, prepared.topology)
    if experiment.stopping.patience is not None:
        raise ConfigError(
            "stopping.patience needs the mean validation score of all peers, which no real peer knows: leave "
            "it out; stopping.keep = 'best' lets each peer keep its own best model"
        )
    if settings.mode == "free":
        require_pace(experiment.algorithm, prepared.algorithm, "set mode = 'synchronous' in peer.toml")


def _pace(settings: PeerSettings) -> Pace:
    return Pace(
        deadline=settings.deadline,
        join=settings.join_seconds,
        heartbeat=settings.heartbeat,
        suspect_after=settings.suspect_after,
        misses=settings.misses,
    )
