"""Specs as data, and the values that a hyperparameter takes or refuses."""

import copy
import pickle
from typing import Literal

import numpy as np
import pytest
from zootomy.registry import (
    BlockSpec,
    UnknownNameError,
    ZootomyError,
    bind,
    block,
    check_spec,
    check_value,
    register,
    setting,
    type_text,
)


def test_equality_hash_and_text_are_by_value():
    one, other = block("x", b=2, a=1.0), block("x", a=1.0, b=2)
    assert one == other
    assert hash(one) == hash(other)
    assert repr(one) == "block('x', a=1.0, b=2)"
    assert repr(block("x")) == "block('x')"
    assert one != block("x", a=1.0)
    assert one != block("y", a=1.0, b=2)
    assert one != "x"
    assert {one, other, block("x")} == {block("x"), one}


def test_a_spec_is_read_only():
    spec = block("x", a=1)
    with pytest.raises(AttributeError, match="a BlockSpec is read-only; make a new one"):
        spec.name = "y"
    with pytest.raises(AttributeError, match="a BlockSpec is read-only; 'name' cannot be deleted"):
        del spec.name
    with pytest.raises(TypeError):
        spec.hyperparameters["a"] = 2
    given = {"a": 1}
    spec = BlockSpec("x", given)
    given["a"] = 2
    assert spec == block("x", a=1)


def test_a_spec_is_pickled_and_copied():
    spec = block("x", a=(1, 2), b=None)
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert copy.deepcopy(spec) == spec


def test_replace_leaves_the_original():
    spec = block("x", a=1)
    assert spec.replace(b=2) == block("x", a=1, b=2)
    assert spec.replace(a=3) == block("x", a=3)
    assert spec == block("x", a=1)


def test_check_spec_fills_in_every_value_and_takes_the_own_name():
    assert check_spec("kl_estimator", block("low_var_kl", clamp=10)) == block(
        "k3", clamp=10.0, clamp_out=None, gradient="value"
    )
    # The settings of the slot stand beside the block's own values.
    spec = check_spec("group_filter", block("zero_std"))
    assert spec == block("zero_std", tol=0.0, strategy="drop", max_refills=10, when_short="error")
    assert bind("group_filter", spec) == {"tol": 0.0}
    assert setting("group_filter", spec, "strategy") == "drop"
    assert setting("group_filter", block("zero_std"), "max_refills") == 10


def test_bind_uses_defaults_where_a_spec_is_silent():
    assert bind("policy_loss", block("ppo_clip", clip_high=0.28)) == {
        "clip_low": 0.2,
        "clip_high": 0.28,
        "clamp": 20.0,
    }


def test_a_misspelt_hyperparameter():
    with pytest.raises(UnknownNameError) as error:
        check_spec("policy_loss", block("ppo_clip", clip_hihg=0.28))
    assert str(error.value) == (
        "Unknown hyperparameter of policy_loss 'ppo_clip': 'clip_hihg'. Did you mean 'clip_high'? "
        "Known: clamp, clip_high, clip_low."
    )


def test_a_value_of_another_type():
    with pytest.raises(ZootomyError) as error:
        check_spec("policy_loss", block("ppo_clip", clip_high="wide"))
    assert str(error.value) == "policy_loss.clip_high must be float, got 'wide' (str)."


def test_a_setting_that_must_be_given():
    with pytest.raises(ZootomyError) as error:
        check_spec("regularizer", block("entropy"))
    assert (
        str(error.value) == "regularizer 'entropy' needs 'coef': write block('entropy', coef=...)."
    )


def test_a_setting_is_checked_like_a_hyperparameter():
    assert check_spec("regularizer", block("entropy", coef="1e-3")) == block("entropy", coef=1e-3)
    with pytest.raises(ZootomyError) as error:
        check_spec("regularizer", block("entropy", coef=True))
    assert str(error.value) == "regularizer.coef must be float or a block, got True (bool)."
    with pytest.raises(ZootomyError) as error:
        check_spec("group_filter", block("zero_std", strategy="refil"))
    assert str(error.value) == (
        "group_filter.strategy must be 'drop' or 'refill' or 'replace', got 'refil' (str)."
    )
    with pytest.raises(ZootomyError) as error:
        check_spec("group_filter", block("zero_std", max_refills=2.5))
    assert str(error.value) == "group_filter.max_refills must be int, got 2.5 (float)."


