"""Registering a block, asking for it, and every way in which that can go wrong."""

import functools
from typing import TYPE_CHECKING, Any, Literal

import jax
import pytest
from zootomy import registry
from zootomy.registry import (
    ContractError,
    DuplicateNameError,
    Hyperparameter,
    Slot,
    UnknownNameError,
    ZootomyError,
    add_slot,
    describe,
    find,
    get,
    names,
    register,
    slot,
    slots,
)

if TYPE_CHECKING:
    from decimal import Decimal

pytestmark = pytest.mark.usefixtures("clean_registry")


def where(function) -> str:
    code = function.__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def label(slot_name: str, name: str, function) -> str:
    return f"{slot_name} {name!r} ({function.__module__}.{function.__qualname__})"


@pytest.fixture
def passed_on():
    """A whitening block with one hyperparameter, registered as `passed_on`."""

    @register("whitening", "passed_on", aliases=("handed_on",), paper="arXiv:1", needs=("groups",))
    def passed_on(advantages, mask, *, factor: float = 2.0):
        """Hands the advantages on.

        A' = factor * A
        """
        return factor * advantages

    return passed_on


def test_register_returns_the_function_and_get_finds_it(passed_on):
    assert passed_on(3.0, None) == 6.0
    assert get("whitening", "passed_on") is passed_on
    assert get("whitening", "handed_on") is passed_on


def test_describe_knows_what_the_signature_and_the_docstring_say(passed_on):
    info = describe("whitening", "handed_on")
    assert (info.slot, info.name, info.aliases) == ("whitening", "passed_on", ("handed_on",))
    assert info.summary == "Hands the advantages on."
    assert info.paper == "arXiv:1"
    assert info.needs == frozenset({"groups"})
    assert info.extras == ()
    assert info.hyperparameters == {"factor": Hyperparameter("factor", float, 2.0)}
    assert find("whitening", "passed_on") == info.where == where(passed_on)
    assert str(info) == (
        "whitening passed_on: Hands the advantages on.\n"
        "  also called: handed_on\n"
        "  paper: arXiv:1\n"
        "  needs: groups\n"
        "      A' = factor * A\n"
        "  factor: float = 2.0\n"
        f"  defined in {where(passed_on)}"
    )


def test_a_block_without_documentation_has_an_empty_summary():
    @register("whitening", "bare")
    def bare(advantages, mask):
        return advantages

    assert describe("whitening", "bare").summary == ""


def test_names_are_sorted_and_take_a_pattern(passed_on):
    assert names("aggregation") == sorted(names("aggregation"))
    assert names("whitening", "pass*") == ["passed_on"]
    assert names("whitening", "no_such*") == []
    assert names("kl_placement") == ["advantage", "loss", "none", "reward"]


def test_unknown_slot():
    known = ", ".join(sorted(entry.name for entry in slots()))
    text = f"Unknown slot 'polcy_los'. Did you mean 'policy_loss'? Known: {known}."
    for ask in (
        lambda: get("polcy_los", "ppo_clip"),
        lambda: names("polcy_los"),
        lambda: slot("polcy_los"),
        lambda: register("polcy_los", "mine"),
    ):
        with pytest.raises(UnknownNameError) as error:
            ask()
        assert str(error.value) == text


def test_unknown_block_with_a_close_match():
    known = ", ".join(names("whitening"))
    with pytest.raises(UnknownNameError) as error:
        get("whitening", "batc")
    assert (
        str(error.value) == f"Unknown whitening block 'batc'. Did you mean 'batch'? Known: {known}."
    )


def test_unknown_block_without_a_close_match():
    known = ", ".join(names("whitening"))
    with pytest.raises(UnknownNameError) as error:
        find("whitening", "zzz")
    assert str(error.value) == f"Unknown whitening block 'zzz'. Known: {known}."


def test_unknown_name_in_an_empty_slot():
    add_slot(Slot("dessert", "What comes last?"))
    with pytest.raises(UnknownNameError, match=r"^Unknown dessert block 'cake'. Known: none.$"):
        get("dessert", "cake")


def test_every_error_of_a_user_is_a_value_error():
    for kind in (UnknownNameError, DuplicateNameError, ContractError):
        assert issubclass(kind, ZootomyError)
    assert issubclass(ZootomyError, ValueError)


def test_a_duplicate_names_both_places(passed_on):
    def again(advantages, mask):
        return advantages

    with pytest.raises(DuplicateNameError) as error:
        register("whitening", "passed_on")(again)
    assert str(error.value) == (
        f"whitening 'passed_on' is registered twice: {where(passed_on)} and {where(again)}. "
        "Choose another name, or pass replace=True."
    )
    assert get("whitening", "passed_on") is passed_on


