"""Random directions against scipy's distributions, and closed forms against quadrature and draws."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, special, stats

from service.numerics import sphere


def test_coordinates_are_normal_and_of_one_stream() -> None:
    """Compared with scipy's Kolmogorov-Smirnov test; the same seed gives the same rows."""
    x = sphere.uniform_directions(500, 20, 3, "test")
    assert x.shape == (500, 20)
    assert stats.kstest(x.ravel().astype(np.float64), "norm").pvalue > 0.01
    assert np.array_equal(x, sphere.uniform_directions(500, 20, 3, "test"))
    assert not np.array_equal(x, sphere.uniform_directions(500, 20, 4, "test"))
    assert not np.array_equal(x, sphere.uniform_directions(500, 20, 3, "other"))
    assert np.abs(np.corrcoef(x.T) - np.eye(20)).max() < 0.2


@pytest.mark.parametrize("d", [2, 3, 5, 50, 768])
def test_the_chance_of_a_distance_is_the_integral_of_its_density(d: int) -> None:
    """Compared with scipy's beta distribution of (1 - cosine) / 2."""
    distances = np.linspace(0, 1.999, 41)
    half = stats.beta((d - 1) / 2, (d - 1) / 2)
    np.testing.assert_allclose(
        sphere.within(distances, d), half.cdf(distances**2 / 4), rtol=1e-9, atol=1e-300
    )


def test_on_a_line_every_other_direction_is_the_same_one() -> None:
    """Closed form: chance 1/2 of cosine 1, of n directions n (1 - 2^(1-n)) have another like it."""
    assert sphere.within(np.array([0.0, 0.3, 1.9]), 1).tolist() == [0.5] * 3
    assert sphere.expected_with_neighbour(0.99, 5, 1) == pytest.approx(5 * (1 - 2**-4))
    assert sphere.mean_distance(1) == pytest.approx(1)
    assert sphere.mean_nearest_distance(4, 1) == pytest.approx(2 / 8)
    assert sphere.uniformity(1) == pytest.approx(np.log(np.cosh(4)) - 4)


def test_mean_distances_on_circle_and_sphere_are_the_published_ones() -> None:
    """Closed form: 4/pi on the circle, 4/3 on the sphere, sqrt 2 in the limit."""
    assert sphere.mean_distance(2) == pytest.approx(4 / np.pi)
    assert sphere.mean_distance(3) == pytest.approx(4 / 3)
    assert sphere.mean_distance(100_000) == pytest.approx(np.sqrt(2), rel=1e-5)


@pytest.mark.parametrize("d", [2, 3, 10, 384])
def test_means_over_pairs_are_integrals_over_the_density(d: int) -> None:
    """Compared with scipy's quadrature over the beta density of (1 + cosine) / 2."""
    half = stats.beta((d - 1) / 2, (d - 1) / 2)

    def mean(function: object) -> float:
        return float(half.expect(lambda u: function(2 * u - 1), epsabs=1e-11))  # type: ignore[operator]

    assert sphere.mean_distance(d) == pytest.approx(mean(lambda c: np.sqrt(2 - 2 * c)), rel=1e-6)
    assert sphere.uniformity(d) == pytest.approx(
        np.log(mean(lambda c: np.exp(4 * c - 4))), rel=1e-8
    )


@pytest.mark.parametrize(("n", "d"), [(2, 3), (10, 2), (1000, 5), (20_000, 384), (10**6, 768)])
def test_the_nearest_distance_is_its_integral(n: int, d: int) -> None:
    """Compared with scipy's adaptive quadrature of the chance that no other is nearer."""
    half = stats.beta((d - 1) / 2, (d - 1) / 2)
    expected = sum(
        integrate.quad(lambda r: half.sf(r * r / 4) ** (n - 1), a, a + 0.02, epsabs=1e-13)[0]
        for a in np.arange(0, 2, 0.02)
    )
    assert sphere.mean_nearest_distance(n, d) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("n", [2, 50, 10**4, 10**6])
def test_the_nearest_on_a_circle_is_its_integral_over_angles(n: int) -> None:
    """Closed form: the integral of (1 - a/pi)^(n-1) cos(a/2), a up to pi, as a series."""
    half, count = np.pi / 2, n - 1

    def moment(power: int) -> float:
        """Integral of (1 - t)^count t^power over t in [0, 1]."""
        return float(special.beta(power + 1, count + 1))

    series = sum(
        (-1) ** i * half ** (2 * i) / special.factorial(2 * i) * moment(2 * i) for i in range(12)
    )
    assert sphere.mean_nearest_distance(n, 2) == pytest.approx(np.pi * series, rel=1e-7)


def test_two_points_are_as_far_as_the_nearest_of_one() -> None:
    """Closed form: the nearest of one other is that other."""
    for d in (2, 3, 17):
        assert sphere.mean_nearest_distance(2, d) == pytest.approx(sphere.mean_distance(d))


@pytest.mark.parametrize(("n", "d", "cosine"), [(200, 3, 0.99), (500, 5, 0.95)])
def test_expected_values_are_those_of_many_draws(n: int, d: int, cosine: float) -> None:
    """Compared with means over numpy's draws, within four standard errors."""
    rng = np.random.default_rng(5)
    counts, nearest, means = [], [], []
    for _ in range(60):
        z = rng.normal(size=(n, d))
        z /= np.linalg.norm(z, axis=1, keepdims=True)
        c = z @ z.T
        means.append(np.sqrt(np.maximum(2 - 2 * c, 0)).sum() / (n * (n - 1)))
        np.fill_diagonal(c, -1)
        counts.append((c.max(axis=1) >= cosine).sum())
        nearest.append(np.sqrt(2 - 2 * c.max(axis=1)).mean())
    for expected, drawn in (
        (sphere.expected_with_neighbour(cosine, n, d), counts),
        (sphere.mean_nearest_distance(n, d), nearest),
        (sphere.mean_distance(d), means),
    ):
        error = np.std(drawn, ddof=1) / np.sqrt(len(drawn))
        assert abs(np.mean(drawn) - expected) < 4 * error
