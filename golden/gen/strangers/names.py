"""More right names: the registry of `verify explain` has ids that `verify faults` does not plant. Chosen by their titles alone."""

MORE = {}


def more(ids, names):
    for id in ids.split():
        MORE.setdefault("b-" + id, []).extend(names.split())


more("trl-adv-eps-1e-6 orlhf-gn-eps", "ADV-EPS")
more("trl-adv-median trl-adv-max verl-rloo-no-factor orlhf-rloo-mean loop-grp-loo-full", "ADV-CENTER adv.center")
more("trl-adv-batch-mean", "ADV-ONE-GROUP ADV-CENTER")
more("trl-adv-tile", "ADV-OTHER-GROUP ADV-GROUPS-INTERLEAVED")
more("trl-adv-transposed orlhf-gn-columns orlhf-gn-reshape loop-oi-reshape", "ADV-GROUPS-INTERLEAVED")
more("orlhf-gn-reshape loop-oi-reshape", "ADV-ROWS-PERMUTED")
more("trl-adv-none-divides verl-grpo-no-eps-std-max verl-grpo-norm-inverted hist-trl-3992-group", "ADV-NOT-SCALED")
more("hist-trl-3992-batch", "ADV-GROUP-STD")
more("trl-adv-clamped loop-grp-adv-positive orlhf-clip-range-before", "ADV-CLIPPED")
more("orlhf-clip-range-before", "REWARD-CLIP-MISSING")
more("trl-adv-abs", "ADV-ABSOLUTE")
more("trl-adv-rolled", "ADV-ROWS-ROLLED ADV-ROWS-ROLLED-BACK ADV-ROWS-OF-OTHERS ADV-ROWS-PERMUTED")
more("loop-grp-adv-length", "ADV-DIVIDED-BY-LENGTH")
more("trl-clip-high-low verl-clip-high-ignored loop-oi-high", "CLIP-HIGH-AS-LOW CLIP-BOUND")
more("trl-cispo-relative trl-delta-both orlhf-clip-one-sided orlhf-clip-division trlppo-clip-upper-only", "CLIP-BOUND")
more("trl-clip-hard verl-clip-always", "CLIP-WITHOUT-MIN")
more("trl-clip-log loop-grp-exp-clip", "CLIP-LOG-RATIO")
more("trl-gspo-sum verl-gspo-sum orlhf-gspo-no-length", "RATIO-SUM-FOR-MEAN RATIO-LEVEL")
more("trl-gspo-token trl-vespo-mean loop-grp-ratio-row", "RATIO-LEVEL")
more("trl-cispo-nologp", "CISPO-THROUGH-CLIP LOSS-KIND")
more("verl-loss-reinforce", "LOSS-KIND")
more("trl-kl-no-one orlhf-kl-k2-no-half trlppo-kl-k3-half loop-grp-kl-sqrt", "KL-FORMULA")
more("orlhf-kl-relu", "KL-CUT-OFF")
more("trl-kl-no-ratio orlhf-kl-unbiased-no-weight", "KL-GRAD")
more("trl-kl-ratio-detached hist-nemo-2506", "KL-WEIGHT-DETACHED KL-GRAD")
more("trl-kl-twice verl-kl-squared-coef orlhf-klr-twice", "KL-BETA")
more("trl-is-inverted verl-is-inverted orlhf-is-inverted", "IS-INVERTED")
more("trl-is-twice", "IS-TWICE")
more("trl-is-seq-mean verl-is-sequence", "IS-LEVEL")
more("trl-is-on-kl", "KL-TIMES-WEIGHTS")
more("orlhf-is-no-low", "IS-CLAMP-MISSING")
more(
    "trl-dapo-local verl-agg-local verl-agg-rows-local orlhf-agg-local loop-grp-micro-mean loop-oi-accumulation hist-verl-6957 hist-openrlhf-df78645e",
    "AGG-DENOMINATOR",
)
more("trl-dapo-counts-pads verl-agg-width orlhf-agg-width loop-grp-tokens-width trlppo-pg-plain-mean", "AGG-COUNTS-CELLS")
more("trl-dapo-counts-prompt", "AGG-PROMPT-COUNTED")
more("trl-dapo-counts-one-less trl-bnpo-min-one", "AGG-LENGTH-OFF-BY-ONE")
more("trl-grpo-token-mean verl-agg-token-for-seq orlhf-gspo-token-mean orlhf-agg-seq-square", "AGG-TOKEN-FOR-SEQUENCE AGG-KIND")
more("trl-luspo-token-mean verl-agg-seq-for-token orlhf-agg-seq-sum loop-grp-sum-rows verl-kl-agg-other", "AGG-KIND")
more("trl-dr-grpo-no-batch", "AGG-DIV-BATCH")
more("trl-grpo-mask-shift", "LOSS-MASK-SHIFT-ABOVE")
more("trl-grpo-first-token", "LOSS-MASK-FIRST")
more("trl-grpo-last-token", "LOSS-MASK-NO-EOS")
more("verl-agg-mask-last", "LOSS-MASK-NO-EOS-ABOVE")
more("verl-attention-mask orlhf-agg-tool", "LOSS-MASK-TOOL-ABOVE")
more(
    "trl-old-temperature trl-new-temperature trl-both-temperature verl-both-temperature verl-new-temperature orlhf-both-temperature trlppo-new-temperature trlppo-both-temperature loop-grp-temperature"
    " hist-trl-3029 hist-openrlhf-857",
    "GEN-TEMPERATURE-TWICE",
)
more("verl-rpp-unwhitened verl-gae-unwhitened trlppo-whiten-off", "ADV-NOT-WHITENED")
more("verl-gae-holes verl-gae-holes-value", "GAE-HOLE")
more(
    "verl-gae-no-gamma verl-gae-gamma-swapped verl-gae-plus-v orlhf-gae-gamma-squared trlppo-gae-lambda-delta loop-crl-no-done loop-crl-no-done-value",
    "GAE-RECURSION",
)
more("verl-gae-returns-no-v", "RETURNS-ARE-ADVANTAGES")
more("verl-gae-values-late orlhf-values-late", "GAE-VALUES-LATE VALUE-TARGET-SHIFT")
more("verl-score-early trlppo-score-last-token", "SCORE-EARLY REWARD-PLACE SCORE-INDEX")
more(
    "verl-score-late orlhf-score-one-late orlhf-score-last-column orlhf-score-first trlppo-score-last-column loop-oai-score-first",
    "SCORE-INDEX REWARD-PLACE",
)
more("verl-klr-last", "REWARD-PLACE")
more("verl-klr-nan-mask hist-verl-2377", "MASK-MULTIPLIES")
more("verl-dual-absent", "CLIP-DUAL")
more("verl-entropy-absent", "ENTROPY-MISSING")
more("orlhf-gae-unmasked", "KL-PADS-IN-RETURNS")
more("hist-slime-1372", "KL-PADS-IN-RETURNS")
more("trlppo-eos-penalty-absent", "EOS-PENALTY-IGNORED")
more("trlppo-eos-penalty-replaces", "EOS-PENALTY-MISSING")
more("trlppo-vf-coef-missing loop-oai-vf-coef", "VALUE-COEF")
more("loop-grp-gen-for-old", "OLD-IS-GEN")
more("loop-crl-approx-kl", "METRIC-UPDATE-KL")
more("loop-crl-norm-rows", "WHITEN-SCOPE")
more("hist-trl-3004", "METRIC-ROW-MEANS")
more("hist-trl-4454", "OLD-ROWS-ROLLED OLD-ROWS-ROLLED-BACK LOGP-ROWS-ROLLED LOGP-ROWS-PERMUTED")
more("hist-verl-2513", "LOSS-MASKED-BY-ADVANTAGES-TWICE")
more("trl-loss-sign verl-loss-sign", "POLICY-SIGN")
more("verl-gae-gamma-swapped", "GAE-GAMMA-LAMBDA-EXCHANGED")
more("orlhf-value-only-clip", "VALUE-CLIP-ALWAYS")
more("loop-grp-adv-rank verl-grpo-mean-over-tokens", "ADV-REWARDS")
more("loop-grp-bonus-mean trl-entropy-pads", "LOSS-MASK-PADS mask.tokens")
more("verl-gae-r-minus-v", "GAE-RECURSION")
more("verl-gae-unwhitened two-norm-not", "WHITEN-MISSING whiten.scope=none")
more("hist-trl-2708", "OLD-OTHER-PASS")
more("loop-crl-no-done loop-crl-no-done-value loop-crl-done-shift", "GAE-DONES")
more("orlhf-gn-minmax", "ADV-CENTER")
more("trl-gspo-unmasked verl-kl-no-mask", "LOSS-MASK-PADS mask.tokens")
more("verl-gae-holes", "GAE-PADS")
more("verl-rpp-gamma-hole", "GAE-HOLE gae.hole")
more("verl-sapo-tau two-soft-tau", "SAPO-TAU")
more("loop-grp-kl-bonus-swap", "KL-BETA")
more("trl-dr-grpo-longest", "AGG-PAD-DENOMINATOR")
more("orlhf-value-relative verl-value-huber verl-value-abs two-value-huber", "VALUE-CLIP-FORM")
more("orlhf-gae-next-own", "GAE-RECURSION")
more("orlhf-gn-minmax orlhf-rloo-n verl-rloo-divisor", "ADV-CENTER ADV-SPREAD")
more("orlhf-whiten-variance orlhf-whiten-uncentred orlhf-whiten-cells two-norm-scale", "WHITEN-FORM")
more("verl-gae-whiten-eps", "WHITEN-EPS")
more("verl-loss-k-power two-adv-tanh two-adv-square", "ADV-FORM")
more("trlppo-ratio-double", "RATIO-FORM")
more("verl-klr-mean", "OTHER-FORM")
more("trl-entropy-no-ga", "ENTROPY-COEF entropy.coef")