@pytest.mark.parametrize("replace", [False, True])
def test_an_alias_of_another_block_cannot_be_taken(passed_on, replace):
    def again(advantages, mask):
        return advantages

    with pytest.raises(DuplicateNameError) as error:
        register("whitening", "handed_on", replace=replace)(again)
    # Here replace=True is no way out, so it is not offered.
    assert str(error.value) == (
        f"whitening 'handed_on' is registered twice: {where(passed_on)} and {where(again)}. "
        "Choose another name."
    )
    with pytest.raises(DuplicateNameError, match="whitening 'passed_on' is registered twice"):
        register("whitening", "other", aliases=("passed_on",), replace=replace)(again)
    assert "other" not in names("whitening")


def test_replace_takes_the_place_and_the_aliases_go(passed_on):
    @register("whitening", "passed_on", replace=True)
    def again(advantages, mask):
        return advantages

    assert get("whitening", "passed_on") is again
    with pytest.raises(UnknownNameError, match="Unknown whitening block 'handed_on'"):
        get("whitening", "handed_on")


def test_replace_without_anything_to_replace():
    @register("whitening", "fresh", replace=True)
    def fresh(advantages, mask):
        return advantages

    assert get("whitening", "fresh") is fresh


def test_the_same_name_in_another_slot_is_another_block():
    @register("ratio", "batch")
    def batch(logp, old_logp, mask):
        return logp

    assert get("ratio", "batch") is not get("whitening", "batch")


def test_a_slot_that_takes_a_word_takes_no_function():
    with pytest.raises(ContractError) as error:
        register("kl_placement", "mine")
    assert str(error.value) == (
        "Slot 'kl_placement' takes a word (none, reward, loss, advantage) and no function."
    )


def test_wrong_positional_names():
    def swapped(mask, advantages, *, factor: float = 1.0):
        return advantages

    with pytest.raises(ContractError) as error:
        register("whitening", "swapped")(swapped)
    assert str(error.value) == (
        f"{label('whitening', 'swapped', swapped)} must take "
        "(advantages, mask, *, hyperparameters), but takes (mask, advantages, *, ...)."
    )


def test_a_hyperparameter_that_is_not_keyword_only():
    def positional(advantages, mask, factor: float = 1.0):
        return advantages

    with pytest.raises(ContractError) as error:
        register("whitening", "positional")(positional)
    assert str(error.value) == (
        f"{label('whitening', 'positional', positional)} must take "
        "(advantages, mask, *, hyperparameters), but takes (advantages, mask, factor, *, ...)."
    )


def test_star_arguments_would_swallow_typos():
    def stars(advantages, mask, *rest):
        return advantages

    def two_stars(advantages, mask, **options):
        return advantages

    for function, shown in ((stars, "*rest"), (two_stars, "**options")):
        with pytest.raises(ContractError) as error:
            register("whitening", "starry")(function)
        assert str(error.value) == (
            f"{label('whitening', 'starry', function)} takes {shown}, which would swallow typos; "
            "name every hyperparameter."
        )


def test_an_extra_input_is_supplied_and_no_hyperparameter():
    @register("whitening", "by_group")
    def by_group(advantages, mask, *, group_ids, eps: float = 1e-8):
        return advantages

    info = describe("whitening", "by_group")
    assert info.extras == ("group_ids",)
    assert list(info.hyperparameters) == ["eps"]


def test_an_extra_input_that_the_slot_does_not_have():
    def wants(rewards, info, *, entropy):
        return rewards

    with pytest.raises(ContractError) as error:
        register("reward_shaping", "wants")(wants)
    assert str(error.value) == (
        f"{label('reward_shaping', 'wants', wants)}: 'entropy' has no default and is no input "
        "that reward_shaping can have (none). Give it a default to make it a hyperparameter."
    )


def test_a_slots_own_input_is_no_extra():
    assert "mask" not in slot("whitening").extras
    assert "mask" in slot("kl_estimator").extras


def test_a_hyperparameter_without_a_type():
    def untyped(advantages, mask, *, factor=1.0):
        return advantages

    with pytest.raises(ContractError) as error:
        register("whitening", "untyped")(untyped)
    assert str(error.value) == (
        f"{label('whitening', 'untyped', untyped)}: hyperparameter 'factor' has no type; "
        "write `factor: float = ...`."
    )


def test_a_default_of_the_wrong_type():
    def wrong(advantages, mask, *, factor: float = None):  # noqa: RUF013
        return advantages

    with pytest.raises(ContractError) as error:
        register("whitening", "wrong")(wrong)
    assert str(error.value) == (
        f"{label('whitening', 'wrong', wrong)}: the default of 'factor' is None, "
        "which is not float."
    )


