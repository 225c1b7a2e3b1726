import pytest
from contracts import contract

from exporter.archive.tensor_spec import TensorSpec
from exporter.archive.variable_renaming import RenameRule, rename_variables
from exporter.common.errors import UsageError


def slash_contract():
    names = ["state/a", "state/a~1", "state/b~1", "forces/t"]
    return contract([TensorSpec(n) for n in names], [TensorSpec("state/a_rate")])


def rename(*texts: str):
    return rename_variables(slash_contract(), [RenameRule.parse(t) for t in texts])


def test_a_pattern_renames_all_that_fit_and_methods_follow():
    new = rename("state/*~1:old_state/*")
    assert [s.name for s in new.inputs] == ["state/a", "old_state/a", "old_state/b", "forces/t"]
    assert new.methods["forward"].inputs == ("state/a", "old_state/a", "old_state/b", "forces/t")
    assert new.methods["forward"].outputs == ("state/a_rate",)


def test_the_first_rename_that_fits_counts():
    new = rename("state/a~1:a_old", "state/*~1:old/*")
    assert [s.name for s in new.inputs][1:3] == ["a_old", "old/b"]


@pytest.mark.parametrize("text", ["a", "a:", ":b", "a:b:c", "a:*"])
def test_not_understood(text):
    with pytest.raises(UsageError, match="rename is invalid"):
        RenameRule.parse(text)


def test_matches_nothing():
    with pytest.raises(UsageError, match=r"matches no variable(.|\n)*did you mean 'state/a'"):
        rename("state/aa:x")


@pytest.mark.parametrize("texts", [["state/a~1:state/a"], ["state/*~1:old"], ["state/a~1:x", "forces/t:x"]])
def test_two_names_become_equal(texts):
    with pytest.raises(UsageError, match="two names equal"):
        rename(*texts)


def test_special_characters_are_themselves():
    assert RenameRule.parse("a.b~1:c").apply("aXb~1") is None
    assert RenameRule.parse("*/*:*.*").apply("state/a") == "state.a"


def test_a_rename_that_others_shadow():
    with pytest.raises(UsageError, match="a rename has no effect"):
        rename("state/a~1:x", "state/a~1:y")
