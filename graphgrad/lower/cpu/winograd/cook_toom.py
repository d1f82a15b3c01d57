"""The matrices of minimal filtering, as exact fractions.

Correlating n = m + r - 1 data d with r taps g gives m results. This is written F(m, r). Toom and
Cook multiply polynomials by their values at n - 1 points and at infinity; so computed, F(m, r)
takes n multiplications instead of m · r:

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
"""The points at which polynomials are evaluated, by their number n - 1. Rounding errors depend on
the points: with the five 0, ±1, 1/2, -2 they are 1.4 to 2 times as large, and with 0, ±1, ±2 larger
still."""


@dataclass(frozen=True)
class Filtering:
    """The matrices that compute some results of a correlation at once.

    Attributes
    ----------
    results : Matrix
        A, from the n products to the m results.
    taps : Matrix
        G, from the r taps to n factors.
    data : Matrix
        B, from the n data to the n other factors.
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
        m and r. Their sum is 5 or 7, because points are given for these sums alone.
    """
    n = results + taps - 1
    points = _POINTS[n - 1]
    # The last row of G and B, and the last column of A, belong to the point at infinity, where a
    # polynomial's value is its leading coefficient.
    a = [[p**i for p in points] + [Fraction(i == results - 1)] for i in range(results)]
    g, b = [], []
    for p in points:
        other_points = [q for q in points if q != p]
        # The denominator of the Lagrange polynomial of p; its numerator is a row of B.
        scale = _product([p - q for q in other_points])
        g.append([p**k / scale for k in range(taps)])
        b.append([*_polynomial_of_roots(other_points), Fraction(0)])
    g.append([Fraction(k == taps - 1) for k in range(taps)])
    b.append(_polynomial_of_roots(points))
    return Filtering(_matrix(a), _matrix(g), _matrix(b))


def _polynomial_of_roots(roots: Sequence[Fraction]) -> list[Fraction]:
    """The coefficients, the constant one first, of the monic polynomial with these roots."""
    polynomial = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *polynomial]
        scaled = [*(-root * c for c in polynomial), Fraction(0)]
        # Multiplied by (x - root).
        polynomial = [s + t for s, t in zip(shifted, scaled, strict=True)]
    return polynomial


def _product(factors: Sequence[Fraction]) -> Fraction:
    """The product of fractions; 1 of none."""
    product = Fraction(1)
    for factor in factors:
        product *= factor
    return product


def _matrix(rows: Sequence[Sequence[Fraction]]) -> Matrix:
    return tuple(tuple(row) for row in rows)
