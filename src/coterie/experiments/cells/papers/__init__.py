"""The papers' tables and figures as data: `<paper>/<table-or-figure>.toml`; see docs/reproducing.md."""
