r"""Formulas in LaTeX as one line of text, for a terminal, and as MathML, which browsers draw without scripts.

latex2mathml makes the MathML. It has no form for terminals, so the text is made here, from the part of LaTeX that the
claims use.
"""

import re
from dataclasses import dataclass, field

_GREEK = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ε", "varepsilon": "ε", "lambda": "λ", "mu": "μ",
    "pi": "π", "sigma": "σ", "omega": "ω", "xi": "ξ", "theta": "θ", "phi": "φ", "Delta": "Δ", "Phi": "Φ", "Sigma": "Σ",
    "Pi": "Π", "rho": "ρ", "tau": "τ",
    "ell": "ℓ", "infty": "∞", "dots": "…", "cdots": "⋯", "partial": "∂", "nabla": "∇", "top": "⊤", "emptyset": "∅",
}  # fmt: skip
_OPERATORS = {
    "cdot": "·", "times": "×", "le": "≤", "ge": "≥", "ne": "≠", "approx": "≈", "in": "∈", "to": "→", "ll": "≪", "gg": "≫",
    "pm": "±", "odot": "⊙", "otimes": "⊗", "propto": "∝", "Rightarrow": "⇒", "leftarrow": "←", "Leftrightarrow": "⇔", "mid": "|",
    "lfloor": "⌊", "rfloor": "⌋", "lceil": "⌈", "rceil": "⌉", "|": "‖", "{": "{", "}": "}", "forall": "∀", "subset": "⊂",
    "cup": "∪", "equiv": "≡", "sim": "∼", "mapsto": "↦", "circ": "∘",
}  # fmt: skip
_LARGE = {"sum": "∑", "prod": "∏", "lim": "lim", "max": "max", "min": "min", "argmax": "argmax", "argmin": "argmin",
          "sup": "sup"}  # fmt: skip
