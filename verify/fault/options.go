package fault

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/verify/bug"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// Named is what the registry knows of an option that has another value than the declared one: legal elsewhere, and a known bug
// here.
type Named = bug.Bug

var named = []struct {
	option, from, to string // "" is any value
	id               string
}{
	{"adv.ddof", "", "", "ADV-DDOF"},
	{"adv.kind", "", "batch_baseline", "ADV-ONE-GROUP"},
	{"adv.group_by", "", "", "ADV-WRONG-GROUPS"},
	{"adv.kind", "group", "raw", "ADV-CENTER"},
	{"whiten.ddof", "", "", "WHITEN-DDOF"},
	{"adv.scale", "group_std", "batch_std", "ADV-BATCH-STD"},
	{"adv.scale", "batch_std", "group_std", "ADV-GROUP-STD"},
	{"adv.scale", "", "none", "ADV-NOT-SCALED"},
	{"adv.scale", "", "", "ADV-SPREAD"},
	{"adv.eps", "", "", "ADV-EPS"},
	{"adv.center", "", "", "ADV-CENTER"},
	{"adv.zero_std", "skip", "divide_eps", "ADV-ZERO-STD"},
	{"agg.div_ga", "true", "false", "AGG-GA-MISSING"},
	{"agg.div_ga", "?", "false", "AGG-GA-MISSING"},
	{"agg.div_ga", "false", "true", "AGG-GA-TWICE"},
	{"agg.div_ga", "?", "true", "AGG-GA-TWICE"},
	{"agg.denominator", "", "micro", "AGG-LOCAL-DENOMINATOR"},
	{"agg.denominator", "", "", "AGG-DENOMINATOR"},
	{"agg.empty_rows", "", "", "AGG-EMPTY-ROWS"},
	{"agg.kind", "", "", "AGG-KIND"},
	{"agg.div_batch", "true", "false", "AGG-NO-BATCH"},
	{"agg.div_batch", "", "", "AGG-DIV-BATCH"},
	{"mask.tokens", "", "none", "LOSS-MASK-PADS"},
	{"value.factor", "", "", "VALUE-NO-HALF"},
	{"value.mask", "", "", "VALUE-MASK"},
	{"value.clip", "", "none", "VALUE-CLIP-ABSENT"},
	{"value.clip", "", "", "VALUE-CLIP"},
	{"kl.grad", "", "", "KL-GRAD"},
	{"kl.kind", "", "k1", "KL-KIND"},
	{"kl.kind", "", "", "KL-KIND"},
	{"kl.beta", "", "0", "KL-ABSENT"},
	{"kl.beta", "", "1", "BETA-MISSING"},
	{"kl.beta", "", "", "KL-BETA"},
	{"tis.level", "", "none", "IS-NOT-APPLIED"},
	{"tis.level", "seq_geo", "seq_sum", "IS-SUM-FOR-MEAN"},
	{"tis.level", "", "", "IS-LEVEL"},
	{"ratio.level", "seq_mean", "seq_sum", "RATIO-SUM-FOR-MEAN"},
	{"ratio.level", "", "", "RATIO-LEVEL"},
	{"returns.before_whiten", "", "", "GAE-RETURNS-AFTER-WHITENING"},
	{"gae.hole", "", "", "GAE-HOLE"},
	{"score.index", "", "", "SCORE-INDEX"},
	{"logp.temperature", "", "", "LOGP-TEMPERATURE"},
	{"kl.clamp_out", "", "", "KL-CLAMP-MISSING"},
	{"kl.clamp_in", "", "", "KL-CLAMP-MISSING"},
	{"value.coef", "", "0", "VALUE-MISSING"},
	{"value.coef", "", "", "VALUE-COEF"},
	{"whiten.mask", "", "", "WHITEN-PADS"},
	{"whiten.scope", "", "none", "WHITEN-MISSING"},
	{"rewards.whiten", "", "no", "WHITEN-REWARDS-MISSING"},
	{"whiten.scope", "", "", "WHITEN-SCOPE"},
	{"rewards.whiten_scope", "", "", "WHITEN-SCOPE"},
	{"tis.high", "", "", "IS-CLAMP-MISSING"},
	{"tis.rule", "", "", "IS-CLAMP-MISSING"},
	{"gae.truncated_bootstrap", "", "", "GAE-TRUNCATED-BOOTSTRAP"},
	{"reward.clip", "", "", "REWARD-CLIP-MISSING"},
	{"eos.rule", "", "", "EOS-PENALTY-MISSING"},
	{"rfpp.mode", "", "", "RFPP-MODE"},
	{"kl.place", "", "none", "KL-ABSENT"},
	{"kl.place", "token_reward", "sequence_reward_after", "KL-AFTER-BASELINE"},
	{"kl.place", "token_reward", "", "KL-ABSENT"},
	{"kl.place", "", "", "KL-AFTER-BASELINE"},
	{"entropy.logits", "", "", "ENTROPY-TEMPERATURE"},
	{"clip.low", "", "", "CLIP-BOUND"},
	{"clip.high", "", "", "CLIP-BOUND"},
	{"clip.dual", "", "", "CLIP-DUAL"},
	{"loss.kind", "", "", "LOSS-KIND"},
	{"mean.eps", "", "", "MEAN-EPS"},
	{"mean.nan_outside", "", "", "MASK-MULTIPLIES"},
	{"metric.clip_frac", "", "", "METRIC-CLIP-FRACTION"},
	{"ratio.old", "", "stopgrad_new", "OLD-RECOMPUTED"},
	{"ratio.old", "", "engine", "OLD-IS-GEN"},
	{"ratio.old", "engine", "stored", "OLD-IS-STORED"},
	{"ratio.old", "stopgrad_new", "stored", "OLD-IS-STORED"},
	{"clip.high_is_absolute", "", "", "CLIP-BOUND"},
	{"clip.delta", "", "", "CLIP-DUAL"},
	{"dppo.limit", "", "", "CLIP-BOUND"},
	{"adv.std_of", "", "", "ADV-SPREAD"},
	{"adv.multi", "", "", "ADV-MULTI"},
	{"adv.singleton", "", "", "ADV-GROUP-OF-ONE"},
	{"agg.len_eps", "", "", "MEAN-EPS"},
	{"ratio.len_eps", "", "", "MEAN-EPS"},
	{"tis.low", "", "", "IS-CLAMP-MISSING"},
	{"tis.normalize", "", "", "IS-NORMALISED"},
	{"gae.lambda", "", "1", "GAE-NO-LAMBDA"},
	{"gae.gamma", "", "1", "GAE-NO-GAMMA"},
	{"gae.lambda_policy", "", "", "GAE-NO-LAMBDA"},
	{"returns.of", "", "", "GAE-NO-LAMBDA"},
	{"kl.is_cap", "", "", "KL-GRAD"},
	{"kl.under_is_weight", "", "", "KL-TIMES-WEIGHTS"},
	{"tis.applies_to_kl", "", "", "KL-TIMES-WEIGHTS"},
	{"entropy.agg", "", "", "ENTROPY-AGGREGATION"},
	{"kl.agg", "", "", "KL-AGGREGATION"},
	{"value.agg", "", "", "AGG-KIND"},
	{"eos.penalty", "", "", "EOS-PENALTY-IGNORED"},
	{"eos.test", "", "", "EOS-PENALTY-MISSING"},
	{"reward.clip_range", "", "", "REWARD-CLIP-MISSING"},
	{"whiten.shift_mean", "", "", "WHITEN-FORM"},
	{"whiten.eps", "", "", "ADV-EPS"},
	{"whiten.eps_place", "no_std", "", "ADV-SPREAD"},
	{"whiten.eps_place", "", "no_std", "ADV-NOT-SCALED"},
	{"whiten.eps_place", "", "", "ADV-EPS"},
	{"entropy.coef", "", "", "ENTROPY-COEF"},
	{"loss.top_entropy", "", "none", "TOP-ENTROPY-QUANTILE"},
	{"loss.off_policy_max", "", "none", "OFF-POLICY-KEPT"},
	{"sapo.tau_pos", "", "", "SAPO-TAU"},
	{"sapo.tau_neg", "", "", "SAPO-TAU"},
	{"dpo.beta", "", "", "DPO-BETA"},
	{"dpo.loss", "", "", "DPO-LOSS"},
	{"dpo.divergence", "", "", "DPO-LOSS"},
	{"dpo.nll_weight", "", "", "DPO-NLL"},
	{"dpo.label_smoothing", "", "", "DPO-SMOOTHING"},
	{"dpo.weighting", "", "false", "DPO-WEIGHTING"},
	{"dpo.weighting", "", "true", "DPO-WEIGHTING"},
	{"dpo.per_token", "", "", "DPO-PER-TOKEN"},
	{"dpo.logp_mean", "", "", "DPO-TOKENS"},
}

