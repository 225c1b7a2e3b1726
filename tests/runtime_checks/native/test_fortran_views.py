"""The Fortran module of views is what its template gives."""

from __future__ import annotations

import fortran_views


def test_the_module_is_rendered_from_its_template():
    assert fortran_views.MODULE.read_text() == fortran_views.render_views(fortran_views.TEMPLATE.read_text())


def test_a_changed_template_is_seen():
    template = fortran_views.TEMPLATE.read_text().replace("min(2,", "min(1,")
    assert fortran_views.MODULE.read_text() != fortran_views.render_views(template)
