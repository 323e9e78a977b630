"""Which runtime was the fastest is known until something that decides it is another."""

import pytest

from vitkit.runtimes import fastest
from vitkit.runtimes.fastest import was_measured


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """A model of the digest "a" was measured here in float32."""
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path))
    file = fastest._file(fastest._folder("a"), "float32")
    file.parent.mkdir(parents=True)
    file.write_text("{}")


@pytest.mark.parametrize("package", "vitkit torch onnxruntime openvino".split())
def test_another_version_of_a_library_is_measured_anew(measured, monkeypatch, package):
    assert was_measured("a", "float32")
    versions = fastest.version

    def version(name):
        if name == package:
            return "0.0.1"
        return versions(name)

    monkeypatch.setattr(fastest, "version", version)
    assert not was_measured("a", "float32")


def test_another_model_precision_processor_or_number_of_threads_is_measured_anew(
    measured, monkeypatch
):
    assert not was_measured("b", "float32") and not was_measured("a", "bfloat16")
    for fact, other in (("processor", "another"), ("threads", 10_000)):
        with monkeypatch.context() as patch:
            patch.setattr(fastest, fact, lambda other=other: other)
            assert not was_measured("a", "float32")
    assert was_measured("a", "float32")
