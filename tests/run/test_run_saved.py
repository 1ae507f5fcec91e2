"""A role's source may be a run of ours, or one of its checkpoints."""

import shutil
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zootomy as z
from flax import nnx
from run_kit import ALGORITHM, QUIET, assert_same_weights, config, log, train_interrupted, weights
from zootomy.clusters.naming import named_leaves
from zootomy.learners import EvaluationConfig
from zootomy.learners.role_config import (
    CriticConfig,
    ModelSource,
    ReferenceConfig,
    RewardModelConfig,
)
from zootomy.learners.run import evaluate_folder, train
from zootomy.learners.run_config import CheckpointConfig
from zootomy.learners.saved import (
    find_saved,
    load_policy,
    load_scalar,
    origin,
    pinned,
    source_config,
)
from zootomy.models import (
    PRESETS,
    LoraConfig,
    RewardModel,
    ValueModel,
    load_model,
    named_arrays,
    save_model,
)


def same(model, folder: Path):
    for name, array in named_arrays(model):
        np.testing.assert_array_equal(weights(folder)[name], array, err_msg=name)


def test_a_run_is_its_newest_checkpoint(uninterrupted):
    assert find_saved(uninterrupted).step == 5
    # What the run wrote as a Hugging Face folder is what its last checkpoint holds.
    same(load_policy(str(uninterrupted)), uninterrupted)
    same(load_policy(str(uninterrupted / "checkpoints" / "5")), uninterrupted)
    assert find_saved(uninterrupted / "checkpoints") == find_saved(uninterrupted)
    assert pinned(str(uninterrupted / "checkpoints")) == str(uninterrupted / "checkpoints" / "5")
    assert source_config(uninterrupted / "checkpoints") == source_config(uninterrupted)
    earlier = dict(named_arrays(load_policy(str(uninterrupted / "checkpoints" / "4"))))
    assert any(not np.array_equal(weights(uninterrupted)[name], x) for name, x in earlier.items())
    assert source_config(uninterrupted) == load_model(uninterrupted / "model").config
    assert origin(str(uninterrupted)) == ""
    assert origin("models/some") == "models/some"


def test_a_checkpoint_is_examined_as_that_of_its_run(uninterrupted):
    step = uninterrupted / "checkpoints" / "4"
    with pytest.raises(z.ZootomyError) as caught:
        evaluate_folder(step, {})
    assert str(caught.value) == (
        f"{str(step)!r} is no run folder: it has no run.yaml. Name {str(uninterrupted)!r}, and the "
        f"checkpoint with --model."
    )


