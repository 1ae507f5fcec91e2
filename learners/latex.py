"""Plain formulas as LaTeX, so that a formula is written once: in the docstring of its block.

The plain text has a small grammar: Greek letters and signs as they are; `x_i`, `x_{...}`, `x²`,
`x^y`, `x^{...}` and `x^(...)` for what stands lower and higher; `sqrt(...)`; names of functions;
and words, which become upright text.
"""

from __future__ import annotations

import re

_GREEK = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "varepsilon", "η": "eta",
    "θ": "theta", "κ": "kappa", "λ": "lambda", "μ": "mu", "ν": "nu", "π": "pi", "ρ": "rho",
    "σ": "sigma", "τ": "tau", "φ": "varphi", "χ": "chi", "ψ": "psi", "ω": "omega",
    "Δ": "Delta", "Λ": "Lambda", "Φ": "Phi", "Ψ": "Psi", "Ω": "Omega",
}  # fmt: skip
_SIGNS = {
    "−": "-", "·": r"\cdot", "*": r"\cdot", "×": r"\times", "≤": r"\leq", "≥": r"\geq",
    "≠": r"\neq", "≈": r"\approx", "∈": r"\in", "→": r"\rightarrow", "←": r"\leftarrow",
    "‖": r"\Vert", "∞": r"\infty", "±": r"\pm", "⌊": r"\lfloor", "⌋": r"\rfloor",
    "Σ": r"\sum", "∏": r"\prod", "Π": r"\prod", "∇": r"\nabla", "∂": r"\partial",
    "½": r"\frac{1}{2}", "…": r"\ldots", "~": r"\sim", "%": r"\%", "&": r"\&", "#": r"\#",
    "$": r"\$", "{": r"\{", "}": r"\}",
}  # fmt: skip
_RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-", strict=True))
_LOWERED = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋", "0123456789+-", strict=True))
_FUNCTIONS = ("exp", "log", "min", "max")
_OPERATORS = ("clip", "mean", "std", "sg", "sort", "quantile", "sign", "shape", "rank")
# No space is kept beside these: LaTeX sets its own.
_TIGHT = frozenset("=+−-·*/×<>≤≥≠≈∈→←±~‖")

_TAIL = r"(?:[-'][a-z]+)*(?:(?<=[a-z]s)')?"
_ONE = rf"[A-Za-z]+{_TAIL}"
_NEXT = rf"(?!(?:{'|'.join(_FUNCTIONS)}|sqrt)\b)[A-Za-z]{{2,}}{_TAIL}(?![A-Za-z_(])"
_TOKEN = re.compile(
    rf"(?P<number>\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
    rf"|(?P<words>(?:a(?= [a-z]{{3,}}\b(?!\())|{_ONE})(?:(?:,? )(?:a(?= [a-z]{{2,}})|{_NEXT}))*)"
    r"|(?P<quoted>\"[^\"]*\"|`[^`]*`)"
    r"|(?P<lower>_)|(?P<higher>\^)"
    rf"|(?P<raised>[{''.join(_RAISED)}]+)|(?P<lowered>[{''.join(_LOWERED)}]+)"
    r"|(?P<gap> {2,})|(?P<space> )|(?P<sign>.)"
)
_SUBSCRIPT = re.compile(rf"[A-Za-z0-9_{''.join(_GREEK)}]+(?:,[A-Za-z0-9{''.join(_GREEK)}]+)*")


def to_latex(formula: str) -> str:
    r"""One line of a plain formula as LaTeX for mathematical mode.

    >>> print(to_latex("A_i = (R_i − μ) / (σ + eps),   r ≤ γ² where kept"))
    A_{i} = (R_{i} - \mu) / (\sigma + \text{eps}),\qquad r \leq \gamma^{2}\ \text{where kept}

    Args:
        formula: the plain text, without a line break.

    Returns:
        LaTeX without dollar signs around it; a sign that is not known stands in it as text.
    """
    return _Scanner(formula.strip()).run()


def to_latex_lines(formula: str) -> str:
    """A formula of several lines, one below the other."""
    lines = [to_latex(line) for line in formula.split("\n") if line.strip()]
    if len(lines) < 2:
        return "".join(lines)
    body = " \\\\\n".join(f"& {line}" for line in lines)
    return f"\\begin{{aligned}}\n{body}\n\\end{{aligned}}"


def upright(words: str) -> str:
    r"""Words as text, with what LaTeX reads as a command escaped.

    >>> print(upright("old_logp"))
    \text{old\_logp}
    """
    return "\\text{" + _escape(words) + "}"


