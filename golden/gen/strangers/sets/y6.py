"""y6: odd runs that are right: observation tokens in the middle, ragged ranks, uneven micro-batches, bfloat16, tiny groups, constant or huge rewards, one token, truncated rows, lr 0, many epochs, five tensors.  python y6.py CASES"""
from world_y import *
import loop_y
T_ = lambda **k: k
M = dict(framework="custom", algorithm="grpo")
PPO = dict(framework="custom", algorithm="ppo")
FIVE = ["response_mask", "logp_new", "logp_old", "advantages", "loss"]
CASES = [  # name, meta, configuration, little, keep, more options
    ("agent_grpo", M, T_(turns=True, T=26, kl_place="loss", beta=0.02, eos_bias=0.3, minis=2, agg="token_global", div_ga=False, micro=2), False, None, {}),
    ("agent_ppo", PPO, T_(turns=True, T=26, adv="gae", critic=True, reward="rm", n=1, groups=16, eos_bias=0.3, whiten=("global", 1, 1e-8, "inside_sqrt"), epochs=2), False, None, {}),
    ("ragged_ranks", M, T_(world=2, ragged=True, reduce="sum", agg="token_global", div_ga=False, groups=4, epochs=2), False, None, {}),
    ("ragged_mean", M, T_(world=2, ragged=True, agg="token_global", div_ga=False, groups=4, epochs=2, micro=2), False, None, {}),
    ("uneven_micro", M, T_(micro=[3, 6], agg="seq_mean", kl_place="loss", beta=0.05, kl="k2"), False, None, {}),
    ("bf16", M, T_(dtype=torch.bfloat16, epochs=2, minis=2), False, None, {}, dict(compute_dtype="bfloat16")),
    ("bf16_little", M, T_(dtype=torch.bfloat16, kl_place="loss", beta=0.04, scale="none"), True, None, {}, dict(compute_dtype="bfloat16")),
    ("pairs", M, T_(n=2, groups=8, minis=2, epochs=2, reward="share"), True, None, {}),
    ("constant", M, T_(reward="constant", epochs=2, kl_place="loss", beta=0.1, entropy=0.01), False, None, {}),
    ("huge", M, T_(reward="huge", scale="none", dual=3.0, epochs=3, minis=2, lr=2e-2), False, None, {}),
    ("one_token", M, T_(T=1, epochs=2, minis=2, n=8, groups=4), False, None, {}),
    ("truncated_only", M, T_(eos_bias=-8.0, reward="format", epochs=1, kl_place="loss", beta=0.03, agg="seq_const", constant=18.0), False, None, {}),
    ("zero_lr", PPO, T_(adv="gae", critic=True, joint=True, lr=0.0, epochs=6, n=1, groups=12, reward="acc_format", rollouts=2), False, None, {}),
    ("many_epochs", M, T_(epochs=8, minis=4, rollouts=2, lr=1e-2, groups=8, reward="rm"), False, None, {}),
    ("five_policy", M, T_(epochs=2, minis=2), True, FIVE, {}),
    ("five_group", M, T_(reward="share", scale="none", center="loo"), True, ["response_mask", "scores", "group_id", "advantages", "loss"], {}),
    ("five_gae", PPO, T_(adv="gae", critic=True, reward="rm", n=1, groups=16, lam=0.9, gamma=0.99), False, ["response_mask", "token_rewards", "values", "advantages", "returns"], {}),
    ("gspo_row", M, T_(level="seq", low=3e-4, high=4e-4, agg="seq_mean", epochs=3, minis=2), False, None, {"ratio.seq_log_max": "none", "ratio.len_eps": 0}),
    ("stale", M, T_(stale=2, rollouts=5, minis=2, tis=("token", "truncate", None, 2.0), agg="token_global", div_ga=False, noise=0.0), False, None, {"max_staleness": 2}),
    ("geo_mask", M, T_(tis=("seq_geo", "mask", 0.98, 1.02), noise=0.03, epochs=2), True, None, {}),
    ("ranks_ppo", PPO, T_(world=2, micro=2, adv="gae", critic=True, joint=True, n=1, groups=16, reward="rm", kl_place="token_reward", kl="k1", beta=0.02, agg="token_global", div_ga=False, minis=2, vclip=None), False, None, {}),
    ("shifted", M, T_(shifted=True, kl_place="loss", beta=0.04, epochs=2), False, None, {}),
    ("npz", M, T_(entropy=0.01, minis=2, agg="seq_sum"), False, None, {}, dict(_npz=True)),
]


def main(cases):
    for i, (name, meta, over, little, keep, more, *mm) in enumerate(CASES):
        c = loop_y.run(cases, f"y6-{i:02d}_{name}", "y6", 7600 + i, over, little, f"{name}: {over}", dict(meta, token_loss_includes_kl=False) | (mm[0] if mm else {}), loop_y.described(over) | more, keep=keep)
        print(c.name, c.n, flush=True)


if __name__ == "__main__": main(sys.argv[1])
