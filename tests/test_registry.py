"""Names that users type: parsed, converted by annotation, and refused with help."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import ConfigError
from coterie.registry import Registry, nearest, parse_call, readable

things: Registry[object] = Registry("topology")


@things.register("ring")
def ring() -> object:
    """Every node has two neighbours.

    More that a list does not show.
    """
    return "a ring"


@things.register("small-world")
def small_world(k: int, p: float = 0.1) -> object:
    """Watts and Strogatz."""
    return k, p


@things.register("label-groups")
def label_groups(*groups: str) -> object:
    return groups


@things.register("sizes")
def sizes(first: int, *others: int) -> object:
    return first, others


@things.register("exponential")
@dataclass(frozen=True)
class Exponential:
    """A dataclass is a factory too."""

    degree: int | None = None
    directed: bool = True
    name: str = "x"


@things.register("fading")
def fading(strength: Literal["low", "high"]) -> object:
    """One of a few words."""
    return strength


@things.register("untyped")
def untyped(value, scale=1):  # type: ignore[no-untyped-def]
    return value, scale


@pytest.mark.parametrize(
    ("text", "name", "positional", "keywords"),
    [
        ("ring", "ring", [], {}),
        ("ring()", "ring", [], {}),
        ("  small-world ( 4 , p = 0.2 ) ", "small-world", ["4"], {"p": "0.2"}),
        ("dirichlet(0.3)", "dirichlet", ["0.3"], {}),
        ("synthetic(1,1)", "synthetic", ["1", "1"], {}),
        ("rotations(0:70,180:20,350:5,10:5)", "rotations", ["0:70", "180:20", "350:5", "10:5"], {}),
        ("edges(folder/my graph.csv)", "edges", ["folder/my graph.csv"], {}),
        ("pathological(2,)", "pathological", ["2"], {}),
        ("cifar-10", "cifar-10", [], {}),
    ],
)
def test_parse_call(text: str, name: str, positional: list[str], keywords: dict[str, str]) -> None:
    assert parse_call(text) == (name, positional, keywords)


@given(
    st.from_regex(r"[a-z][a-z0-9.+-]{0,10}", fullmatch=True),
    st.lists(st.from_regex(r"[a-z0-9.:/-]{1,6}", fullmatch=True), max_size=4),
    st.dictionaries(
        st.from_regex(r"[a-z_]{1,6}", fullmatch=True), st.from_regex(r"[a-z0-9.]{1,4}", fullmatch=True)
    ),
)
def test_what_is_written_is_what_is_read(name: str, positional: list[str], keywords: dict[str, str]) -> None:
    arguments = [*positional, *(f"{key}={value}" for key, value in keywords.items())]
    assert parse_call(f"{name}({','.join(arguments)})") == (name, positional, keywords)


@pytest.mark.parametrize("text", ["", "()", "ring(", "ring)", "ring(3", "-ring", "two words", "ring(3) x"])
def test_malformed_text_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not of the form") as caught:
        parse_call(text, "topology")
    assert f"topology {text!r}" in str(caught.value)


def test_positional_after_keyword_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'4' follows a key=value argument"):
        parse_call("small-world(p=0.2,4)")


@pytest.mark.parametrize(
    ("text", "built"),
    [
        ("ring", "a ring"),
        ("ring()", "a ring"),
        ("small-world(4)", (4, 0.1)),
        ("small-world(4,1)", (4, 1.0)),
        ("small-world( 4 , 1e0 )", (4, 1.0)),
        ("fading(low)", "low"),
        ("small-world(p=1e-2,k=4)", (4, 0.01)),
        ("label-groups(animals,vehicles)", ("animals", "vehicles")),
        ("label-groups", ()),
        ("sizes(3,2,1)", (3, (2, 1))),
        ("exponential", Exponential()),
        ("exponential(3,no)", Exponential(degree=3, directed=False)),
        ("exponential(directed=True,name=1)", Exponential(directed=True, name="1")),
        ("untyped(4)", (4, 1)),
        ("untyped(four,scale=0.5)", ("four", 0.5)),
        ("untyped([1,2],3)", ([1, 2], 3)),
    ],
)
def test_build_converts_by_annotation(text: str, built: object) -> None:
    result = things.build(text)
    assert result == built
    assert type(result) is type(built)


def test_an_integer_for_a_float_becomes_one() -> None:
    assert isinstance(things.build("small-world(4,1)")[1], float)  # type: ignore[index]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rign", "unknown topology 'rign'; did you mean ring?"),
        ("small-wrold(4)", "unknown topology 'small-wrold'; did you mean small-world?"),
        (
            "@",
            "topology '@' is not of the form name or name(argument,...)",
        ),
        (
            "0",
            "unknown topology '0'; choose from: exponential, fading, label-groups, ring, sizes, small-world, "
            "untyped",
        ),
        (
            "exponential(degre=3)",
            "topology 'exponential(degre=3)' has no argument 'degre'; did you mean degree?",
        ),
        ("small-world(four)", "topology 'small-world(four)': k must be int, not 'four'"),
        ("small-world(4.5)", "topology 'small-world(4.5)': k must be int, not '4.5'"),
        ("small-world(4,p=high)", "topology 'small-world(4,p=high)': p must be float, not 'high'"),
        (
            "exponential(directed=maybe)",
            "topology 'exponential(directed=maybe)': directed must be bool, not 'maybe'",
        ),
        ("fading(none)", "topology 'fading(none)': strength must be low or high, not 'none'"),
        ("exponential(many)", "topology 'exponential(many)': degree must be int | None, not 'many'"),
        ("sizes(1,2,x)", "topology 'sizes(1,2,x)': others must be int, not 'x'"),
        (
            "small-world",
            "topology 'small-world': missing a required argument: 'k'; its arguments are (k,p=0.1)",
        ),
        (
            "small-world(1,2,3)",
            "topology 'small-world(1,2,3)': too many positional arguments; its arguments are (k,p=0.1)",
        ),
        ("ring(3)", "topology 'ring(3)': too many positional arguments; it takes no arguments"),
        (
            "small-world(4,k=4)",
            "topology 'small-world(4,k=4)': multiple values for argument 'k'; its arguments are (k,p=0.1)",
        ),
    ],
)
def test_mistakes_get_help(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        things.build(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("word", "value"),
    [("true", True), ("Yes", True), ("1", True), ("FALSE", False), ("no", False), ("0", False)],
)
def test_booleans_are_words(word: str, value: bool) -> None:
    assert things.build(f"exponential(directed={word})") == Exponential(directed=value)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("mnits", ["mnist", "emnist", "cifar-10"], "did you mean mnist or emnist?"),
        ("zzz", ["b", "a"], "choose from: a, b"),
    ],
)
def test_nearest(name: str, options: list[str], sentence: str) -> None:
    assert nearest(name, options) == sentence


def test_a_registry_lists_its_names_in_order() -> None:
    assert list(things) == [
        "ring",
        "small-world",
        "label-groups",
        "sizes",
        "exponential",
        "fading",
        "untyped",
    ]
    assert "ring" in things
    assert "rign" not in things
    assert things["ring"] is ring


def test_a_name_that_exists_is_not_taken_over() -> None:
    with pytest.raises(
        ConfigError, match=r"topology 'ring' exists already: it is .*:ring; choose another name"
    ):
        things.register("ring")(small_world)
    assert things["ring"] is ring


def test_a_name_of_the_catalogue_is_not_taken_over() -> None:
    """Neither before it is imported nor afterwards."""
    built_in: Registry[object] = Registry("topology", {"fraction": "fractions:Fraction"})
    for _ in range(2):
        with pytest.raises(ConfigError, match="it is fractions:Fraction; choose another name"):
            built_in.register("fraction")(ring)
        assert built_in["fraction"].__name__ == "Fraction"


def test_what_is_defined_again_replaces_the_former() -> None:
    """As when a cell of a notebook is run again, also if the class was renamed there."""
    own: Registry[object] = Registry("topology")

    def define(name: str, value: int) -> Callable[..., object]:
        scope: dict[str, Callable[..., object]] = {}
        exec(f"def {name}(): return {value}", {"__name__": "__main__"}, scope)
        return own.register("mine")(scope[name])

    define("Mine", 1)
    define("Mine", 2)
    assert own.build("mine") == 2
    define("Better", 3)
    assert own.build("mine") == 3


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (float, "float"),
        (int | None, "int | None"),
        (Literal["a", "b"], "a or b"),
        (Literal["even", "balanced"] | tuple[float, ...], "even or balanced or tuple[float, ...]"),
        (dict[str, Annotated[str, "as people write it"]], "dict[str, str]"),
        (dict[str, Any], "dict[str, Any]"),
        (list, "list"),
    ],
)
def test_types_are_shown_as_people_write_them(hint: Any, text: str) -> None:
    assert readable(hint) == text


@pytest.mark.parametrize(
    ("name", "signature", "summary"),
    [
        ("ring", "ring", "Every node has two neighbours."),
        ("small-world", "small-world(k,p=0.1)", "Watts and Strogatz."),
        ("label-groups", "label-groups(groups,...)", ""),
        ("exponential", "exponential(degree=None,directed=True,name=x)", "A dataclass is a factory too."),
    ],
)
def test_signature_and_summary(name: str, signature: str, summary: str) -> None:
    assert things.signature(name) == signature
    assert things.summary(name) == summary


def test_mistakes_in_the_factory_itself_are_not_hidden() -> None:
    broken: Registry[object] = Registry("topology")

    @broken.register("broken")
    def fail(k: int) -> object:
        raise ValueError(f"a bug with {k}")

    with pytest.raises(ValueError, match="a bug with 3"):
        broken.build("broken(3)")


def test_what_a_name_stands_for_is_imported_when_it_is_asked_for() -> None:
    lazy: Registry[object] = Registry("tool", {"colours": "colorsys:rgb_to_hsv", "missing": "nowhere:at_all"})
    sys.modules.pop("colorsys", None)
    assert list(lazy) == ["colours", "missing"]
    lazy.require("missing")
    with pytest.raises(ConfigError, match=r"unknown tool 'colour'; did you mean colours\?"):
        lazy.require("colour")
    assert "colorsys" not in sys.modules
    assert lazy["colours"] is lazy["colours"] is sys.modules["colorsys"].rgb_to_hsv
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        lazy["missing"]
