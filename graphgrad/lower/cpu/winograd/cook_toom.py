"""The matrices of minimal filtering, as exact fractions.

Correlating n = m + r - 1 data d with r taps g gives m results. As products of polynomials evaluated
at n - 1 points and at infinity (Toom and Cook), it takes n multiplications instead of m · r:

    y = A (G g ⊙ B d)

and in two dimensions, with every matrix applied along both axes, n² instead of m² · r². See Lavin
and Gray, *Fast Algorithms for Convolutional Neural Networks* (2016), and for points of small error
Barabasz et al., *Error Analysis and Improving the Accuracy of Winograd Convolution for Deep Neural
Networks* (2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

Matrix = tuple[tuple[Fraction, ...], ...]

_POINTS = {
    3: (Fraction(0), Fraction(1), Fraction(-1)),
    5: (Fraction(0), Fraction(2, 3), Fraction(-2, 3), Fraction(3, 2), Fraction(-3, 2)),
}
"""By their number. With the five 0, ±1, 1/2, -2 errors are 1.4 to 2 times as large, and with 0, ±1,
±2 larger still."""


@dataclass(frozen=True)
class Filtering:
    """How to compute some results of a correlation at once.

    Attributes
    ----------
    results : Matrix
        A: from the products to the m results.
    taps : Matrix
        G: from the r taps to the factors.
    data : Matrix
        B: from the n data to the other factors.
    """

    results: Matrix
    taps: Matrix
    data: Matrix

    @property
    def products(self) -> int:
        """The number of multiplications, n."""
        return len(self.data)


@cache
def filtering(results: int, taps: int) -> Filtering:
    """The matrices for F(results, taps).

    Parameters
    ----------
    results, taps : int
        Their sum is 5 or 7.
    """
    n = results + taps - 1
    points = _POINTS[n - 1]
    a = [[p**i for p in points] + [Fraction(i == results - 1)] for i in range(results)]
    g, b = [], []
    for p in points:
        others = [q for q in points if q != p]
        scale = _product([p - q for q in others])
        g.append([p**k / scale for k in range(taps)])
        b.append([*_polynomial_of_roots(others), Fraction(0)])
    g.append([Fraction(k == taps - 1) for k in range(taps)])
    b.append(_polynomial_of_roots(points))
    return Filtering(_matrix(a), _matrix(g), _matrix(b))


def _polynomial_of_roots(roots: Sequence[Fraction]) -> list[Fraction]:
    """The coefficients, constant first, of the polynomial with these roots, led by one."""
    polynomial = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *polynomial]
        scaled = [*(-root * c for c in polynomial), Fraction(0)]
        polynomial = [s + t for s, t in zip(shifted, scaled, strict=True)]
    return polynomial


def _product(factors: Sequence[Fraction]) -> Fraction:
    product = Fraction(1)
    for factor in factors:
        product *= factor
    return product


def _matrix(rows: Sequence[Sequence[Fraction]]) -> Matrix:
    return tuple(tuple(row) for row in rows)