@pytest.mark.parametrize(
    ("annotation", "default", "shown"),
    [(list[float], [1.0], "list[float]"), (dict, {}, "dict"), (Any, 1, "Any")],
)
def test_a_type_that_a_spec_cannot_hold(annotation, default, shown):
    def holder(advantages, mask, *, values=default):
        return advantages

    holder.__annotations__["values"] = annotation
    with pytest.raises(ContractError) as error:
        register("whitening", "holder")(holder)
    assert str(error.value) == (
        f"{label('whitening', 'holder', holder)}: hyperparameter 'values' is of type {shown}, "
        "which a spec cannot hold; use float, int, bool, str, None, Literal[...], tuple[...] or "
        "a union of these."
    )


def test_a_type_that_cannot_be_read():
    def hidden(advantages, mask, *, factor: "Decimal" = 1):
        return advantages

    with pytest.raises(ContractError) as error:
        register("whitening", "hidden")(hidden)
    assert str(error.value) == (
        f"{label('whitening', 'hidden', hidden)}: its types cannot be read (NameError: name "
        "'Decimal' is not defined). Import what the signature names, outside of "
        "`if TYPE_CHECKING:`."
    )


def test_a_clash_with_a_setting_of_the_slot():
    def clashing(logp, ref_logp, entropy, advantages, mask, *, coef: float = 1.0):
        return logp

    with pytest.raises(ContractError) as error:
        register("regularizer", "clashing")(clashing)
    assert str(error.value) == (
        f"{label('regularizer', 'clashing', clashing)}: 'coef' is a setting of the slot "
        "regularizer; use another name."
    )


def test_a_hyperparameter_called_name():
    def named(advantages, mask, *, name: str = "x"):
        return advantages

    with pytest.raises(ContractError) as error:
        register("whitening", "named")(named)
    assert str(error.value) == (
        f"{label('whitening', 'named', named)}: a hyperparameter cannot be called 'name', which "
        "names the block in a spec."
    )


def test_what_is_no_function():
    def double(advantages, mask, *, factor: float = 2.0):
        return advantages

    half = functools.partial(double, factor=0.5)
    with pytest.raises(ContractError) as error:
        register("whitening", "half")(half)
    assert str(error.value) == f"whitening 'half' must be a function, got {half!r}."


def test_a_jitted_function_is_a_function():
    def double(advantages, mask, *, factor: float = 2.0):
        """Doubles."""
        return factor * advantages

    jitted = register("whitening", "jitted")(jax.jit(double))
    assert find("whitening", "jitted") == where(double)
    assert float(jitted(2.0, 1.0)) == 4.0


def test_a_bare_string_is_no_tuple_of_names():
    with pytest.raises(ContractError) as error:
        register("whitening", "mine", aliases="other")
    assert str(error.value) == (
        "whitening 'mine': aliases must be a tuple, got 'other'; write ('other',)."
    )
    with pytest.raises(ContractError, match="needs must be a tuple, got 'critic'"):
        register("whitening", "mine", needs="critic")


@pytest.mark.parametrize("name", ["", "my block", "a.b", "a+b", "a=b", 3])
def test_what_is_no_name(name):
    text = (
        f"whitening: {name!r} is no name for a block; use a word without '.', '+', '=' and spaces."
    )
    with pytest.raises(ContractError) as error:
        register("whitening", name)
    assert str(error.value) == text
    with pytest.raises(ContractError) as error:
        register("whitening", "mine", aliases=(name,))
    assert str(error.value) == text


def test_a_slot_of_ones_own():
    coefficient = Hyperparameter("strength", Literal["weak", "strong"], "weak")
    mine = add_slot(Slot("topping", "What on top?", ("x",), parameters={"strength": coefficient}))
    assert slot("topping") is mine
    assert slots()[-1] is mine

    @register("topping", "cream")
    def cream(x, *, amount: int = 1):
        return x

    spec = registry.check_spec("topping", registry.block("cream", amount=2))
    assert spec == registry.block("cream", amount=2, strength="weak")
    assert registry.bind("topping", spec) == {"amount": 2}
    assert registry.setting("topping", spec, "strength") == "weak"
    with pytest.raises(ZootomyError) as error:
        registry.check_spec("topping", registry.block("cream", strength="bitter"))
    assert str(error.value) == ("topping.strength must be 'weak' or 'strong', got 'bitter' (str).")


def test_a_slot_that_exists_or_repeats_an_input():
    with pytest.raises(DuplicateNameError) as error:
        add_slot(Slot("ratio", "?"))
    assert str(error.value) == "Slot 'ratio' exists already; choose another name."
    with pytest.raises(ZootomyError) as error:
        add_slot(Slot("twice", "?", ("x", "y"), extras=("x",)))
    assert str(error.value) == "Slot 'twice' names an input twice: x, y, x."


def test_a_registration_of_a_test_is_undone():
    # The fixtures above registered blocks and slots of these names in tests that ran before.
    assert "passed_on" not in names("whitening")
    assert "topping" not in {entry.name for entry in slots()}
