"""w6: odd but right settings, on the loop of nobody's (loop_w), TRL's, verl's and OpenRLHF's own functions (as w1, w3, w4 load them)."""
import sys
from loop_w import *
import w1, w3, w4
G = {"adv.scale": "group_std", "adv.ddof": 1, "adv.eps": 1e-4}
FIVE = {"logp_new", "response_mask", "advantages", "scores", "loss"}


def main(cases):
    def loop(i, name, note, o=None, **k): lm_loop(cases, "w6", f"{i:02d}_{name}", note, o or {}, 600 + i, little=k.pop("little", False), **k)
    rng = random.Random(66)
    loop(0, "agent_turns", "turns of an agent: up to two spans of observation tokens outside the mask, in the middle of a response; mean over rows of token means", {"agg.kind": "seq_mean_token_mean", "kl.beta": 0.02, "kl.place": "loss"}, holes=True, Tm=30, micros=3)
    loop(1, "ragged_ranks", "three ranks of different numbers of rows, global token mean", {**G}, world=3, ragged=True, minis=2, micros=1, n_prompts=9)
    loop(2, "five_tensors", "five tensors alone: logp_new, mask, advantages, scores, loss; on-policy", {"adv.scale": "none"}, keep=FIVE, epochs=1, micros=1, rollouts=3)
    loop(3, "micro_sizes", "micro-batches of 1, 2, 5 and the remaining rows, one denominator of the step", {"clip.high": 0.28, "entropy.coef": 0.01}, micro_of=lambda L: [[0], [1, 2], [3, 4, 5, 6, 7], list(range(8, L))])
    loop(4, "bf16", "everything in bfloat16 from the log-probs on", {"agg.denominator": "micro", "agg.div_ga": True}, bf16=True, micros=2, n_prompts=4, sgd=True, lr=0.3)
    loop(5, "pairs", "groups of two, leave-one-out, no σ, eight epochs", {"adv.center": "loo", "adv.scale": "none", "clip.low": 0.05, "clip.high": 0.05}, n=2, n_prompts=8, epochs=8, micros=1, little=True)
    loop(6, "constant", "the same reward for all: advantages 0", {**G, "kl.beta": 0.1, "kl.place": "loss", "kl.kind": "k2"}, rkind="const")
    loop(7, "huge", "rewards of thousands, no σ: advantages of hundreds to thousands", {"adv.scale": "none", "clip.dual": 3.0}, rkind="huge", epochs=3)
    loop(8, "one_token", "responses of one token", {**G, "agg.kind": "seq_mean_token_mean", "agg.denominator": "micro", "agg.div_ga": True}, Tm=1, epochs=2, little=True)
    loop(9, "truncated", "no response ends: all are cut by length", {"adv.kind": "batch_baseline", "adv.scale": "batch_std", "adv.ddof": 0, "adv.eps": 1e-8, "agg.kind": "seq_sum_const", "agg.denominator": "micro", "loss_denominator": 14, "agg.div_batch": True, "agg.div_ga": True}, eos_bias=-30.0, Tm=14, rkind="sign")
    loop(10, "lr0", "learning rate 0: three epochs, ratio 1 throughout", {**G}, lr=0.0, epochs=3, rollouts=3)
    loop(11, "many_rollouts", "six rollouts of one epoch, sequence ratio (GSPO), narrow clip", {**G, "ratio.level": "seq_mean", "clip.low": 3e-3, "clip.high": 4e-3, "agg.kind": "seq_mean_token_mean", "ratio.len_eps": 0}, rollouts=6, minis=3, micros=1, n_prompts=6, little=True)
    c = dict(loss_type="grpo", beta=0.04, epsilon=0.2, num_iterations=4, mask_truncated_completions=True, scale_rewards="batch")
    w1.Case = lambda cs, p, *a: Case(cs, "w6", *a)
    w1.run(cases, "12_trl_all_cut", "TRL 1.16 GRPO: no response ends and mask_truncated_completions is true, so that many rows have no token; beta .04, 4 iterations", c, FixedBias(rng, -1.6), False, rows=8, n=4, ga=2, spg=2, T_max=12, gens=2, seed=12)
    w1.run(cases, "13_trl_lr0_tools", "TRL 1.16 GRPO dr_grpo: lr 0, tools' tokens in the middle, 3 iterations, world 2", dict(loss_type="dr_grpo", num_iterations=3), rng, False, world=2, rows=6, n=3, ga=2, spg=2, T_max=24, lr=0.0, tools=True, gens=2, seed=13)
    w1.run(cases, "14_trl_five", "TRL 1.16 GRPO bnpo, defaults, five tensors and the group", dict(loss_type="bnpo", scale_rewards="none"), rng, True, rows=8, n=8, ga=1, spg=1, T_max=10, gens=3, seed=14, drop=("logp_old", "group_id"))
    w3.run(cases, "15_verl_singletons", "verl 0.9.1 grpo with one response to a prompt (raw scores), micro-batches of different sizes, world 2", dict(adv_estimator="grpo"), dict(loss_agg_mode="token-mean", shuffle=True), {}, {}, rng, False, n_prompts=24, n=1, mini=2, micro=3, world=2, ragged=True, seed=15, prog="w6", epochs=2)
    w3.run(cases, "16_verl_agent_ppo", "verl 0.9.1 PPO of an agent: observation tokens in the middle, γ .95, λ .9, KL in the reward, huge rewards", dict(adv_estimator="gae", gamma=0.95, lam=0.9, use_kl_in_reward=True, kl_penalty="low_var_kl", kl_coef=0.1, cliprange_value=0.2), dict(loss_agg_mode="seq-mean-token-mean"), {}, {}, rng, False, critic=True,
           n_prompts=8, n=2, holes=True, Tm=24, rkind="huge", seed=16, prog="w6", epochs=2)
    w3.run(cases, "17_verl_one_token", "verl 0.9.1 rloo, responses of one token, token-sum, little", dict(adv_estimator="rloo"), dict(loss_agg_mode="token-sum", clip_ratio_c=2.0), {}, {}, rng, True, Tm=1, seed=17, prog="w6", epochs=4, lr=5e-2)
    w4.Case = lambda cs, p, *a: Case(cs, "w6", *a)
    w4.run(cases, "18_orlhf_const", {"algo.advantage.estimator": "group_norm", "algo.kl.use_loss": True, "algo.kl.init_coef": 0.05, "algo.kl.estimator": "k3", "rollout.max_new_tokens": 10, "train.max_epochs": 4}, rng, False, gas=3, steps_per=2, rkind="const", seed=18)
    w4.run(cases, "19_orlhf_agent", {"algo.advantage.estimator": "reinforce", "algo.advantage.gamma": 0.9, "algo.kl.init_coef": 0.1, "rollout.max_new_tokens": 24, "actor.policy_loss_type": "gspo", "actor.eps_clip_low_high": (3e-3, 4e-3), "actor.eps_clip": 3e-3}, rng, False, world=2, gas=2, steps_per=1, holes=True, seed=19)
    w4.run(cases, "20_orlhf_tiny", {"algo.advantage.estimator": "rloo", "rollout.n_samples_per_prompt": 2, "rollout.max_new_tokens": 2, "reward.clip_range": (-0.1, 0.1), "train.max_epochs": 2}, rng, True, n_prompts=8, gas=4, steps_per=2, seed=20)


class FixedBias(random.Random):
    def __init__(self, base, bias): super().__init__(1); self.bias = bias
    def choice(self, x): return self.bias


if __name__ == "__main__": main(sys.argv[1])