def test_it_is_made_in_its_place_and_dtype(uninterrupted):
    place = z.ClusterConfig(mesh="fsdp=2,tensor=2", axis_rules={"vocab": "none"}).placement("actor")
    model = load_policy(str(uninterrupted), param_dtype="bfloat16", place=place.parameter)
    kernel = model.layers[0].mlp.gate_proj.kernel[...]
    assert kernel.dtype == jnp.bfloat16
    rows, columns = kernel.shape
    assert {x.data.shape for x in kernel.addressable_shards} == {(rows // 2, columns // 2)}
    plain = load_policy(str(uninterrupted)).layers[0].mlp.gate_proj.kernel[...]
    np.testing.assert_array_equal(np.asarray(kernel), np.asarray(plain.astype(jnp.bfloat16)))


def test_the_critic_is_that_of_the_run(uninterrupted):
    critic = load_scalar(str(uninterrupted), ValueModel)
    assert np.abs(np.asarray(critic.score.kernel[...])).max() > 0
    policy = dict(named_arrays(load_policy(str(uninterrupted))))
    body = critic.backbone.embed_tokens.embedding[...]
    assert not np.array_equal(body, policy["model.embed_tokens.weight"])


def test_every_role_from_a_checkpoint(uninterrupted, tmp_path):
    source = str(uninterrupted / "checkpoints" / "4")
    run = replace(
        config(tmp_path / "run", steps=1),
        model=ModelSource(path=source),
        reference=ReferenceConfig(path=str(uninterrupted)),
        critic=CriticConfig(path=source, fresh_head=True),
        reward_models={"judge": RewardModelConfig(path=source, weight=0.1, normalize=True)},
        warmup=replace(config(tmp_path).warmup, steps=0),
    )
    train(ALGORITHM, run, console=QUIET)
    (line,) = [entry for entry in log(tmp_path / "run") if entry["step"] == 1]
    assert line["kl"] != 0
    assert abs(line["reward/judge/raw_mean"]) > 0
    assert line["reward/judge/running_mean"] == pytest.approx(line["reward/judge/raw_mean"])
    changes = {"evaluation.size": 4}
    found = evaluate_folder(uninterrupted, changes, model=source)
    assert found.keys() == evaluate_folder(uninterrupted, changes).keys()


def test_a_critic_of_other_sizes_than_the_actor(tmp_path):
    """The run's critic comes from a folder with narrower layers; it is read back as it is."""
    narrow = replace(PRESETS["tiny"], vocab_size=17, intermediate_size=24)
    save_model(RewardModel(narrow, rngs=nnx.Rngs(0)), tmp_path / "narrow")
    run = replace(
        config(tmp_path / "run", steps=1), critic=CriticConfig(path=str(tmp_path / "narrow"))
    )
    train(ALGORITHM, run, console=QUIET)
    critic = load_scalar(str(tmp_path / "run"), ValueModel)
    assert critic.backbone.layers[0].mlp.gate_proj.kernel.shape[1] == 24
    assert source_config(tmp_path / "run", scalar=True).intermediate_size == 24
    assert source_config(tmp_path / "run").intermediate_size != 24


def test_who_scores_stays_the_same_when_its_run_goes_on(copied, tmp_path):
    def scored(steps):
        judge = {"judge": RewardModelConfig(path=str(copied))}
        return replace(config(tmp_path / "scored", steps=steps), reward_models=judge)

    train(z.algorithm("rloo"), scored(1), console=QUIET)
    text = (tmp_path / "scored" / "run.yaml").read_text()
    assert f"path: {copied}/checkpoints/5\n" in text
    (copied / "checkpoints" / "5").rename(copied / "checkpoints" / "6")
    with pytest.raises(z.ZootomyError) as caught:
        train(z.algorithm("rloo"), scored(2), resume=True, console=QUIET)
    was, now = f"{copied}/checkpoints/5", f"{copied}/checkpoints/6"
    assert f"  reward_models.judge.path: {was!r} → {now!r}\n" in str(caught.value)


def test_a_run_with_adapters_and_a_shared_critic(tmp_path):
    """The checkpoint holds adapters and a head; the backbone is in a folder beside it."""

    def adapted(folder):
        return replace(
            config(folder, steps=2),
            checkpoint=CheckpointConfig(every=1),
            evaluation=EvaluationConfig(every=0, size=2),
            critic=CriticConfig(shared=True),
            lora=LoraConfig(rank=2, pattern=r".*\.(q|v)_proj"),
        )

    train(ALGORITHM, adapted(tmp_path / "whole"), console=QUIET)
    train_interrupted(ALGORITHM, adapted(tmp_path / "cut"), after=1)
    train(ALGORITHM, adapted(tmp_path / "cut"), resume=True, console=QUIET)
    assert_same_weights(tmp_path / "cut", tmp_path / "whole")
    assert log(tmp_path / "cut") == log(tmp_path / "whole")
    same(load_policy(str(tmp_path / "whole")), tmp_path / "whole")
    critic = load_scalar(str(tmp_path / "whole"), ValueModel)
    assert np.abs(np.asarray(critic.score.kernel[...])).max() > 0
    body = critic.backbone.layers[0].self_attn.q_proj.kernel[...]
    ours = weights(tmp_path / "whole")["model.layers.0.self_attn.q_proj.weight"]
    np.testing.assert_array_equal(np.asarray(body).T, ours)
    # And further, with adapters on what that run has learned.
    again = replace(
        adapted(tmp_path / "again"),
        steps=1,
        model=ModelSource(path=str(tmp_path / "whole")),
        warmup=replace(config(tmp_path).warmup, steps=0),
    )
    train(ALGORITHM, again, console=QUIET)
    backbone = load_model(tmp_path / "again" / "backbone")
    same(backbone, tmp_path / "whole")


@pytest.fixture
def copied(uninterrupted, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(uninterrupted, folder)
    return folder


def spoil(step: Path) -> str:
    """Change a byte of a checkpoint's largest file; returns which."""
    file = max((x for x in step.rglob("*") if x.is_file()), key=lambda x: x.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    return str(file.relative_to(step))


def test_damage_is_named(copied):
    step = copied / "checkpoints" / "5"
    file = spoil(step)
    with pytest.raises(z.ZootomyError) as caught:
        load_policy(str(step))
    assert str(caught.value) == (
        f"The checkpoint {str(step)!r} is damaged: its file {file} has other contents than were "
        f"written. Others of that run: 4."
    )
    # A run's newest is the newest that is whole; which are not is said.
    with pytest.warns(UserWarning, match="is damaged") as warned:
        assert find_saved(copied).step == 4
    assert str(warned[0].message) == (
        f"The checkpoint {str(step)!r} is damaged: its file {file} has other contents than were "
        f"written. That of step 4 is used."
    )
    spoil(copied / "checkpoints" / "4")
    with pytest.raises(z.ZootomyError, match=r"^Every checkpoint in .* is damaged: of that of st"):
        find_saved(copied)


def test_what_is_not_there_is_said(copied):
    with pytest.raises(z.ZootomyError) as caught:
        find_saved(copied / "checkpoints" / "3")
    assert str(caught.value) == (
        f"There is no checkpoint of step 3 in {str(copied / 'checkpoints')!r}; there is: 4, 5."
    )
    shutil.rmtree(copied / "checkpoints")
    with pytest.raises(z.ZootomyError) as caught:
        find_saved(copied)
    assert str(caught.value) == f"The run in {str(copied)!r} has written no checkpoint yet."
    (copied / "run.yaml").unlink()
    assert find_saved(copied) is None
    with pytest.raises(z.ZootomyError) as caught:
        find_saved(copied / "checkpoints" / "5")
    assert str(caught.value) == (
        f"{str(copied / 'checkpoints' / '5')!r} is called like a checkpoint, but {str(copied)!r} "
        f"has no run.yaml, which says what model it is of; keep checkpoints in their run folder."
    )


def test_a_run_of_another_model_is_named(copied):
    text = (copied / "run.yaml").read_text()
    (copied / "run.yaml").write_text(text.replace("preset: tiny", "preset: small"))
    with pytest.raises(z.ZootomyError) as caught:
        load_policy(str(copied))
    assert str(caught.value).startswith(
        f"The saved checkpoint {str(copied / 'checkpoints' / '5')!r} is of another model, "
        "optimizer or role: 'actor.params.embed_tokens.embedding' is float32[17, 32] there and "
    ), str(caught.value)


def test_a_run_without_a_critic_is_named(tmp_path):
    run = replace(config(tmp_path / "run", steps=1), checkpoint=CheckpointConfig(every=0))
    train(z.algorithm("dr_grpo"), run, console=QUIET)
    with pytest.raises(z.ZootomyError) as caught:
        load_scalar(str(tmp_path / "run"), ValueModel)
    assert str(caught.value) == (
        f"The checkpoint {str(tmp_path / 'run' / 'checkpoints' / '1')!r} has no critic; it has "
        "actor. Name a run of an algorithm with a critic, or a Hugging Face folder of a sequence "
        "classifier."
    )
    leaves = named_leaves(nnx.state(load_policy(str(tmp_path / "run")), nnx.Param))
    assert all(isinstance(leaf, jax.Array) for leaf in leaves.values())
