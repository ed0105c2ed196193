"""The runs of peer_losses.py: options of each healthy one; for each bug the statement of the release, or the driver's call, it changes."""
from dataclasses import dataclass, field

CORE = "verl/trainer/ppo/core_algos.py"
LOSS = "openrlhf/models/loss.py"
UTIL = "openrlhf/models/utils.py"
MAKER = "openrlhf/trainer/ppo_utils/experience_maker.py"


@dataclass
class Case:
    folder: str
    what: str
    seed: int
    algorithm: str = "grpo"
    holes: bool = False
    bf16: bool = False
    ranks: int = 1
    ref: float = 0.15          # distance of the reference
    engine: float = 0.002      # distance of the engine that sampled
    options: dict = field(default_factory=dict)
    patch: tuple = ()          # (file, from, to)…
    call: str = ""             # a wrong call of the released function, by name
    faults: tuple = ()
    inconsistent: tuple = ()
    scalars: tuple = ()
    conclude: str = "nothing inconsistent at the dtype's rounding"
    option: str = ""

    @property
    def framework(self):
        return self.folder.split("/")[0]


def named(options):
    return {"clip.low": 0.2, "clip.high": 0.28, "ratio.log_clamp": 20, "logp.temperature": 1.0, **options}


V_PPO = {"kl.kind": "k1", "kl.place": "token_reward", "kl.beta": 0.05, "gae.gamma": 0.99, "gae.lambda": 0.95, "gae.hole": "carry",
         "score.index": "last_response", "whiten.ddof": 1, "whiten.scope": "global", "clip.dual": 3.0, "value.clip": 0.1, "value.factor": 0.5,
         "entropy.coef": 0.01, "agg.kind": "token", "agg.denominator": "global"}
V_GRPO = {"kl.kind": "k3", "kl.place": "loss", "kl.beta": 0.05, "kl.clamp_in": 20, "kl.clamp_out": 10, "kl.grad": "naive", "adv.center": "mean",
          "adv.scale": "group_std", "adv.ddof": 1, "adv.eps": 1e-6, "clip.dual": 3.0, "entropy.coef": 0.0, "agg.kind": "token",
          "agg.denominator": "global"}
O_PPO = {"kl.kind": "k1", "kl.place": "token_reward", "kl.beta": 0.05, "gae.gamma": 0.99, "gae.lambda": 0.95, "gae.hole": "zero_step",
         "score.index": "last_response", "whiten.ddof": 0, "whiten.scope": "global", "whiten.eps_place": "floor_var", "value.clip": 0.1,
         "value.factor": 0.5, "entropy.coef": 0.0, "agg.kind": "token", "agg.denominator": "global", "reward.clip": "after_baseline",
         "reward.clip_range": [-10, 10]}
O_GRPO = {"kl.kind": "k3", "kl.place": "loss", "kl.beta": 0.05, "kl.grad": "naive", "adv.center": "mean", "adv.scale": "group_std", "adv.ddof": 1,
          "adv.eps": 1e-9, "entropy.coef": 0.0, "agg.kind": "token", "agg.denominator": "global", "reward.clip": "after_baseline",
          "reward.clip_range": [-10, 10]}
GSPO = {"ratio.level": "seq_mean", "ratio.log_clamp": None, "loss.kind": "gspo", "agg.kind": "seq_mean_token_mean", "clip.low": 0.02, "clip.high": 0.03}
TIS = {"tis.level": "token", "tis.rule": "truncate_upper", "tis.high": 2.0, "tis.log_clamp": 20}

