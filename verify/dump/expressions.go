package dump

import (
	"plumbline/verify/bug"
	"plumbline/verify/check"
	"plumbline/verify/fault"
)

// expressions are what the values of options look like in a program, in PyTorch's words: loss and mask are [B, T], m the mask, G the
// size of a group, d the difference of log-probs to the reference. They are written from the formulas of conventions.md.
var expressions = map[string]string{
	"agg.kind=token":               "(loss * mask).sum() / mask.sum()",
	"agg.kind=seq_mean_token_mean": "((loss * mask).sum(-1) / mask.sum(-1)).mean()",
	"agg.kind=seq_mean_token_sum":  "(loss * mask).sum(-1).mean()",
	"agg.kind=seq_sum_const":       "(loss * mask).sum() / (B * max_completion_length)",
	"agg.kind=token_sum":           "(loss * mask).sum()",
	"agg.div_ga=true":              "loss / gradient_accumulation_steps",
	"agg.div_ga=false":             "loss, not divided by the accumulation steps",
	"agg.denominator=micro":        "… / mask.sum() of the micro-batch",
	"agg.denominator=rank":         "… / mask.sum() of the rank's micro-batches",
	"agg.denominator=global":       "… / mask.sum() of all ranks and micro-batches",
	"adv.kind=raw":                 "scores",
	"adv.kind=group":               "(scores - mean of the group), scaled as adv.scale says",
	"adv.ddof=0":                   "scores.std(correction=0)",
	"adv.ddof=1":                   "scores.std()",
	"adv.scale=none":               "scores - mean",
	"adv.scale=group_std":          "(scores - mean) / (std of the group + eps)",
	"adv.scale=batch_std":          "(scores - mean) / (std of the batch + eps)",
	"adv.baseline=mean":            "scores - scores.mean()",
	"adv.baseline=loo":             "scores - (scores.sum() - scores) / (G - 1)",
	"kl.kind=k1":                   "logp - logp_ref",
	"kl.kind=k2":                   "0.5 * (logp - logp_ref) ** 2",
	"kl.kind=k3":                   "exp(logp_ref - logp) - (logp_ref - logp) - 1",
	"kl.kind=abs":                  "(logp - logp_ref).abs()",
}

// capped is a weight under tis.high, of which only the number differs.
func capped(value string) string {
	if value == "none" {
		return "w = exp(d)"
	}
	return "w = exp(d).clamp(max=" + value + ")"
}

// code fills in what the program computes and what is due: from the options of an explanation, else from the bug.
func code(f *check.Finding, e *check.Explanation, whose string) {
	for _, o := range e.Options {
		f.Yours, f.Theirs = expressions[o.Option+"="+o.Value], expressions[o.Option+"="+o.Declared]
		if o.Option == "tis.high" {
			f.Yours, f.Theirs = capped(o.Value), capped(o.Declared)
		}
		if f.Yours != "" && f.Theirs != "" {
			f.Whose = whose
			return
		}
	}
	f.Yours, f.Theirs = "", ""
	if b := bug.Find(e.Fault); b != nil && b.Before != "" && b.After != "" && (len(e.Options) > 0 || e.Title == b.Title) { // a variant has other code
		f.Yours, f.Theirs, f.Whose = b.Before, b.After, whose
	}
}

// titleOf names a bug, or what the options of an explanation say.
func titleOf(e *check.Explanation) (name, title string) {
	name, title = e.Fault, e.Title
	if h := fault.Find(e.Fault); h != nil && len(e.Options) == 0 && title == "" {
		title = h.Title
	}
	return name, title
}
