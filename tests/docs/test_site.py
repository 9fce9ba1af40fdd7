"""The documentation builds as a site: every page is in it, links lead somewhere, nothing comes from afar."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from site_building import build

ROOT = Path(__file__).parents[2]
MAKING = ROOT / "docs" / "making"


def making(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """One of the files that make the site."""
    monkeypatch.syspath_prepend(MAKING)
    spec = importlib.util.spec_from_file_location(name, MAKING / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_and_every_example_is_in_the_site(site: Path) -> None:
    pages = {path.stem for path in site.glob("*.html")}
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} | {
        "CONTRIBUTING",
        "CHANGELOG",
        "api",
    } <= pages
    examples = {path.stem for path in (ROOT / "examples").glob("*.*") if path.suffix in (".py", ".ipynb")}
    assert examples == {path.stem for path in (site / "examples").glob("*.html")} - {"index"}


def test_an_unlisted_page_and_dead_links_are_refused(tmp_path: Path) -> None:
    """With the rules of mkdocs.yml; a build of two pages shows them sooner."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Home\n\n[gone](gone.md), [no such part](#part)\n")
    (tmp_path / "docs" / "stray.md").write_text("# Stray\n")
    without = "hooks: []\nextra_css: []\nextra_javascript: []\n"
    config = f"INHERIT: {ROOT / 'mkdocs.yml'}\ndocs_dir: docs\n{without}nav: [index.md]\n"
    (tmp_path / "mkdocs.yml").write_text(config)
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode == 1
    assert "stray.md" in done.stderr
    assert "'gone.md'" in done.stderr
    assert "'#part'" in done.stderr


@pytest.mark.parametrize(
    ("text", "loaded"),
    [
        ('<img alt="x" src="https://example.org/a.png">', "https://example.org/a.png"),
        ("<script src=//example.org/a.js></script>", "//example.org/a.js"),
        ('<link rel="preconnect" href="https://fonts.example.org">', "https://fonts.example.org"),
        ("@font-face { src: url(http://example.org/a.woff) }", "http://example.org/a.woff"),
        ('<a href="https://example.org">a link is not loaded</a>', None),
        ('<img src="who.png"><script src="assets/a.js"></script>', None),
        ('<svg xmlns="http://www.w3.org/2000/svg"></svg>', None),
    ],
)
def test_what_another_host_would_be_asked_for_is_found(
    text: str, loaded: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "page.html").write_text(text)
    found = making("hooks", monkeypatch).asked_elsewhere(tmp_path / "page.html")
    assert found == ([] if loaded is None else [f"{tmp_path / 'page.html'}: {loaded}"])


def test_links_are_those_of_the_site(monkeypatch: pytest.MonkeyPatch) -> None:
    links = making("hooks", monkeypatch).links_of_site
    assert links("[a](../CONTRIBUTING.md#style)", outside=False) == "[a](CONTRIBUTING.md#style)"
    assert links("[a](../examples/adapters.py)", outside=False) == "[a](examples/adapters.md)"
    assert links("[a](docs/kin.md)", outside=True) == "[a](kin.md)"


def of_the_package(names: Any) -> list[str]:
    """Without those that other tests of this process registered."""
    return [name for name in names if names[name].__module__.startswith("coterie.")]


def test_every_algorithm_has_a_page_with_its_settings_equations_and_a_round(site: Path) -> None:
    from coterie.catalogue import algorithms

    for name in of_the_package(algorithms):
        page = (site / "algorithms" / f"{name}.html").read_text(encoding="utf-8")
        assert f"Round 3 of {name} among 8 peers" in page
        assert "<math>" in page
        assert algorithms[name].facts.communication in page
        assert all(f"<code>{preset}</code>" in page for preset in algorithms[name].presets)