CASES = [
    Case("verl/clean/ppo", "GAE with KL in the reward, value head, token-mean over the mini-batch, entropy bonus", 301, "ppo", options=V_PPO),
    Case("verl/clean/ppo_tools", "the same with tool tokens inside the responses", 302, "ppo", holes=True, options=V_PPO),
    Case("verl/clean/grpo", "GRPO, low_var_kl in the loss, token-mean", 303, options=V_GRPO),
    Case("verl/clean/dr_grpo", "no division by the std, seq-mean-token-mean, k3+ (straight-through gradient of k2)", 304,
         options=dict(V_GRPO, **{"adv.scale": "none", "agg.kind": "seq_mean_token_mean", "kl.grad": "straight_through_k2"})),
    Case("verl/clean/grpo_tis", "engine log-probs away from the trainer's: token weights truncated at 2", 305, engine=0.25,
         options=dict(V_GRPO, **TIS)),
    Case("verl/clean/grpo_two_ranks", "two ranks, groups spread over both, dp_size in the loss", 306, ranks=2, options=V_GRPO),
    Case("verl/clean/grpo_bf16", "log-probs, advantages and losses in bfloat16", 307, bf16=True, options=V_GRPO),
    Case("verl/clean/grpo_far_reference", "a reference so far that the bound 10 on k3 binds", 308, ref=1.0, options=V_GRPO),
    Case("openrlhf/clean/ppo", "GAE with KL in the reward, value head, global whitening with ddof 0", 321, "ppo", options=O_PPO),
    Case("openrlhf/clean/ppo_tools", "the same with tool tokens inside the responses: a hole is one more γλ step", 322, "ppo", holes=True, options=O_PPO),
    Case("openrlhf/clean/group_norm", "group_norm, k3 in the loss, token mean over the batch", 323, options=O_GRPO),
    Case("openrlhf/clean/gspo", "policy_loss_type gspo: sequence ratio, mean of sequence means, no KL", 324,
         options=dict(O_GRPO, **GSPO, **{"kl.place": "none", "kl.beta": 0.0})),
    Case("openrlhf/clean/gspo_kl", "the same with k3 in the loss, whose aggregation stays a token mean: training_step hands it no flag", 327,
         options=dict(O_GRPO, **GSPO)),
    Case("openrlhf/clean/group_norm_tis", "is_correction token clip [0.5, 2]", 325, engine=0.25,
         options=dict(O_GRPO, **{"tis.level": "token", "tis.rule": "clamp", "tis.low": 0.5, "tis.high": 2.0})),
    Case("openrlhf/clean/rloo_unbiased_kl", "leave-one-out baseline, k3 value with the unbiased gradient", 326,
         options=dict(O_GRPO, **{"adv.center": "loo", "adv.scale": "none", "kl.grad": "straight_through_k2", "kl.is_cap": 10})),

    Case("verl/faulty/value_loss_no_half", "value loss without the factor ½", 401, "ppo", options=V_PPO,
         patch=((CORE, "vf_loss = 0.5 * agg_loss(", "vf_loss = 1.0 * agg_loss("),), faults=("P058",), inconsistent=("value_loss", "dvalues"),
         scalars=("value_loss",), conclude="value loss and its gradient are twice as large", option="value.factor=1"),
    Case("verl/faulty/gae_over_tools", "GAE runs over tool tokens as if they were the policy's", 402, "ppo", holes=True, options=V_PPO,
         patch=((CORE, "nextvalues = values[:, t] * response_mask[:, t] + (1 - response_mask[:, t]) * nextvalues", "nextvalues = values[:, t]"),
                (CORE, "lastgaelam = lastgaelam_ * response_mask[:, t] + (1 - response_mask[:, t]) * lastgaelam", "lastgaelam = lastgaelam_")),
         faults=("P169",), inconsistent=("advantages", "returns"), conclude="the recursion does not skip masked tokens", option="gae.hole=none"),
    Case("verl/faulty/attention_mask_for_response_mask", "the policy loss gets the attention mask of the response: tool tokens are trained", 403,
         holes=True, options=V_GRPO, call="attention_mask", faults=("P062",), inconsistent=("loss", "kl_loss", "dlogp"),
         scalars=("loss", "kl_loss", "ppo_kl", "clip_frac"), conclude="the KL of tool tokens is in loss and dlogp; verl's advantages are 0 there, so pg_loss is not touched"),
    Case("verl/faulty/advantages_as_mask", "the call passes response_mask=advantages", 404, options=V_GRPO, call="advantages_as_mask",
         faults=("P063",), inconsistent=("loss", "pg_loss", "dlogp"), scalars=("loss", "pg_loss", "ppo_kl", "clip_frac"),
         conclude="the policy loss is weighted by the advantages in place of the mask"),
    Case("verl/faulty/local_denominators", "each micro-batch takes its own token mean; the step is their mean", 405, options=V_GRPO,
         call="local", faults=("P080", "P014"), inconsistent=("loss", "pg_loss", "kl_loss", "dlogp"), scalars=("loss", "pg_loss", "kl_loss"),
         conclude="denominator is the micro-batch's, not the mini-batch's", option="agg.denominator=micro, agg.div_ga=true"),
    Case("verl/faulty/tis_weight_with_gradient", "importance weights from log_prob with its gradient", 406, engine=0.25,
         options=dict(V_GRPO, **TIS), call="tis_gradient", faults=("P070",), inconsistent=("is_weights", "dlogp"),
         conclude="dlogp holds the gradient through the weights; from the second update on, their value follows the new policy too"),
    Case("verl/faulty/k3_unbounded", "low_var_kl without its bound of 10", 407, ref=1.0, options=V_GRPO,
         patch=((CORE, "return torch.clamp(kld, min=-10, max=10)", "return kld"),), faults=("P081",), inconsistent=("kl", "dlogp"),
         conclude="kl exceeds 10", option="kl.clamp_out=none"),
    Case("openrlhf/faulty/ppo_kl_is_ratio", "ppo_kl logged as the mean of −ratio in place of −log-ratio", 421, options=O_GRPO,
         patch=((LOSS, "ppo_kl = masked_mean(-raw_policy_log_ratio.detach(), action_mask, dim=None)",
                 "ppo_kl = masked_mean(-ratio.detach(), action_mask, dim=None)"),), faults=("P094",), scalars=("ppo_kl",),
         conclude="metric only: about −1 where 0 is expected"),
    Case("openrlhf/faulty/gspo_per_token", "GSPO averaged over tokens: the sequence-level flag is not set", 422,
         options=dict(O_GRPO, **GSPO, **{"kl.place": "none", "kl.beta": 0.0}),
         patch=((LOSS, "            self.token_level_loss = False", "            pass"),), faults=("P095",),
         inconsistent=("loss", "pg_loss", "dlogp"), scalars=("loss", "pg_loss"), conclude="the policy loss is a token mean", option="agg.kind=token"),
    Case("openrlhf/faulty/kl_in_bf16", "log-ratio of the KL taken in bfloat16", 423, options=O_GRPO,
         patch=((UTIL, "log_ratio = log_probs.float() - log_probs_base.float()", "log_ratio = (log_probs.bfloat16() - log_probs_base.bfloat16()).float()"),),
         faults=("P093",), inconsistent=("kl", "dlogp"), conclude="kl lies on bfloat16's grid of log-ratios; logp_new and logp_ref do not"),
    Case("openrlhf/faulty/kl_of_padding_in_returns", "rewards of masked cells stay in the recursion: the KL of padding leaks into returns", 424, "ppo",
         options=O_PPO, patch=((MAKER, "            values = action_mask * values\n            rewards = action_mask * rewards", "            values = action_mask * values"),),
         faults=("P206", "P171"), inconsistent=("advantages", "returns"), conclude="returns hold the KL of cells beyond the mask"),
    Case("openrlhf/faulty/score_one_past_end", "the score is placed one token past the last response token: lost to the mask", 425, "ppo",
         options=O_PPO, patch=((UTIL, "eos_indices = action_mask.size(1) - 1 - action_mask.long().fliplr().argmax(dim=1, keepdim=True)",
                                "eos_indices = (action_mask.size(1) - action_mask.long().fliplr().argmax(dim=1, keepdim=True)).clamp(max=action_mask.size(1) - 1)"),),
         faults=("P170", "P190"), inconsistent=("token_rewards",), conclude="the score of rows with padding stands on a masked cell"),
    Case("openrlhf/faulty/local_denominators", "each micro-batch takes its own token mean; the step is their mean", 426, options=O_GRPO,
         call="local", faults=("P096", "P014"), inconsistent=("loss", "pg_loss", "kl_loss", "dlogp"), scalars=("loss", "pg_loss", "kl_loss"),
         conclude="denominator is the micro-batch's, not the batch's", option="agg.denominator=micro, agg.div_ga=true"),
]