Choice = Literal["a", 1]


@pytest.mark.parametrize(
    ("annotation", "given", "expected"),
    [
        (float, 1, 1.0),
        (float, "3e-4", 3e-4),  # what yaml.safe_load makes of 3e-4
        (float, "inf", float("inf")),
        (float, np.float32(0.5), 0.5),
        (int, "12", 12),
        (int, np.int64(3), 3),
        (bool, False, False),
        (str, "5", "5"),
        (float | None, None, None),
        (float | None, "0.5", 0.5),
        (float | None, 2, 2.0),
        (int | float, 2, 2),  # exactly an int: it stays one
        (int | float, 2.5, 2.5),
        (int | str, "5", "5"),  # exactly a str: it stays one
        (bool | float, True, True),
        (tuple[float, ...], [1, "2"], (1.0, 2.0)),
        (tuple[float, ...], (), ()),
        (tuple[int, str], [1, "x"], (1, "x")),
        (Choice, "a", "a"),
        (Choice, 1, 1),
        (Literal["a"] | None, None, None),
    ],
)
def test_a_value_that_fits(annotation, given, expected):
    value = check_value(given, annotation, "x")
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("annotation", "given", "text"),
    [
        (float, True, "x must be float, got True (bool)."),
        (float, None, "x must be float, got None (NoneType)."),
        (float, float("nan"), "x must be float, got nan (not a number)."),
        (float, "nan", "x must be float, got 'nan' (str)."),
        (float, [1.0], "x must be float, got [1.0] (list)."),
        (int, True, "x must be int, got True (bool)."),
        (int, 2.0, "x must be int, got 2.0 (float)."),
        (int, "2.0", "x must be int, got '2.0' (str)."),
        (bool, 1, "x must be bool, got 1 (int)."),
        (bool, "true", "x must be bool, got 'true' (str)."),
        (str, 5, "x must be str, got 5 (int)."),
        (float | None, "much", "x must be float or None, got 'much' (str)."),
        (tuple[int, str], [1], "x must be tuple[int, str], got [1] (list)."),
        (tuple[float, ...], 1.0, "x must be tuple[float, ...], got 1.0 (float)."),
        (Choice, True, "x must be 'a' or 1, got True (bool)."),
        (Choice, "b", "x must be 'a' or 1, got 'b' (str)."),
    ],
)
def test_a_value_that_does_not_fit(annotation, given, text):
    with pytest.raises(ZootomyError) as error:
        check_value(given, annotation, "x")
    assert str(error.value) == text


def test_types_as_a_person_says_them():
    assert type_text(float | None) == "float or None"
    assert type_text(None) == "None"
    assert type_text(Literal["value", "k2"]) == "'value' or 'k2'"
    assert type_text(tuple[int, ...]) == "tuple[int, ...]"


@pytest.mark.usefixtures("clean_registry")
def test_none_tuples_and_literals_as_hyperparameters():
    @register("whitening", "rich")
    def rich(
        advantages,
        mask,
        *,
        bounds: tuple[float, float] = (0.0, 1.0),
        cap: float | None = None,
        kind: Literal["soft", "hard"] = "soft",
        flags: tuple[str, ...] = (),
    ):
        return advantages

    spec = check_spec("whitening", block("rich", bounds=[0, "1e-1"], cap=3, kind="hard"))
    assert spec == block("rich", bounds=(0.0, 0.1), cap=3.0, flags=(), kind="hard")
    assert hash(spec) == hash(pickle.loads(pickle.dumps(spec)))
    with pytest.raises(ZootomyError) as error:
        check_spec("whitening", block("rich", kind="softer"))
    assert str(error.value) == "whitening.kind must be 'soft' or 'hard', got 'softer' (str)."
