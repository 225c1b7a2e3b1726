"""The registry of formats names the backend that writes each."""

from __future__ import annotations

import pytest

from exporter.archive.formats import FORMATS
from exporter.backends.backend import load_backend
from exporter.common.errors import UsageError


@pytest.mark.parametrize("name", [name for name, line in FORMATS.items() if line.backend])
def test_a_line_names_the_backend_that_writes_it(name):
    backend = load_backend(name)
    assert backend.format is FORMATS[name]
    assert callable(backend.require)
    assert callable(backend.write)


def test_an_archive_is_written_from_no_archive():
    with pytest.raises(UsageError, match="another container") as caught:
        load_backend("pt")
    assert caught.value.details["expected"] == "onnx, pt2, program, c, cuda"
