"""Closed forms against scikit-learn."""

import pytest
import scipy.linalg
import torch
from sklearn.linear_model import Ridge as SklearnRidge

from vitkit.evaluation import Moments, row_products, targets
from vitkit.evaluation.probes.ridge import centred_ridge, eigh, ridge

SHAPES = [(40, 12), (12, 40), (20, 20)]


def some(count, width, classes=4):
    generator = torch.Generator().manual_seed(count)
    x = 3 * torch.randn(count, width, generator=generator, dtype=torch.float64) + 5
    return x, torch.arange(count) % classes


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("l2", [2.0**-10, 1.0, 2.0**19])
def test_every_l2_has_the_weights_of_scikit_learn(shape, l2):
    x, classes = some(*shape)
    y = targets(classes, 4)
    plain = SklearnRidge(l2, fit_intercept=False, solver="svd").fit(x, y)
    expected = torch.from_numpy(plain.coef_).mT
    torch.testing.assert_close(ridge(x, y).weights(l2), expected, rtol=1e-6, atol=1e-9)

    counts = torch.linspace(0.5, 2, len(x), dtype=torch.float64)
    weights, bias = centred_ridge(x, y, counts).head(l2)
    centred = SklearnRidge(l2, solver="svd").fit(x, y, counts)
    torch.testing.assert_close(weights, torch.from_numpy(centred.coef_), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(bias, torch.from_numpy(centred.intercept_), rtol=1e-6, atol=1e-9)


def test_examples_are_added_and_taken_away_exactly():
    x, classes = some(30, 12)
    expected = centred_ridge(x[:20], targets(classes[:20], 4), torch.ones(20).double()).head(0.5)
    first = Moments.of(x[:12], classes[:12], 4)
    all_others = Moments.of(x[12:], classes[12:], 4)
    last = Moments.of(x[20:], classes[20:], 4)
    moments = first + all_others - last
    assert moments.counts.tolist() == [5, 5, 5, 5]
    for got, wanted in zip(moments.centred().head(0.5), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shape", SHAPES)
def test_small_features_have_small_eigenvalues(shape):
    x, classes = some(*shape)
    x = 1e-3 * x
    y = targets(classes, 4)
    plain = SklearnRidge(1e-5, fit_intercept=False, solver="svd").fit(x, y)
    fit = ridge(x, y)
    torch.testing.assert_close(fit.weights(1e-5), torch.from_numpy(plain.coef_).mT)
    torch.testing.assert_close(fit.basis @ fit.coordinates(1e-5), fit.weights(1e-5))


@pytest.mark.parametrize("shape", SHAPES)
def test_no_eigenvalue_is_negative(shape):
    x, classes = some(*shape)
    x = (x[:, :3] @ x[:3]).float()  # of rank 3: the other eigenvalues are rounding
    assert eigh(x @ x.mT)[0].min() < 0 and eigh(x.mT @ x)[0].min() < 0
    assert ridge(x, targets(classes, 4).float()).eigenvalues.min() == 0


def test_products_of_rows_are_around_the_mean_and_add(monkeypatch):
    monkeypatch.setattr("vitkit.evaluation.probes.ridge.COLUMNS", 7)
    x, _ = some(12, 40)
    around = x - x.mean(0)
    torch.testing.assert_close(row_products(x.float()), around @ around.mT, rtol=1e-5, atol=1e-5)
    together = row_products(x[:, :9]) + row_products(x[:, 9:])
    torch.testing.assert_close(row_products(x), together)


def test_eigenvectors_of_float32_are_those_of_lapacks_ssyevd():
    x, _ = some(30, 12)
    symmetric = (x.mT @ x).float()
    values, vectors = scipy.linalg.eigh(symmetric.numpy(), driver="evd")
    assert torch.equal(eigh(symmetric)[0], torch.from_numpy(values))
    assert torch.equal(eigh(symmetric)[1], torch.from_numpy(vectors))
    assert eigh(symmetric.double())[0].dtype == torch.float64
