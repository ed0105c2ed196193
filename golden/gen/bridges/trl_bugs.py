"""Bugs of TRL 1.16.0's RLOOTrainer and DPOTrainer, each a statement that is replaced."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "dumps"))
from patch import Patch

BUGS = {
    "rloo_whole_group": Patch("_generate_and_score_completions", "baselines = (grouped_sum - grouped_rewards) / (scorable_counts - 1)", "baselines = (grouped_sum / scorable_counts).repeat(1, num_generations)"),
    "dpo_bco_sign": Patch("_compute_loss", "-F.logsigmoid(chosen_rewards) - F.logsigmoid(-rejected_rewards)", "-F.logsigmoid(chosen_rewards) - F.logsigmoid(rejected_rewards)"),
}