// optionsOf are the options of which another value is what a bug does.
func optionsOf(id string) (list []string) {
	for _, e := range named {
		if e.id == id && !slices.Contains(list, e.option) {
			list = append(list, e.option)
		}
	}
	return list
}

// ConfiguredAs returns the changes of options of a set that are a bug by the registry, each with what it is configured by: other words, and the written ranges that
// some scores are outside of.
func ConfiguredAs(id string, b *dump.Batch, set *convention.Set) (list [][]stage.Change) {
	to := func(option string, v convention.Value) stage.Change {
		return stage.Change{Option: option, From: set.Value(option), To: v}
	}
	words := func(pairs ...string) (changes []stage.Change) {
		for i := 0; i < len(pairs); i += 2 {
			changes = append(changes, to(pairs[i], parsed(pairs[i], pairs[i+1])))
		}
		return changes
	}
	switch id {
	case "KL-OF-NEW": // of a KL that is in the loss, or a metric
		for _, place := range []string{"loss", "none"} {
			for _, kind := range []string{"k1", "k3", "k2", "abs"} {
				list = append(list, words("kl.place", place, "kl.kind", kind))
				if place == "loss" { // its surrogate leaves roundings in the value (OpenRLHF 0.11.2, use_kl_loss with unbiased_gradient)
					list = append(list, words("kl.place", place, "kl.kind", kind, "kl.grad", "straight_through_k2", "kl.is_cap", "10"))
				}
			}
		}
		return list
	case "ADV-NORMALISED-TWICE": // of advantages that had not been: they are whitened (verl 0.9.1 masked_whiten; OpenRLHF 0.11.2 make_experience, with and without no_std_norm)
		white := []string{"whiten.scope", "global", "whiten.mask", "response", "whiten.shift_mean", "true", "whiten.remask", "false"}
		return [][]stage.Change{
			words(append(white, "whiten.eps_place", "no_std")...),
			words(append(white, "whiten.eps_place", "floor_var", "whiten.ddof", "0", "whiten.eps", "1e-8")...),
			words(append(white, "whiten.eps_place", "inside_sqrt", "whiten.ddof", "1", "whiten.eps", "1e-8")...),
		}
	case "REWARD-CLIP-MISSING":
		const none = 1e30 // a bound that nothing reaches
		for _, r := range heldRanges(b.Row("scores")) {
			if v, err := convention.Parse("reward.clip_range", fmt.Sprintf("%g,%g", max(r.lo, -none), min(r.hi, none))); err == nil {
				list = append(list, append(words("reward.clip", "before_baseline"), to("reward.clip_range", v)))
			}
		}
		return list
	}
	for _, e := range named {
		if e.id != id {
			continue
		}
		for _, v := range (&convention.Set{}).Among(e.option) {
			c := to(e.option, v)
			if v != c.From && (e.from == "" || e.from == c.From.String()) && (e.to == "" || e.to == v.String()) && !slices.ContainsFunc(list, func(l []stage.Change) bool { return l[0] == c }) {
				list = append(list, []stage.Change{c})
			}
		}
	}
	return list
}

