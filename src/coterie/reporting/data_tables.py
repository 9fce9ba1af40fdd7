"""Which peer has which labels, as a table."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from coterie.data import Federation

MOST_ROWS = 40
SHORTENED_TO = 20
MOST_BARS = 50  # classes; of more, only the most frequent labels are named
_BARS = " ▁▂▃▄▅▆▇█"


def label_table(federation: Federation, title: str) -> Table:
    """A row for each peer: sizes, number of classes, and a bar for each class."""
    counts = federation.label_histogram("train").tolist()
    peers = len(counts)
    rows = peers if peers <= MOST_ROWS else SHORTENED_TO
    many = federation.groups.count > MOST_BARS
    table = Table(title=title, box=None, header_style="bold", padding=(0, 1), pad_edge=False)
    table.add_column("peer", justify="left" if federation.names else "right")
    if federation.clusters is not None:
        table.add_column("cluster", justify="right")
    sizes = {"train": federation.train, "valid": federation.validation, "test": federation.test}
    shown = {name: split.sizes.tolist() for name, split in sizes.items() if split.total}
    for name in (*shown, "classes"):
        table.add_column(name, justify="right")
    first, last = federation.group_names[0], federation.group_names[-1]
    table.add_column("most frequent labels" if many else f"labels {first} .. {last}", overflow="ellipsis")
    for peer in range(rows):
        cluster = [] if federation.clusters is None else [str(int(federation.clusters[peer]))]
        known = sum(count > 0 for count in counts[peer])
        row = counts[peer]
        labels = _most_frequent(row, federation.group_names) if many else bars(row)
        cells = [str(size[peer]) for size in shown.values()]
        table.add_row(Text(federation.name_of(peer)), *cluster, *cells, str(known), Text(labels))
    if rows < peers:
        table.caption = f"the first {rows} of {peers} peers; the plot shows the others too"
    return table


def bars(counts: list[int]) -> str:
    """One bar per class, its height relative to the peer's most frequent class; blank: none at all."""
    top = max(counts, default=0) or 1
    return "".join(_BARS[0 if count == 0 else max(1, round(8 * count / top))] for count in counts)


def _most_frequent(counts: list[int], names: tuple[str, ...]) -> str:
    ranked = sorted(range(len(counts)), key=lambda label: -counts[label])
    return ", ".join(f"{names[label]}:{counts[label]}" for label in ranked[:5] if counts[label])
