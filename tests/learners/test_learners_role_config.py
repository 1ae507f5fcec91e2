"""Where models come from, as settings: several reward models, the critic, what is refused."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from zootomy import ZootomyError, algorithm
from zootomy.commands.starting import read_start
from zootomy.learners.role_config import CriticConfig, RewardModelConfig
from zootomy.learners.run_config import RunConfig, read_yaml, write_yaml
from zootomy.learners.settings import from_plain, with_settings
from zootomy.learners.sources import make_critic, roles_of
from zootomy.models import RewardModel, ValueModel, make_model, save_model


def test_reward_models_by_dotted_names_and_in_a_file(tmp_path):
    words = [
        "--reward_models.kind.weight", "0.5", "--reward_models.kind.path", "models/kind",
        "--reward-models.safe.path=models/safe",
    ]  # fmt: skip
    run = read_start(words)[1]
    assert run.reward_models == {
        "kind": RewardModelConfig(path="models/kind", weight=0.5),
        "safe": RewardModelConfig(path="models/safe"),
    }
    changes = {"reward_models.safe.clip": 2, "reward_models.safe.normalize": True, "steps": 3}
    changed = with_settings(run, changes)
    safe = RewardModelConfig(path="models/safe", clip=2.0, normalize=True)
    assert changed.reward_models == {"kind": run.reward_models["kind"], "safe": safe}
    write_yaml(tmp_path / "run.yaml", algorithm("rloo"), changed)
    assert read_yaml(tmp_path / "run.yaml")[1] == changed
    with pytest.raises(ZootomyError, match=r"^reward_models.safe must be a mapping, got 'x'\.$"):
        with_settings(run, {"reward_models.safe": "x"})


def test_the_roles_that_they_play():
    several = {"reward_models": {"kind": RewardModelConfig(path="kind")}}
    alone = {"reward_model": RewardModelConfig(path="one")}
    chosen = algorithm("dr_grpo")
    for run, seats in (
        (RunConfig(), ()),
        (RunConfig(**alone), ("reward",)),
        (RunConfig(**several), ("reward.kind",)),
        (RunConfig(**alone, **several), ("reward.reward_model", "reward.kind")),
    ):
        assert roles_of(chosen, run) == ("actor", *seats, "rollout")


@pytest.mark.parametrize(
    "settings, message",
    [
        (
            {"reward_models": {"kind": {"weight": 2}}},
            "reward_models.kind.path is empty; name the folder of the reward model.",
        ),
        (
            {"reward_models": {"kind": {"path": "x", "clip": -1}}},
            "reward_models.kind.clip must be above 0 or null, got -1.0.",
        ),
        (
            {"reward_models": {"kind": {"path": "x", "wait": 1}}},
            "Unknown setting of reward_models.kind: 'wait'. Did you mean 'weight'? Known: clip, "
            "normalize, path, weight.",
        ),
        ({"reward_models": ["x"]}, "reward_models must be a mapping of names, got ['x']."),
        (
            {"reward_models": {"a/b": {"path": "x"}}},
            "reward_models.a/b: a reward model's name has letters, digits and _ only, and is "
            "not 'reward_model'.",
        ),
        (
            {"reward_model": {"clip": 0}},
            "reward_model.clip must be above 0 or null, got 0.0.",
        ),
        (
            {"reward_model": {"weight": 0.5}},
            "reward_model.weight, normalize and clip have no effect without a reward model; set "
            "reward_model.path.",
        ),
        (
            {"critic": {"shared": True, "path": "x"}},
            "critic.shared puts the critic on the policy's backbone, and critic.path 'x' names a "
            "model of its own; give one of them.",
        ),
        (
            {"critic": {"coef": 0.5}},
            "critic.coef has no effect on a critic with a backbone of its own; set critic.shared, "
            "or the learning rate of critic_optimizer.",
        ),
        (
            {"critic": {"shared": True, "coef": 0}},
            "critic.coef must be a number above 0, got 0.0.",
        ),
        (
            {"max_staleness": 2},
            "max_staleness must be 0 (each batch is sampled with the newest weights) or 1 (while "
            "the step before learns), got 2.",
        ),
        (
            {"reference": {"refresh_steps": -1}},
            "reference.refresh_steps must be 0 (never) or more, got -1.",
        ),
        (
            {"critic": {"fresh_head": True}},
            "critic.fresh_head has no effect without critic.path: the head is fresh anyway.",
        ),
    ],
)
def test_what_cannot_be_is_refused(settings, message):
    with pytest.raises(ZootomyError) as caught:
        from_plain(RunConfig, settings)
    assert str(caught.value) == message


def test_the_critic_may_be_on_the_policys_backbone():
    assert from_plain(RunConfig, {"critic": {"shared": True}}).critic == CriticConfig(shared=True)


def test_a_critic_begins_with_the_reward_model_or_its_body(tmp_path):
    policy = make_model("tiny", vocab_size=17)
    reward = RewardModel.from_decoder(make_model("tiny", vocab_size=17, seed=3), rngs=nnx.Rngs(0))
    reward.score.kernel.set_value(jnp.linspace(-1.0, 1.0, 32)[:, None])
    save_model(reward, tmp_path)
    chosen, folder = algorithm("ppo"), str(tmp_path)

    def critic(**settings):
        made = make_critic(chosen, RunConfig(critic=CriticConfig(**settings)), policy)
        assert isinstance(made, ValueModel)
        return made.backbone.embed_tokens.embedding[...], made.score.kernel[...]

    theirs, head = reward.backbone.embed_tokens.embedding[...], reward.score.kernel[...]
    own = policy.embed_tokens.embedding[...]
    for settings, body, score in (
        ({"path": folder}, theirs, head),
        ({"path": folder, "fresh_head": True}, theirs, 0 * head),
        ({}, own, 0 * head),
    ):
        found = critic(**settings)
        np.testing.assert_array_equal(found[0], body)
        np.testing.assert_array_equal(found[1], score)
    assert make_critic(chosen, RunConfig(critic=CriticConfig(shared=True)), policy) == "shared"
