"""Units as texts: what they mean, and what is not one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.common.units import divide_units, find_conversion, is_known

UNITS = ["MPa", "Pa", "N/mm^2", "N mm-2", "kg m-3", "g/cm**3", "1/s", "Hz", "K", "degC", "1", "%", "J/(kg K)", "µm"]


@pytest.mark.parametrize(
    ("unit", "wanted", "factor", "offset"),
    [
        ("Pa", "MPa", 1e-6, 0),
        ("N/mm^2", "MPa", 1, 0),
        ("N mm-2", "MPa", 1, 0),
        ("N.mm^-2", "MPa", 1, 0),
        ("kg m-3", "g/cm**3", 1e-3, 0),
        ("(m^2)^2", "m^4", 1, 0),
        ("degC", "K", 1, 273.15),
        ("°C", "degC", 1, 0),
        ("MPa/degC", "MPa/K", 1, 0),
        ("rad", "1", 1, 0),
        ("%", "1", 0.01, 0),
        ("mV", "MV", 1e-9, 0),
        ("mm/(mm)", "1", 1, 0),
    ],
)
def test_conversions(unit, wanted, factor, offset):
    conversion = find_conversion(unit, wanted)
    assert conversion is not None
    assert conversion.factor == pytest.approx(factor, rel=1e-9)
    assert conversion.offset == pytest.approx(offset, rel=1e-9)
    assert conversion.is_identity == (factor == 1 and offset == 0)


@pytest.mark.parametrize(("unit", "wanted"), [("m", "s"), ("MPa", "1"), ("dpa", "MPa"), ("dBm", "mW"), ("1", "dpa")])
def test_no_conversion(unit, wanted):
    assert find_conversion(unit, wanted) is None


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            "/s",
            "m/",
            "m//s",
            "(m",
            "m)",
            "()",
            "m^",
            "m^100",
            "m^9^9",
            "9**9",
            "9^99^99",
            "1e3 kg",
            "12",
            "m 3",
        ),
        *("m**0.5", "H2O", "dpa", "seconds since 2000-01-01", "__import__('os')", "m.__class__", "m; s", "m\ns^"),
    ],
)
def test_what_is_no_unit_fits_itself_alone(text):
    assert not is_known(text)
    conversion = find_conversion(text, text)
    assert conversion is not None
    assert conversion.is_identity
    assert find_conversion(text, "MPa") is None


def test_the_unit_of_a_derivative():
    assert divide_units("MPa", "1") == "MPa"
    assert divide_units("J", "kg K") == "J/(kg K)"
    assert divide_units("MPa", "") == divide_units("", "mm") == ""
    conversion = find_conversion(divide_units("J", "kg K"), "J kg-1 K-1")
    assert conversion is not None
    assert conversion.is_identity


@given(st.sampled_from(UNITS), st.sampled_from(UNITS))
def test_the_way_back_is_the_inverse(unit, wanted):
    there, back = find_conversion(unit, wanted), find_conversion(wanted, unit)
    assert (there is None) == (back is None)
    if there is not None and back is not None:
        assert there.factor * back.factor == pytest.approx(1, rel=1e-9)
        assert there.offset * back.factor + back.offset == pytest.approx(0, abs=1e-6)


@given(st.text("mkgsPa1209 */^.-+()°%e_'\"\\", max_size=500))
def test_any_text_is_answered(text):
    """A stranger's text is no expression: no number is computed from it."""
    assert is_known(text) in (True, False)
