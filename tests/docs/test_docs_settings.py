"""Pages speak of settings and slots that there are."""

import re

import pytest
from pages import ROOT
from zootomy.learners.run_config import RunConfig
from zootomy.learners.settings import setting_kinds
from zootomy.registry import describe, names, slot, slots

PAGES = sorted({ROOT / "README.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/*.md")})
KINDS = setting_kinds(RunConfig)
FLAG = re.compile(r"(?<![\w-])--([a-z_]+(?:[.-][A-Za-z_-]+)+)")
NAME = re.compile(r"`([a-z_]+(?:\.[A-Za-z_]+)+)(?:[:=][^`]*)?`")
# Their entries have any names.
OPEN = ("options", "role_to_mesh", "axis_rules", "role_to_dtype", "engine_arguments")
# Slots and blocks that pages add, and settings of other things under a setting's name.
OTHERS = {"policy_loss.floor", "critic.optimizer"}


def parts() -> set[str]:
    found = {name.rpartition(".")[0] for name in KINDS}
    return {*found, *KINDS, *(place.name for place in slots())}


def hyperparameters(place: str) -> set[str]:
    blocks = names(place) if not slot(place).choices else []
    known = {key for block in blocks for key in describe(place, block).hyperparameters}
    return known | set(slot(place).parameters)


def is_there(name: str) -> bool:
    first, _, rest = name.partition(".")
    if first in {place.name for place in slots()}:
        words = rest.split(".")
        return words[0] in names(first) or words[-1] in hyperparameters(first)
    if first == "reward_models":
        return name.rpartition(".")[2] in ("NAME", "path", "weight", "normalize", "clip")
    on = re.sub(r"(^|\.)no_(\w+)$", r"\1\2", name)
    return bool({name, on} & parts()) or any(f".{one}." in name for one in OPEN)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_setting_on_a_page_is_one(page):
    text = page.read_text(encoding="utf-8")
    heads = {name.partition(".")[0] for name in parts()}
    dotted = [found.replace("-", "_") for found in FLAG.findall(text)] + NAME.findall(text)
    spoken = {name for name in dotted if "." in name and name.partition(".")[0] in heads}
    assert sorted(name for name in spoken - OTHERS if not is_there(name)) == []


def test_a_setting_that_went_would_be_seen():
    assert is_there("rollout.max_new_tokens")
    assert is_there("policy_loss.clip_high")
    assert is_there("model.no_remat")
    assert not is_there("rollout.max_tokens")
    assert not is_there("policy_loss.clip")
    assert not is_there("reward_models.NAME.scale")