// OfChange returns what the registry knows of a change of an option; ok is false if it knows nothing.
func OfChange(c stage.Change) (n Named, ok bool) {
	if c.Option == "kl.beta" && doubled(c) {
		return *bug.MustFind("KL-TWICE"), true
	}
	if c.Option == "eos.penalty" && c.From.Kind() == convention.Number && c.To.Kind() == convention.Number && c.To.Num() == -c.From.Num() {
		return *bug.MustFind("EOS-PENALTY-SIGN"), true
	}
	for _, e := range named {
		if e.option == c.Option && (e.from == "" || e.from == c.From.String()) && (e.to == "" || e.to == c.To.String()) {
			return *bug.MustFind(e.id), true
		}
	}
	return Named{}, false
}

// doubled reports whether a number is twice the declared one, as far as a solved one is known.
func doubled(c stage.Change) bool {
	return c.From.Kind() == convention.Number && c.To.Kind() == convention.Number && c.From.Num() > 0 && math.Abs(c.To.Num()-2*c.From.Num()) <= 1e-3*c.To.Num()
}

// OfChangeIn is [OfChange] of a change that a check alone asks for, where others that read the option are right under the declared one: of a
// logged number it is a bug of the log, of all tokens in the KL term and not in the loss one of that term, and of the token losses, which are
// those of a ratio over sequences, one of that ratio.
func OfChangeIn(check string, c stage.Change, rightElsewhere bool) (n Named, ok bool) {
	padded := c.Option == "mask.tokens" && c.To.String() == "none"
	logged := strings.HasPrefix(check, "scalars/") && rightElsewhere
	id := ""
	switch {
	case check == "aggregate/kl_loss" && padded:
		id = "KL-OUTSIDE-MASK"
	case check == "aggregate/entropy_loss" && padded && rightElsewhere:
		id = "ENTROPY-AGGREGATION"
	case check == "token_loss/policy" && padded:
		id = "RATIO-MEAN-PADS"
	case logged && padded && strings.HasSuffix(check, "entropy"):
		id = "METRIC-ENTROPY-PADS"
	case logged && padded && slices.Contains(updateMetrics, check):
		id = "METRIC-APPROX-KL-PADS"
	case logged && c.Option == "dpo.beta":
		id = "METRIC-REWARD-BETA"
	case logged && padded:
		id = "METRIC-PADS"
	case logged && (c.Option == "clip.low" || c.Option == "clip.high") && slices.Contains(clipMetrics, check):
		id = "METRIC-CLIP-FRACTION"
	default:
		return OfChange(c)
	}
	return *bug.MustFind(id), true
}

// RowsOf returns the codes that a bug of that id stands for.
func RowsOf(id string) []string {
	if b := bug.Find(id); b != nil {
		return b.Rows
	}
	return nil
}