_FUNCTIONS = {"exp", "log", "ln", "sin", "cos", "tanh", "erf", "Var", "rank", "softmax", "softargmax", "concat", "relu"}
_SPACES = dict.fromkeys((",", ";", " ", "quad", "qquad"), " ")
_ACCENTS = {"hat": "\u0302", "tilde": "\u0303", "widetilde": "\u0303", "bar": "\u0304"}
_STYLES = {"mathrm", "text", "mathbb", "mathbf", "operatorname"}
_BOARD = {"R": "ℝ", "E": "𝔼", "Z": "ℤ", "N": "ℕ"}
_RAISED = dict(zip("0123456789+−-=()nTi⊤′", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁼⁽⁾ⁿᵀⁱᵀ′", strict=True))
_LOWERED = dict(zip("0123456789+−-=()aehijklmnoprstuvx", "₀₁₂₃₄₅₆₇₈₉₊₋₋₌₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ", strict=True))
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[0-9]+(?:\.[0-9]+)?|[A-Za-z]|\S|\s+")
_END = "(?![A-Za-z])"
# What latex2mathml does not know or would place worse: limits beside instead of below, space around names.
_FOR_LIBRARY = {
    rf"\\arg\\?(max|min){_END}": r"\\operatorname*{arg\1}",
    rf"(\\(?:sum|prod|lim|max|min|sup){_END}|\\operatorname\*\{{arg...\}})(?=\s*[_^])": r"\1\\limits",
    rf"\\(Var|concat|erf|rank|relu|softargmax|softmax){_END}": r"\\text{\1}",
    r"\\(?:mathrm|operatorname)\{([^{}]*)\}": r"\\text{\1}",
    **{rf"\\mathbb(?: {letter}{_END}|\{{{letter}\}})": sign for letter, sign in _BOARD.items()},
}
# What browsers lack of MathML (or HTML does not need), and a thin space after the name of a function.
_FOR_BROWSERS = {
    ' xmlns="[^"]*"': "",
    'columnalign="(left|right)"': r'style="text-align: \1"',
    "((?<!<msu[bp]>)(?<!subsup>)<mi>(?:exp|log|ln|sin|cos|tanh)</mi>)(?=<m(?:i|n|sub|sup|frac|row)\\b)": (
        r'\1<mspace width="0.17em"/>'
    ),
}


@dataclass
class Node:
    """A piece of a formula: its kind, what it shows, and what it is made of."""

    kind: str
    text: str = ""
    parts: list["Node"] = field(default_factory=list)


def to_text(latex: str) -> str:
    r"""One line of plain text. An unknown command is an error.

    >>> to_text(r"e^{-\beta z_i} / \sum_j e^{\beta z_j}")
    'e^(−βzᵢ)/∑ⱼ e^(βzⱼ)'
    """
    row, rest = _row(_TOKEN.findall(latex), latex)
    if rest:
        raise ValueError(f"{latex!r} has a closing brace without an opening one")
    return _text(row)


def to_mathml(latex: str, *, display: bool = False) -> str:
    r"""A ``<math>`` element. An unknown command is an error.

    >>> to_mathml("x^2")
    '<math display="inline"><mrow><msup><mi>x</mi><mn>2</mn></msup></mrow></math>'
    """
    try:
        from latex2mathml.converter import convert
    except ImportError as missing:
        raise ImportError("formulas in HTML need latex2mathml: pip install 'regard[train]'") from missing
    for pattern, command in _FOR_LIBRARY.items():
        latex = re.sub(pattern, command, latex)
    element = convert(latex, display="block" if display else "inline")
    if unknown := re.search(r"\\\w+", element):
        raise ValueError(f"{latex!r} has the command {unknown[0]}, which latex2mathml does not know")
    for pattern, attribute in _FOR_BROWSERS.items():
        element = re.sub(pattern, attribute, element)
    return element


def _row(tokens: list[str], latex: str) -> tuple[Node, list[str]]:
    row = Node("row")
    while tokens and tokens[0] not in ("}", r"\right"):
        if tokens[0].isspace():
            tokens = tokens[1:]
        elif tokens[0] in ("^", "_"):
            place, (script, tokens) = tokens[0], _atom(tokens[1:], latex)
            base = row.parts.pop() if row.parts else Node("row")
            if base.kind != "script":
                base = Node("script", parts=[base, Node("none"), Node("none")])
            base.parts[1 if place == "_" else 2] = script
            row.parts.append(base)
        else:
            atom, tokens = _atom(tokens, latex)
            row.parts.append(atom)
    return row, tokens


def _atom(tokens: list[str], latex: str) -> tuple[Node, list[str]]:
    while tokens and tokens[0].isspace():
        tokens = tokens[1:]
    if not tokens:
        raise ValueError(f"{latex!r} ends too early")
    token, rest = tokens[0], tokens[1:]
    if token == "{":
        inside, rest = _row(rest, latex)
        if not rest:
            raise ValueError(f"{latex!r} has an opening brace without its closing one")
        return inside, rest[1:]
    if not token.startswith("\\"):
        if token[0].isdigit():
            return Node("number", token), rest
        if token.isalpha():
            return Node("letter", token), rest
        return Node("operator", {"-": "−", "'": "′", "*": "∗"}.get(token, token)), rest
    name = token[1:]
    if name == "frac":
        above, rest = _atom(rest, latex)
        below, rest = _atom(rest, latex)
        return Node("fraction", parts=[above, below]), rest
    if name == "sqrt":
        inside, rest = _atom(rest, latex)
        return Node("root", parts=[inside]), rest
    if name in _ACCENTS:
        inside, rest = _atom(rest, latex)
        return Node("accent", name, [inside]), rest
    if name in _STYLES:
        word, rest = _word(rest, latex)
        return Node("letter" if name in ("mathbb", "mathbf") else "word", _BOARD.get(word, word)), rest
    if name == "left":
        opening, (inside, rest) = rest[0], _row(rest[1:], latex)
        closing = rest[1]
        return Node("fence", _fence(opening) + _fence(closing), [inside]), rest[2:]
    for names, kind in ((_GREEK, "letter"), (_OPERATORS, "operator"), (_LARGE, "large"), (_SPACES, "space")):
        if name in names:
            return Node(kind, names[name]), rest
    if name in _FUNCTIONS:
        return Node("word", name), rest
    raise ValueError(f"{latex!r} has the command {token}, which the claims' formulas do not know")


def _word(tokens: list[str], latex: str) -> tuple[str, list[str]]:
    """What stands between braces, as it is: here spaces count."""
    if tokens[:1] != ["{"] or "}" not in tokens:
        raise ValueError(f"{latex!r} has no word in braces where one is needed")
    end = tokens.index("}")
    return "".join(tokens[1:end]), tokens[end + 1 :]


def _fence(token: str) -> str:
    return {".": " ", r"\|": "‖", r"\{": "{", r"\}": "}", r"\lfloor": "⌊", r"\rfloor": "⌋"}.get(token, token)


def _text(node: Node) -> str:
    if node.kind == "row":
        return _spaced("".join(_text_in_row(part) for part in node.parts))
    if node.kind == "script":
        base, below, above = node.parts
        return _text(base) + _script(below, _LOWERED, "_") + _script(above, _RAISED, "^")
    if node.kind == "fraction":
        return "/".join(_bracketed(part) for part in node.parts)
    if node.kind == "root":
        return "√" + _bracketed(node.parts[0])
    if node.kind == "accent":
        return _text(node.parts[0]) + _ACCENTS[node.text]
    if node.kind == "fence":
        return f"{node.text[0].strip()}{_text(node.parts[0])}{node.text[1].strip()}"
    if node.kind == "none":
        return ""
    return node.text


def _text_in_row(node: Node) -> str:
    text = _text(node)
    if node.kind == "operator" and text in "=≤≥≠≈∈→≪≫·×⇒⇔∝<>+−⊗∼↦|∪":
        return f" {text} "
    heads = node.parts[0] if node.kind == "script" else node
    if heads.kind == "word":
        return f" {text} "
    apart = heads.kind in ("large", "fraction") or (node.kind == "script" and ("_" in text or "^" in text))
    return f"{text} " if apart else text


def _spaced(text: str) -> str:
    text = re.sub(r"\s+", " ", text).strip()
    text = re.sub(r"(^|[(\[=≤≥<>,→·⊗] ?)([+−]) ", r"\1\2", text)  # a sign, not a difference
    text = re.sub(r"(?<=[\w′ᵀ⁾]) \(", "(", text)
    text = re.sub(r" ([,;.)\]!⌋‖/])", r"\1", text)
    text = re.sub(r"/ ", "/", text)
    text = re.sub(r"([(\[⌊]) ", r"\1", text)
    return re.sub(r",(?=\S)", ", ", text)


def _script(node: Node, alphabet: dict[str, str], sign: str) -> str:
    text = _text(node)
    if not text:
        return ""
    if len(text) < 4 and all(letter in alphabet for letter in text):
        return "".join(alphabet[letter] for letter in text)
    return f"{sign}{text}" if text.isalnum() and (sign == "_" or len(text) == 1) else f"{sign}({text})"


def _bracketed(node: Node) -> str:
    text = _text(node)
    return text if re.fullmatch(r"[^\s+−/·]+", text) or re.fullmatch(r"\([^()]*\)", text) else f"({text})"
