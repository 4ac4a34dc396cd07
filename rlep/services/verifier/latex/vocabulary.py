"""The commands that the grammar knows."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_HYPERBOLIC = ("sinh", "cosh", "tanh", "coth", "sech", "csch")
FUNCTIONS = {
    name: name
    for name in _words(
        "sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh coth sech csch ln log exp gcd lcm max"
        " min det Re Im arg Gamma cis abs floor"
    )
} | {
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
    "arctg": "arctan",
    "tg": "tan",
    "ctg": "cot",
    "ceil": "ceiling",
    **{f"{prefix}{name}": f"ar{name}" for name in _HYPERBOLIC for prefix in ("a", "ar", "arc")},
}
"""Functions that have a value, under the names people use."""
INVERSE = {name: f"arc{name}" for name in ("sin", "cos", "tan", "cot", "sec", "csc")} | {
    name: f"ar{name}" for name in _HYPERBOLIC
}
"""The function that the exponent −1 stands for."""
SET_OPERATORS = {"\\cup": "union", "\\cap": "intersection", "\\setminus": "difference", "\\backslash": "difference"}
SIGNS = frozenset({"+", "-", "\\pm", "\\mp"})
TIMES = frozenset({"\\cdot", "\\times", "*", "\\ast"})
OVER = frozenset({"/", "\\div", ":"})
MODULO = frozenset({"\\bmod", "\\mod"})
FONTS = _words("mathbf boldsymbol bm mathit mathsf mathtt mathrm mathnormal pmb ensuremath rm bf")
"""Fonts: of a single letter they make another name, of anything else nothing."""
MARKS = _words(
    "vec hat bar tilde dot ddot overline underline overrightarrow widehat widetilde mathcal mathbb mathfrak mathscr breve check"
)
"""Marks: of letters they make another name, of anything else they are not read."""
SAME_MARK = {"overline": "bar", "overrightarrow": "vec"}
"""Marks that mean the same over a single letter."""
GREEK = _words(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi omicron rho varrho sigma"
    " varsigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega ell hbar aleph"
    " imath jmath partial"
)
SAME_LETTER = {"varphi": "phi", "varepsilon": "epsilon", "vartheta": "theta", "varrho": "rho", "ell": "l"}
FIGURES = _words("angle triangle measuredangle square odot")
"""Commands before the letters of a figure, which together are one name."""
MATRICES = _words("pmatrix bmatrix matrix Bmatrix smallmatrix array")
NO_FACTOR = TIMES | MODULO | _words("\\} \\rfloor \\rceil \\end \\% \\\\ \\pm \\mp \\div")
"""Commands that end a product."""
TRANSPOSED = frozenset({"\\top", "\\intercal", "\\mathsf T", "\\mathrm T", "\\mathsf { T }", "\\mathrm { T }"})
"""Exponents that transpose."""
DIFFERENTIALS = frozenset("xyztuvwrsVPTSQAUNH") | {"\\theta", "\\phi", "\\mu"}
"""Letters that make one name with a ``d`` before them."""