def _escape(words: str) -> str:
    return re.sub(r"([_%&#${}])", r"\\\1", words)


class _Scanner:
    """Reads a line from left to right; `at` is where it is."""

    def __init__(self, source: str):
        self.source = source
        self.at = 0

    def run(self) -> str:
        out: list[str] = []
        while self.at < len(self.source):
            found = _TOKEN.match(self.source, self.at)
            assert found is not None
            self.at = found.end()
            part = self.read(str(found.lastgroup), found[0])
            # A command ends where no letter follows.
            if out and part[:1].isalpha() and re.search(r"\\[a-zA-Z]+$", out[-1]):
                part = " " + part
            out.append(part)
        return "".join(out)

    def read(self, kind: str, token: str) -> str:
        """A token as LaTeX; brackets that belong to it are read along with it."""
        if kind == "number":
            return _number(token)
        if kind == "words":
            return self.words(token)
        if kind == "quoted":
            return f"\\mathtt{{{_escape(token[1:-1])}}}"
        if kind in ("lower", "higher"):
            return f"{token}{{{self.script(kind)}}}"
        if kind in ("raised", "lowered"):
            table, sign = (_RAISED, "^") if kind == "raised" else (_LOWERED, "_")
            return f"{sign}{{{''.join(table[one] for one in token)}}}"
        if kind == "gap":
            return "\\qquad "
        if kind == "space":
            return self.space()
        return self.sign(token)

    def sign(self, sign: str) -> str:
        if sign in _GREEK:
            return self.barred(f"\\{_GREEK[sign]}")
        if sign in _SIGNS:
            return _SIGNS[sign]
        return sign if sign.isascii() else upright(sign)

    def words(self, words: str) -> str:
        """A variable of one letter, a function, or words that stand upright."""
        if words == "sqrt" and self.source.startswith("(", self.at):
            return f"\\sqrt{{{self.bracketed('()')}}}"
        first = re.split(r"[ ,]", words, maxsplit=1)[0]
        if first in _FUNCTIONS + _OPERATORS or (len(first) == 1 and first != "a"):
            # Only the first word is taken; the rest is read as words of its own.
            self.at -= len(words) - len(first)
            if first in _FUNCTIONS:
                return f"\\{first}"
            return f"\\operatorname{{{first}}}" if first in _OPERATORS else self.barred(first)
        return words if words == "a" else upright(words)

    def barred(self, letter: str) -> str:
        """The letter, under a bar if a combining macron follows."""
        if self.source.startswith("\u0304", self.at):
            self.at += 1
            return f"\\bar{{{letter}}}"
        return letter

    def script(self, kind: str) -> str:
        """What stands lower or higher: braces, brackets, words with commas, or one sign."""
        if self.source.startswith("{", self.at):
            return _Scanner(self.bracketed("{}", raw=True)).run()
        if kind == "higher" and self.source.startswith("(", self.at):
            return self.bracketed("()")
        found = _SUBSCRIPT.match(self.source, self.at)
        if found is None:
            self.at += 1
            return to_latex(self.source[self.at - 1 : self.at])
        self.at = found.end()
        parts = re.split(r"([,_])", found[0])
        return "".join({",": ",", "_": "\\ "}.get(part) or to_latex(part) for part in parts if part)

    def bracketed(self, pair: str, raw: bool = False) -> str:
        """The inside of the brackets that open here, as LaTeX unless `raw`."""
        depth, start = 0, self.at
        while self.at < len(self.source):
            depth += {pair[0]: 1, pair[1]: -1}.get(self.source[self.at], 0)
            self.at += 1
            if depth == 0:
                break
        inside = self.source[start + 1 : self.at - 1]
        return inside if raw else to_latex(inside)

    def space(self) -> str:
        """Between words and letters a space has to be asked for; beside a sign it is there."""
        before, after = self.source[self.at - 2], self.source[self.at : self.at + 1]
        if before in _TIGHT or after in _TIGHT:
            return " "
        left = re.search(r"[A-Za-z'\"`]{2,}$", self.source[: self.at - 1])
        right = re.match(r"[A-Za-z\"`]{2,}|a [a-z]{2}", self.source[self.at :])
        functions = _FUNCTIONS + _OPERATORS
        words = [found[0] for found in (left, right) if found and found[0] not in functions]
        return "\\ " if words else " "


def _number(token: str) -> str:
    mantissa, _, exponent = token.partition("e")
    if not exponent:
        return token
    power = f"10^{{{int(exponent)}}}"
    return power if float(mantissa) == 1 else f"{mantissa} \\cdot {power}"
