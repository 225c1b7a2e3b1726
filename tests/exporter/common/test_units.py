"""Units as texts: what they mean, and what is not one."""

from __future__ import annotations

import math
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from project import ROOT

from exporter.common.units import _DIFFERENCES, divide_units, find_conversion, is_known, spell_in_ascii

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
        ("N⋅m", "N m", 1, 0),
        ("m2.s-1", "m^2/s", 1, 0),
        ("kg.m-1.s-2", "Pa", 1, 0),
        ("m^0.1 m^0.2", "m^0.3", 1, 0),
        ("dimensionless", "1", 1, 0),
        ("MPa/(dimensionless)", "MPa", 1, 0),
        ("curie", "Bq", 3.7e10, 0),
        ("J/kg K", "J K/kg", 1, 0),
        ("J/(kg K)", "J kg-1 K-1", 1, 0),
        ("m s⁻²", "m/s^2", 1, 0),
        ("MPa m^0.5", "MPa*m**0.5", 1, 0),
        ("metres", "m", 1, 0),
        ("ms", "s", 1e-3, 0),
        ("degrees_celsius", "degC", 1, 0),
        ("rad/s", "1/s", 1, 0),
        ("Hz", "1/s", 1, 0),
        ("deg", "rad", 0.017453292519943295, 0),
        ("psi", "MPa", 0.006894757293168361, 0),
    ],
)
def test_conversions(unit, wanted, factor, offset):
    conversion = find_conversion(unit, wanted)
    assert conversion is not None
    assert conversion.factor == pytest.approx(factor, rel=1e-9)
    assert conversion.offset == pytest.approx(offset, rel=1e-9)
    assert conversion.is_identity == (factor == 1 and offset == 0)


@pytest.mark.parametrize(
    ("unit", "wanted"),
    [("m", "s"), ("MPa", "1"), ("dpa", "MPa"), ("dBm", "mW"), ("1", "dpa"), ("m", "m^2"),
     ("rad/s", "Hz"), ("rpm", "Hz"), ("Bq", "Hz"), ("Gy", "Sv"), ("Pas", "Pa"), ("mPas", "mPa"), ("Nm", "N m"),
     ("mb", "hPa"), ("kNm", "kN m"), ("rps", "Hz"), ("cps", "Bq"), ("rem", "cGy"), ("lm", "cd"), ("deg C", "degC")],
)  # fmt: skip
def test_no_conversion(unit, wanted):
    """Of one dimension may be what is counted differently, and what pint reads as nobody means it."""
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
            "Nm",
            "kNm",
            "m\u0663",
            "deg C",
            "mb",
            "Pas",
        ),
        *(
            "m^0",
            "g0",
            "m^61",
            "(m^9)^9",
            "½",
            "m(^2)",
            "(^2 m)",
            "1.5",
            "m*^2",
            "H2O",
            "dpa",
            "seconds since 2000-01-01",
            "__import__('os')",
            "m.__class__",
            "m; s",
            "m\ns^",
        ),
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
    # A slope in degrees has no zero of its own.
    assert [divide_units("degC", "1"), divide_units("MPa", "°C"), divide_units("degF", "s")] == [
        "K",
        "MPa/(K)",
        "degR/(s)",
    ]
    conversion = find_conversion(divide_units("J", "kg K"), "J kg-1 K-1")
    assert conversion is not None
    assert conversion.is_identity


def test_the_native_library_has_the_same_differences():
    text = (ROOT / "runtime_checks" / "native" / "src" / "contract.cpp").read_text()
    function = text.partition("std::string of_difference")[2].partition("\n}\n")[0].replace("\\u00b0", "°")
    natively = dict.fromkeys(re.findall('"([^"]+)"', function.partition("fahrenheit")[0]), "K")
    natively |= dict.fromkeys(re.findall('"([^"]+)"', function.partition("fahrenheit")[2].partition("}")[0]), "degR")
    assert natively == _DIFFERENCES
    assert all(is_known(unit) for unit in natively)


@given(st.sampled_from(UNITS), st.sampled_from(UNITS))
def test_the_way_back_is_the_inverse(unit, wanted):
    there, back = find_conversion(unit, wanted), find_conversion(wanted, unit)
    assert (there is None) == (back is None)
    if there is not None and back is not None:
        assert there.factor * back.factor == pytest.approx(1, rel=1e-9)
        assert there.offset * back.factor + back.offset == pytest.approx(0, abs=1e-6)


@given(st.text("mkgsPain1290 */^.-+()°%e_'\"\\²⁹⁻", max_size=500))
def test_any_text_is_answered(text):
    """A stranger's text is no expression."""
    assert is_known(text) in (True, False)
    conversion = find_conversion(text, "s")
    assert conversion is None or math.isfinite(conversion.factor)


POWERS = "min" + "^99)" * 5
HOSTILE = {
    "powers of powers": f"s*{'(' * 5}{POWERS}/{'(' * 5}{POWERS.replace('min', 's')}",
    "a superscript": "s*min⁹⁹⁹⁹⁹⁹⁹⁹⁹/s⁹⁹⁹⁹⁹⁹⁹⁹⁹",
    "many factors": "s" + " min^60" * 40 + "/min^60" * 40,
    "prefixes": "kilo" * 20_000,
    "a long name": "m" * 10**6,
    "plurals": "m" + "s" * 20_000,
    "brackets": "(" * 10**5 + "s" + ")" * 10**5,
    "the same": "Y" * 41,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_text_costs_nothing(text):
    """Pint would compute powers of sixty for ever, or search the square of the length."""
    # pint loads its units once, which is not what is measured.
    assert is_known("s")
    begun = time.process_time()
    assert find_conversion(text, "s") is None
    assert time.process_time() - begun < 1.0


def test_units_in_ascii():
    spelled = [spell_in_ascii(unit) for unit in ("°C", "µm", "m²", "m^²", "kg m⁻³", "Ω", "N⋅m", "MPa")]
    assert spelled == ["degC", "um", "m^2", "m^2", "kg m^-3", "ohm", "N m", "MPa"]
