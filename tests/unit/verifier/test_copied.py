"""Answers that are copied from the question."""

from __future__ import annotations

import pytest

from rlep.services.verifier.copied import is_copied


@pytest.mark.parametrize(
    ("question", "answer", "reference", "copied"),
    [
        (r"Find $\int_0^1 x^2\,dx$.", r"\int_0^1 x^2 dx", r"\frac13", True),
        (r"Find $$I=\displaystyle\int_{0}^{1}x\,dx.$$", r"I = \int_{0}^{1} x\,dx", r"\frac12", True),
        (r"Find $\sum_{k=1}^n k$.", r"\sum_{k=1}^{n} k", r"\frac{n(n+1)}{2}", False),  # spelled in another way
        (r"Find $\sum_{k=1}^n k$.", r"\sum_{k=1}^n k", r"\frac{n(n+1)}{2}", True),
        (r"Write 1 + 2 + … + n.", r"\sum_{k=1}^n k", r"\frac{n(n+1)}{2}", False),
        (r"Is it $\sum_{k=1}^n k$ or $n$?", r"\sum_{k=1}^n k", r"\sum_{j=1}^n j", False),
        (r"Find $\int_0^1 x\,dx$.", r"\int_0^1 x\,dx = \frac12", r"\frac12", False),
        (r"Compute $3^{2024} \bmod 4$.", r"3^{2024}\bmod 4", "1", True),
        (r"Find $\dfrac{d}{dx}x^2$.", r"\frac{d}{dx} x^2", "2x", True),
        (r"The distance is $\frac{d}{2}$ of d.", r"\frac{d}{2}", r"0.5d", False),
        (r"Solve $\frac{x+5}{x-3} \le 0$.", r"\frac{x+5}{x-3}\le0", "[-5,3)", True),
        (r"Let $x > 2$. Which $x$?", "x>2", r"(2,\infty)", False),  # names and bounds are an answer
        (r"Solve $|x-1|<2$.", "-1<x<3", "(-1,3)", False),
        ("", r"\int_0^1 x\,dx", r"\frac12", False),
        (r"Let $A=\{x|x>1\}$, $B=\{x|x>2\}$. Find $A\cap B$.", r"\{x|x>2\}", "x>2", False),
        (r"Is it $x>\frac{5}{2}$ or $x<1$?", r"x > \frac{5}{2}", r"(\frac52,\infty)", False),
        (r"Let $x\equiv 2\pmod 7$.", r"x \equiv 2 \pmod 7", r"x\equiv 2 \mod 7", False),
        (r"Find $\operatorname{lcm}(12,18)$.", r"\operatorname{lcm}(12, 18)", "36", True),
        ("Find gcd(12,18).", "gcd(12, 18)", "6", True),
        ("Find ∫_0^1 x^2 dx.", "∫_0^1 x^2 dx", "1/3", True),
        (r"Find $17 \cdot 23$.", r"17 \cdot 23", "391", False),
    ],
)
def test_what_is_left_to_work_out_is_not_copied(question: str, answer: str, reference: str, copied: bool) -> None:
    assert is_copied(answer, question, reference) is copied