def test_settings_and_words_are_set_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every line of the table has four cells, and no sign of Markdown is left over."""
    from coterie.catalogue import algorithms

    pages = making("algorithm_pages", monkeypatch)
    assert pages._plain("counts memory^age of it") == "counts memory<sup>age</sup> of it"
    for name in of_the_package(algorithms):
        rows = [line for part in pages._settings(algorithms[name]) for line in part.splitlines()]
        assert all(len(re.findall(r"(?<!\\)\|", row)) == 5 for row in rows if row.startswith("|")), name


def test_the_picture_of_a_round_shows_who_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = making("algorithm_pages", monkeypatch).picture
    assert picture("local").count("<line") == 0
    assert picture("d-psgd").count("<line") == 8 * 7  # each to each
    assert ">hub<" in picture("fedavg")


def test_equations_are_set_as_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    formula = making("equations", monkeypatch).formula_of
    assert "<msub><mi>\u03b8</mi><mrow><mi>i</mi></mrow></msub>" in formula("theta_i <- y_i")
    assert "<mo>\u2190</mo>" in formula("theta_i <- y_i")
    assert "<msub><mi>W</mi><mrow><mi>i</mi><mi>j</mi></mrow></msub>" in formula("sum_j W_ij y_j")
    assert formula("S_t <- a fraction of the clients").endswith("</math> a fraction of the clients")
    assert "<msup><mi>\u03b8</mi><mo>\u2212</mo></msup>" in formula("theta- = theta_i")
    assert formula("send their sum, sealed") == "send their sum, sealed"
    assert "<mo>\u2211</mo>" in formula("p_j = n_j / sum n")


def test_names_are_set_within_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "`" not in making("equations", monkeypatch).block("send at most `shows` times")
    assert making("equations", monkeypatch).in_words("counts memory^age.") == "counts memory<sup>age</sup>."
    said = making("equations", monkeypatch).in_words("s_i, the deviation of l_ij. See use_it and `n_j`.")
    assert said == "<i>s<sub>i</sub></i>, the deviation of <i>l<sub>ij</sub></i>. See use_it and `n_j`."


def test_pages_of_algorithms_have_the_rows_of_our_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = making("measured", monkeypatch)
    rows = [
        line for line in (ROOT / "docs" / "kin.md").read_text().splitlines() if line.startswith("| FACADE")
    ]
    text = measured.measured("facade")
    assert len(rows) == 2  # its table has fifteen columns, in two parts
    assert all(row in text for row in rows)
    assert "(../kin.md#beside-its-rivals)" in text
    assert text.index("| Local |") < text.index(rows[0])
    assert measured.method_in("| FedAvg | 1 |", "KD-PDFL, Table I") == "star-fedavg"
    assert measured.method_in("| FedAvg | 1 |", "DFedPGP, Table 1") == "fedavg"
    assert measured.method_in("| *partial:* dfedavgm-p | 1 |", "") == "dfedavgm-p"
    assert measured.method_in("| kd-pdfl 1, 0.1 | 1 |", "") == "kd-pdfl"
    assert measured.method_in("| alpha 0.1 | 99.2 |", "") is None


def test_advice_is_that_of_the_table_of_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = making("measured", monkeypatch).advice("local")
    assert len(lines) == 1
    assert lines[0].startswith("* Your peers have very few labels each")
    assert "](../kin.md#" in lines[0]


def test_the_reference_has_every_public_name_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import coterie

    page = making("api_pages", monkeypatch).page()
    headings = [line.removeprefix("### coterie.") for line in page.splitlines() if line.startswith("### ")]
    assert sorted(name for name in headings if "testing." not in name) == sorted(coterie.__all__)
    assert "algorithm: str | Algorithm[Any] = 'local'" in page
    assert "Simulate peers that learn from each other" in page
    assert "`predict(peer: int | str, x: Any) -> Tensor`" in page


def test_the_readme_has_the_numbers_of_the_demos_table() -> None:
    table = (ROOT / "docs" / "start.md").read_text(encoding="utf-8").splitlines()
    means = {line.split()[0]: line.split()[1] for line in table if re.match(r"[a-z-]+  +\d", line)}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in ("local", "gossip-fedavg", "oracle", "kin"):
        assert f"{means[name]} %" in readme, name


def test_the_page_of_what_there_is_names_it() -> None:
    from coterie import catalogue

    page = (ROOT / "docs" / "catalogue.md").read_text(encoding="utf-8")
    for kind in ("algorithms", "sources", "partitions", "tasks", "topologies"):
        assert [name for name in of_the_package(getattr(catalogue, kind)) if name not in page] == []
