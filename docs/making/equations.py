"""Equations as docstrings write them, `theta_i <- sum_j W_ij y_j`, as MathML, which browsers set."""

from __future__ import annotations

import re
from html import escape

_GREEK = {
    name: chr(0x03B0 + place)
    for name, place in {
        "alpha": 1, "beta": 2, "gamma": 3, "delta": 4, "eps": 5, "eta": 7, "theta": 8, "kappa": 10,
        "lambda": 11, "mu": 12, "pi": 16, "rho": 17, "tau": 20, "phi": 22,
    }.items()
}  # fmt: skip
_FUNCTIONS = {
    "argmin",
    "argmax",
    "min",
    "max",
    "exp",
    "log",
    "ln",
    "cos",
    "softmax",
    "clip",
    "mean",
    "KL",
    "CE",
}
_SIGNS = {
    "<-": "←",
    "grad": "∇",
    "sum": "∑",
    "sqrt": "√",
    ">=": "≥",
    "<=": "≤",
    "||": "‖",
    "*": "·",
    "-": "\u2212",
}
_TOKEN = re.compile(
    r"<-|>=|<=|[A-Za-z]{2,}(?:-[A-Za-z]{2,})+|\|\||[A-Za-z]+(?:'(?!s\b)|\^(?=[\s;,=)]|$)|-(?=[\s;,)]|$))?|\d+(?:\.\d+)?|\s+|."
)
_SPACE, _WIDE = "<mspace width='.28em'></mspace>", "<mspace width='1em'></mspace>"
_WORD = re.compile("<mtext>(.*)</mtext>")
_POWER = re.compile(r"(?<![\w`])([A-Za-z]+)\^([A-Za-z0-9]+)(?![\w`])")  # smooth^age
_NAME = re.compile(r"(?<![\w`/.])([A-Za-z]+)_([a-z0-9]{1,2})(?!\w|\(|\.\w)")


def block(text: str) -> str:
    """An indented block of a docstring: a row for each line, and behind it what is said of it."""
    rows = []
    for line in text.replace("`", "").splitlines():
        formula, *said = re.split(r"\s{3,}", line.strip())
        if formula.isalpha() and said:  # a word that says what the line is about
            formula, said = "  ".join([formula, *said[:1]]), said[1:]
        note = f"<small>{formula_of(' '.join(said))}</small>" if said else ""
        inner = ' class="inner"' if line.startswith("  ") else ""
        rows.append(f"<div{inner}><span>{formula_of(formula)}</span>{note}</div>")
    return f'<div class="equations" role="group" aria-label="Equations" tabindex="0">{"".join(rows)}</div>'


def formula_of(text: str) -> str:
    """Words as they are, so that lines can break between them, and what stands between words as MathML."""
    parts: list[str] = []
    formula: list[str] = []

    def close() -> None:
        inside = "".join(formula).removeprefix(_SPACE).removesuffix(_SPACE)
        formula.clear()
        if inside:
            parts.append(f"<math><mrow>{inside}</mrow></math>")

    for element in _elements(_TOKEN.findall(text)):
        word = _WORD.fullmatch(element)
        if element == _WIDE:
            close()
            parts.append("&emsp;")
        elif word:
            close()
            parts.append(f" {word[1]} ")
        elif element[-6] in ",;:." and not "".join(formula).removeprefix(_SPACE):  # behind a word
            formula.clear()
            parts.append(f"\0{element[-6]} ")
        else:
            formula.append(element)
            if element[-6] == ";":  # a line may break here
                close()
    close()
    return re.sub(r"\s+", " ", re.sub(r"\s*\0", "", "".join(parts))).strip()


def in_words(text: str) -> str:
    """A sentence in which names like `l_ij` are set."""

    def name(match: re.Match[str]) -> str:
        if len(match[1]) > 1 and match[1] not in _GREEK:
            return match[0]
        return f"<i>{_GREEK.get(match[1], match[1])}<sub>{match[2]}</sub></i>"

    return _POWER.sub(r"\1<sup>\2</sup>", _NAME.sub(name, text))


def _elements(tokens: list[str]) -> list[str]:
    found: list[str] = []
    place = 0
    while place < len(tokens):
        token, place = tokens[place], place + 1
        if token in "_^" and found and place < len(tokens):
            index, place = _script(tokens, place)
            kind = "msub" if token == "_" else "msup"
            found.append(f"<{kind}>{found.pop()}<mrow>{''.join(_elements(index))}</mrow></{kind}>")
        else:
            found.append(_element(token, "".join(tokens[place : place + 2])))
    return [one for one in found if one]


def _script(tokens: list[str], place: int) -> tuple[list[str], int]:
    """What stands behind _ or ^: a word, a number, or what is in brackets; `i,c` counts as one."""
    if tokens[place] == "{" and "}" in tokens[place:]:
        end = tokens.index("}", place)
        return tokens[place + 1 : end], end + 1
    if tokens[place] == "(" and ")" in tokens[place:]:
        end = tokens.index(")", place)
        return tokens[place + 1 : end], end + 1
    end = place + 1
    while (
        end + 1 < len(tokens)
        and tokens[end] == ","
        and len(tokens[end + 1]) == 1
        and tokens[end + 1].isalpha()
    ):
        end += 2
    inside = [letter for token in tokens[place:end] for letter in _split(token)]
    return inside, end


def _split(token: str) -> list[str]:
    """`ij` are two indices, `bar` is a word."""
    return list(token) if token.isalpha() and len(token) == 2 and token not in _GREEK else [token]


def _element(token: str, after: str) -> str:
    plain = token.rstrip("'^-") or token
    mark = token[len(plain) :]
    if token.isspace():
        return _SPACE if len(token) < 2 else _WIDE
    if token in _SIGNS and not (token == "sum" and re.match(r",| (?!W\b)[A-Za-z]{2}|$", after)):
        return f"<mo>{_SIGNS[token]}</mo>"
    if plain in _GREEK or (len(plain) == 1 and plain.isalpha() and not _is_article(token, after)):
        name = f"<mi>{_GREEK.get(plain, plain)}</mi>"
        marked = {
            "": name,
            "^": f"<mover>{name}<mo>^</mo></mover>",
            "-": f"<msup>{name}<mo>\u2212</mo></msup>",
        }
        return marked.get(mark, f"{name}<mo>{mark}</mo>")
    if token[0].isdigit():
        return f"<mn>{token}</mn>"
    if token in _FUNCTIONS:
        return f"<mi mathvariant='normal'>{token}</mi>"
    if token[0].isalpha():
        return f"<mtext>{escape(token)}</mtext>"
    return f"<mo stretchy='false'>{escape(token)}</mo>"


def _is_article(token: str, after: str) -> bool:
    """`a fraction of`, not the number a."""
    return token == "a" and bool(re.match(r" [a-z]{2}", after))
