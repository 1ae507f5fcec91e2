"""Plain formulas as LaTeX, sign by sign, and every formula there is through a parser."""

import pytest
from matplotlib.mathtext import MathTextParser
from zootomy.learners.anatomy import block_latex
from zootomy.learners.equations import equations
from zootomy.learners.latex import to_latex, to_latex_lines, upright
from zootomy.learners.zoo import algorithm, algorithms
from zootomy.registry import describe, names, slots

BLOCKS = [
    (place.name, name) for place in slots() if not place.choices for name in names(place.name)
]


@pytest.mark.parametrize(
    ("plain", "latex"),
    [
        ("π_old,t", r"\pi_{\text{old},t}"),
        ("R_f,i − μ_f", r"R_{f,i} - \mu_{f}"),
        ("σ_group²", r"\sigma_{\text{group}}^{2}"),
        ("M₂ ≤ τ⁺", r"M_{2} \leq \tau^{+}"),
        ("Σ_{j≠i} R_j", r"\sum_{j\neq i} R_{j}"),
        ("Σ_{k ≥ t} γ^{k−t} r_k", r"\sum_{k \geq t} \gamma^{k-t} r_{k}"),
        ("2^(−1/h)", "2^{-1/h}"),
        ("w^k", "w^{k}"),
        ("γλ A_{next action}", r"\gamma\lambda A_{\text{next action}}"),
        ("logπ_t − log π̄", r"\log\pi_{t} - \log \bar{\pi}"),
        ("sqrt(max(σ², eps))", r"\sqrt{\max(\sigma^{2},\ \text{eps})}"),
        ("sg(clip(r, ±5)) A", r"\operatorname{sg}(\operatorname{clip}(r, \pm5)) A"),
        ("A'_t = ½ |x|", r"A'_{t} = \frac{1}{2} |x|"),
        ("⌊x · 1e-08⌋ + 2.5e3", r"\lfloor x \cdot 10^{-8}\rfloor + 2.5 \cdot 10^{3}"),
        ("x where A > 0, else the rest", r"x\ \text{where}\ A > 0,\ \text{else the rest}"),
        ("a token of a row", r"\text{a token of a row}"),
        ("a = b", "a = b"),
        ("w ← w / mean w", r"w \leftarrow w / \operatorname{mean} w"),
        ("form \"logp\", as `my_one`", r"\text{form}\ \mathtt{logp},\ \text{as}\ \mathtt{my\_one}"),
        ("x,   y", r"x,\qquad y"),
        ("KL(π ‖ π_ref) ~ 5%", r"\text{KL}(\pi \Vert \pi_{\text{ref}}) \sim 5\%"),
        ("the actions' mean", r"\text{the actions' mean}"),
        ("x ☂ y", r"x \text{☂} y"),
    ],
)  # fmt: skip
def test_by_hand(plain, latex):
    assert to_latex(plain) == latex


def test_lines():
    assert to_latex_lines("a = b") == "a = b"
    assert (
        to_latex_lines("a = b\n\nc = d")
        == "\\begin{aligned}\n& a = b \\\\\n& c = d\n\\end{aligned}"
    )
    assert to_latex_lines("") == ""
    assert upright("50%_of") == r"\text{50\%\_of}"


@pytest.mark.parametrize(("slot", "name"), BLOCKS, ids=[".".join(block) for block in BLOCKS])
def test_every_formula_is_latex(slot, name):
    parser = MathTextParser("path")
    for line in describe(slot, name).documentation.formula.split("\n"):
        latex = to_latex(line)
        assert latex.isascii(), latex
        parser.parse(f"${latex}$")
    assert block_latex(slot, name)


@pytest.mark.parametrize("name", algorithms())
def test_every_objective_is_latex(name):
    parser = MathTextParser("path")
    for line in equations(algorithm(name)):
        parser.parse(f"${to_latex(line)}$")
