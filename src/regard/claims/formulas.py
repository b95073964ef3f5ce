r"""Formulas in LaTeX as MathML, which browsers draw without scripts, and as one line of text for a terminal.

latex2mathml makes the MathML. It has no form for terminals, so the text is made from its MathML here.
"""

import re
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

_END = "(?![A-Za-z])"
_BOARD = {"R": "ℝ", "E": "𝔼", "Z": "ℤ", "N": "ℕ"}
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
_ACCENTS = {"^": "\u0302", "~": "\u0303", "¯": "\u0304", "\u203e": "\u0304"}
_RAISED = dict(zip("0123456789+−-=()nTi⊤′″", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁼⁽⁾ⁿᵀⁱᵀ′″", strict=True))
_LOWERED = dict(zip("0123456789+−-=()aehijklmnoprstuvx", "₀₁₂₃₄₅₆₇₈₉₊₋₋₌₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ", strict=True))
_SCRIPTS = {"sub": "_", "sup": "^", "subsup": "_^", "under": "_", "over": "^", "underover": "_^"}


def to_mathml(latex: str, *, display: bool = False) -> str:
    r"""A ``<math>`` element. What latex2mathml does not know is an error.

    >>> to_mathml("x^2")
    '<math display="inline"><mrow><msup><mi>x</mi><mn>2</mn></msup></mrow></math>'
    """
    try:
        from latex2mathml.converter import convert
    except ImportError as missing:
        raise ImportError("formulas need latex2mathml: pip install 'regard[train]'") from missing
    prepared = latex
    for pattern, command in _FOR_LIBRARY.items():
        prepared = re.sub(pattern, command, prepared)
    braces = re.sub(r"\\.", "", prepared)
    if braces.count("{") != braces.count("}"):
        raise ValueError(f"{latex!r} has an opening or a closing brace too many")
    try:
        element = convert(prepared, display="block" if display else "inline")
    except Exception as error:  # latex2mathml's errors share no class
        raise ValueError(f"{latex!r} has a part that latex2mathml cannot read ({type(error).__name__})") from error
    if unknown := re.search(r"\\\w+", element):
        raise ValueError(f"{latex!r} has the command {unknown[0]}, which latex2mathml does not know")
    for pattern, attribute in _FOR_BROWSERS.items():
        element = re.sub(pattern, attribute, element)
    return element


def to_text(latex: str) -> str:
    r"""One line of plain text.

    >>> to_text(r"e^{-\beta z_i} / \sum_j e^{\beta z_j}")
    'e^(−βzᵢ)/∑ⱼ e^(βzⱼ)'
    """
    return _text(ElementTree.fromstring(to_mathml(latex)))


def _text(node: Element) -> str:
    kind, parts = node.tag.removeprefix("m"), list(node)
    if kind == "over" and parts[1].text in _ACCENTS:
        return _text(parts[0]) + _ACCENTS[parts[1].text or ""]
    if kind in _SCRIPTS:
        pairs = zip(_SCRIPTS[kind], parts[1:], strict=True)
        return _text(parts[0]) + "".join(_script(_text(part), sign) for sign, part in pairs)
    if kind == "frac":
        if len(parts) != 2:
            raise ValueError("a formula has a fraction without a denominator")
        return "/".join(_bracketed(_text(part)) for part in parts)
    if kind == "sqrt":
        return "√" + _bracketed(_spaced("".join(map(_in_row, parts))))
    if kind == "space":
        return " "
    if parts:
        return _spaced("".join(map(_in_row, parts)))
    return (node.text or "").replace("\u00a0", " ")


def _in_row(node: Element) -> str:
    """Text with the space around it that operators, names and fractions need."""
    text = _text(node)
    base = node[0] if node.tag[1:] in _SCRIPTS and len(node) else node
    if base.tag == "mtext" or (base.tag == "mi" and len(base.text or "") > 1):
        return f" {text} "
    if node.tag == "mo" and text in "=≤≥≠≈∈→≪≫·⋅×⇒⇔∝<>+−⊗∼↦|∪":
        return f" {text} "
    is_large = base.tag == "mo" and (len(base.text or "") > 1 or base.text in ("∑", "∏"))
    apart = is_large or base.tag == "mfrac" or (base is not node and ("_" in text or "^" in text))
    return f"{text} " if apart else text


def _spaced(text: str) -> str:
    text = re.sub(r"\s+", " ", text).strip()
    text = re.sub(r"(^|[(\[=≤≥<>,→·⊗] ?)([+−]) ", r"\1\2", text)  # a sign, not a difference
    text = re.sub(r"(?<=[\w′ᵀ⁾]) \(", "(", text)
    text = re.sub(r" ([,;.)\]!⌋‖/])", r"\1", text)
    text = re.sub(r"/ ", "/", text)
    text = re.sub(r"([(\[⌊]) ", r"\1", text)
    return re.sub(r",(?=\S)", ", ", text)


def _script(text: str, sign: str) -> str:
    alphabet = _LOWERED if sign == "_" else _RAISED
    if len(text) < 4 and all(letter in alphabet for letter in text):
        return "".join(alphabet[letter] for letter in text)
    return f"{sign}{text}" if text.isalnum() and (sign == "_" or len(text) == 1) else f"{sign}({text})"


def _bracketed(text: str) -> str:
    return text if re.fullmatch(r"[^\s+−/·]+", text) or re.fullmatch(r"\([^()]*\)", text) else f"({text})"
