"""How far measured values are from the bounds that tests hold them to.

`make test-slow` prints them as a table at its end, the closest first, so that a bound that holds by luck on
one processor is seen before it fails on another.
"""

import numpy as np
import pytest

CLOSE = 0.9  # of what a bound allows: more needs a reason, or a wider bound
PROPERTY = "margin"  # under which a report carries what its test has measured

_measured = []  # (value, bound, used, why) of the test that is running


def at_most(value, bound, why=""):
    """Assert that a measured value, or the largest of an array, is no larger than a positive bound.

    why: the reason why a value close to the bound does not fail on another processor.
    """
    value = float(np.max(value))
    used = float(value > bound)  # of a bound of 0
    if bound:
        used = value / bound
    _measured.append((value, float(bound), used, why))
    assert value <= bound, f"{value:.6g} is larger than {bound:.6g}"


def at_least(value, bound, best=1.0, why=""):
    """Assert that a measured value, or the smallest of an array, is no smaller than a bound.

    best: the value that nothing exceeds, as 1 of a share.
    why: the reason why a value close to the bound does not fail on another processor.
    """
    value = float(np.min(value))
    used = float(value < bound)  # if nothing less than the best is accepted
    if best != bound:
        used = (best - value) / (best - bound)
    _measured.append((value, float(bound), used, why))
    assert value >= bound, f"{value:.6g} is smaller than {bound:.6g}"


def watch(patch):
    """Measure what NumPy's and PyTorch's own assertions allow, too, as long as the patch holds."""
    import torch

    numpys = np.testing.assert_allclose
    pytorchs = torch.testing.assert_close

    def assert_allclose(actual, desired, rtol=1e-7, atol=0, **options):
        _measure(actual, desired, rtol, atol)
        numpys(actual, desired, rtol=rtol, atol=atol, **options)

    def assert_close(actual, expected, **options):
        if isinstance(actual, torch.Tensor) and "atol" in options:
            given = actual.detach().double().cpu().numpy()
            wanted = torch.as_tensor(expected).detach().double().cpu().numpy()
            _measure(given, wanted, options["rtol"], options["atol"])
        pytorchs(actual, expected, **options)

    patch.setattr(np.testing, "assert_allclose", assert_allclose)
    patch.setattr(torch.testing, "assert_close", assert_close)


def _measure(actual, desired, rtol, atol):
    """Add the number that is closest to what these tolerances allow."""
    if np.iscomplexobj(actual) or np.iscomplexobj(desired):
        return
    actual = np.asarray(actual, dtype=np.float64)
    desired = np.asarray(desired, dtype=np.float64)
    if actual.shape != desired.shape:
        return
    with np.errstate(invalid="ignore"):  # infinite numbers may be equal
        difference = np.abs(actual - desired).ravel()
        allowed = (atol + rtol * np.abs(desired)).ravel()
    counts = np.isfinite(difference) & (allowed > 0)
    if not counts.any():
        return
    difference = difference[counts]
    allowed = allowed[counts]
    worst = int((difference / allowed).argmax())
    _measured.append((difference[worst], allowed[worst], difference[worst] / allowed[worst], ""))


# Hooks of pytest; conftest.py has them by name


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item, call):
    """Hand what a test has measured to its report, which goes to the process that prints."""
    if call.when == "call":
        for value, bound, used, why in _measured:
            row = [float(value), float(bound), float(used), why]
            item.user_properties.append((PROPERTY, row))
        _measured.clear()


def pytest_terminal_summary(terminalreporter, config):
    """Print the table after a run of the slow tests."""
    if config.option.markexpr != "slow":
        return
    rows = rows_of(terminalreporter.stats.get("passed", []))
    if not rows:
        return
    terminalreporter.section("measured values and their bounds, the closest first")
    terminalreporter.write_line(f"{'used':>6} {'value':>10} {'bound':>10}  test")
    for used, value, bound, test, why in rows:
        line = f"{used:>6.0%} {value:>10.4g} {bound:>10.4g}  {test}"
        if why:
            line += f"  ({why})"
        elif used > CLOSE:
            line += "  (CLOSE: give a reason, or a wider bound)"
        terminalreporter.write_line(line)


def rows_of(reports):
    """(used, value, bound, test, why) of each test, for what it has measured closest to a bound
    without a reason; the closest test first."""
    closest = {}
    for report in reports:
        for name, value in report.user_properties:
            if name != PROPERTY:
                continue
            measured, bound, used, why = value
            row = (used, measured, bound, report.nodeid, why)
            key = (report.nodeid, bool(why))
            closest[key] = max(closest.get(key, row), row)
    return sorted(closest.values(), reverse=True)
