"""Who sits where and what it takes, counted by hand; and every batch size in words."""

from dataclasses import replace

import pytest
from flax import nnx
from zootomy import ClusterConfig, RolloutConfig, ZootomyError, algorithm
from zootomy.learners import BatchConfig
from zootomy.learners.role_config import CriticConfig, ModelSource, RewardModelConfig
from zootomy.learners.run_config import RunConfig
from zootomy.learners.seating import draw_seats, seat_roles
from zootomy.learners.sizes import explain_sizes
from zootomy.models import LoraConfig, RewardModel, make_model, save_model
from zootomy.tasks import TaskConfig

# Vocabulary 17 x 32 = 544, tied; a layer: q, o 2 x 32 x 32, k, v 2 x 32 x 16, MLP 3 x 32 x 96,
# norms 2 x 32 and head norms 2 x 8: 12,368; two of them and the last norm's 32: 25,312.
WHOLE = 25_312 * 4
# Over fsdp=2 all is halved but the 2 x 2 x 8 of the head norms.
HALF = ((25_312 - 32) // 2 + 32) * 4
RUN = RunConfig(
    task=TaskConfig(name="arithmetic", options={"terms": 2}, train_size=23, eval_size=6),
    model=ModelSource(preset="tiny"),
    rollout=RolloutConfig(max_prompt_tokens=4, max_new_tokens=3, max_slots=6),
    batch=BatchConfig(full=8, mini=4, group_size=2),
    cluster=ClusterConfig(micro_rows=3, sequences_per_row=2, row_length=15),
    steps=10,
)


def with_cluster(**changes):
    return replace(RUN, cluster=replace(RUN.cluster, **changes))


def test_colocated_roles_share():
    actor, rollout = seat_roles(algorithm("dr_grpo"), RUN, devices=1)
    assert (actor.params, actor.dtype, str(actor.mesh)) == (WHOLE, "float32", "data=1")
    # Two moments in float32 and a count.
    assert actor.optimizer == 2 * WHOLE + 4
    assert (rollout.params, rollout.shares) == (0, "actor")


def test_adapters_wait_on_the_host_and_their_backbone_does_not():
    run = replace(
        with_cluster(
            mesh="data=1", offload_to_cpu=("actor",), role_to_mesh={"rollout": "data=1@1"}
        ),
        lora=LoraConfig(rank=2, pattern=r".*\.q_proj"),
    )
    chosen = algorithm("grpo", kl_placement="loss")
    actor, reference, rollout = seat_roles(chosen, run, devices=2)
    # Two layers of A [32, 2] and B [2, 32].
    adapters = 2 * (32 * 2 + 2 * 32) * 4
    assert (actor.params, actor.backbone) == (WHOLE + adapters, WHOLE)
    assert actor.optimizer == 2 * adapters + 4
    # The same backbone under adapters of its own.
    assert (reference.params, reference.shares) == (adapters, "actor")
    assert (rollout.params, rollout.shares) == (WHOLE + adapters, None)
    lines = draw_seats([actor, reference]).splitlines()
    assert lines[2].endswith("uses the actor's arrays, and 1.0 KiB of its own")
    assert lines[-1].endswith("idle roles on the host: 99.9 KiB")


def test_roles_apart_are_drawn():
    run = with_cluster(
        mesh="fsdp=2",
        role_to_mesh={"rollout": "data=2@2", "reference": "data=1@1"},
        role_to_dtype={"rollout": "bfloat16"},
        offload_to_cpu=("reference", "critic.optimizer"),
    )
    chosen = algorithm("ppo")  # with a reference, for its KL in the reward
    seats = {str(seat.role): seat for seat in seat_roles(chosen, run)}
    assert seats["actor"].params == HALF
    assert seats["actor"].optimizer == 2 * HALF + 4
    assert seats["reference"].params == WHOLE
    assert seats["reference"].offload == ("params",)
    # A head of 32 numbers more, spread too.
    assert seats["critic"].params == HALF + 16 * 4
    assert seats["critic"].offload == ("optimizer",)
    assert (seats["rollout"].params, seats["rollout"].dtype) == (WHOLE // 2, "bfloat16")
    lines = draw_seats(list(seats.values())).splitlines()
    assert lines[0] == "device      0  1  2  3"
    assert lines[1].startswith("actor      ██ ██  ·  ·  fsdp=2  float32  parameters 49.5 KiB a")
    assert lines[2].startswith("reference   · ██  ·  ·  data=1@1  float32  parameters 98.9 KiB a")
    assert lines[4] == ("rollout     ·  · ██ ██  data=2@2  bfloat16  parameters 49.4 KiB a device")
    # Device 2 has the engine's alone, device 1 all the others: 3 HALF, 3 more, and WHOLE.
    assert lines[5].endswith("all roles on the devices: 49.4 KiB to 396.1 KiB")
    assert lines[6].endswith("idle roles on the host: 49.4 KiB to 198.1 KiB")


def test_a_mesh_larger_than_the_devices_is_refused():
    with pytest.raises(ZootomyError) as error:
        seat_roles(
            algorithm("dr_grpo"), with_cluster(role_to_mesh={"rollout": "data=4@6"}), devices=8
        )
    assert str(error.value) == (
        "The rollout's mesh 'data=4@6' takes the devices 6..9, but there are 8."
    )


def test_the_sizes_in_words():
    run = with_cluster(mesh="fsdp=2,sequence=2")
    assert explain_sizes(algorithm("grpo", kl_placement="loss"), run).splitlines() == [
        "step: 8 prompts × 2 = 16 completions a step; 1 epoch × 2 mini-batches of 4 prompts (8 "
        "completions) = 2 optimizer steps a step; 10 steps = 20 optimizer steps and 160 "
        "completions.",
        "rollout: 16 completions are sampled with the newest weights, 6 at a time, 3 on each of 2 "
        "parts of the mesh; the other 10 wait for a place. Prompts are read 8,192 tokens at a "
        "time.",
        "rows: of 16 tokens (15 asked, filled up to divide over the devices), up to 2 sequences "
        "each; the longest, 4 tokens of prompt + 3 of completion = 7, fit 2 to a row.",
        "log-probabilities: the actor's where the update needs them, the reference's: passes of "
        "4 rows (3 asked, filled up to divide over the devices) = 64 tokens, 16 a device; 2 passes "
        "for 16 completions.",
        "training: micro-batches of 4 rows (3 asked, filled up to divide over the devices) = 64 "
        "tokens, 16 a device; 1 micro-batch for an optimizer step of 8 completions.",
    ]


def test_completions_that_share_a_prompt_in_words():
    # Rows of 15 leave 11 after 4 of the prompt; two of them a device make one row with branches.
    lines = explain_sizes(algorithm("grpo"), with_cluster(mesh="data=2")).splitlines()
    assert lines[2].endswith(
        "to a row. Where attention is XLA's, 2 completions share a prompt: 4 + 2 × 11 = 26 tokens "
        "instead of 2 rows."
    )
    apart = with_cluster(mesh="data=2", share_prompts=False)
    assert explain_sizes(algorithm("grpo"), apart).splitlines()[2].endswith("fit 2 to a row.")


def test_sizes_that_cannot_be():
    with pytest.raises(ZootomyError, match="row_length=6 is shorter than the longest sequence"):
        explain_sizes(algorithm("dr_grpo"), replace(RUN, cluster=ClusterConfig(row_length=6)))
    with pytest.raises(ZootomyError, match=r"The actor's 'embed_tokens\.embedding' has 32"):
        seat_roles(algorithm("dr_grpo"), replace(RUN, cluster=ClusterConfig(mesh="fsdp=3")))


def test_a_critic_on_the_actors_backbone_and_reward_models_by_name(tmp_path):
    for name in ("kind", "safe"):
        backbone = make_model("tiny", vocab_size=17)
        save_model(RewardModel.from_decoder(backbone, rngs=nnx.Rngs(0)), tmp_path / name)
    run = replace(
        with_cluster(mesh="fsdp=2", role_to_mesh={"reward.safe": "data=1@2"}),
        critic=CriticConfig(shared=True),
        reward_models={n: RewardModelConfig(path=str(tmp_path / n)) for n in ("kind", "safe")},
    )
    seats = {str(seat.role): seat for seat in seat_roles(algorithm("ppo"), run)}
    critic = seats["critic"]
    # A head of 32 numbers, halved; two moments of it and a count.
    assert (critic.params, critic.optimizer, critic.shares) == (16 * 4, 2 * 16 * 4 + 4, "actor")
    assert seats["reward.kind"].params == HALF + 16 * 4
    assert seats["reward.safe"].params == WHOLE + 32 * 4
    lines = draw_seats(list(seats.values())).splitlines()
    assert lines[0] == "device       0  1  2"
    assert lines[3].startswith(
        "critic      ██ ██  ·  fsdp=2  float32  uses the actor's arrays, and"
    )
    assert lines[5].startswith("reward.safe  ·  · ██  data=1@2  float32  parameters 99.0 KiB a dev")
    elsewhere = replace(run, cluster=replace(run.cluster, role_to_mesh={"critic": "data=1"}))
    with pytest.raises(ZootomyError, match=r"^cluster\.role_to_mesh\.critic has no effect: the cr"):
        seat_roles(algorithm("ppo"), elsewhere)
