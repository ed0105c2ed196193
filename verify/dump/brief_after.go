package dump

import (
	"math"
	"slices"
	"strings"

	"plumbline/verify/check"
)

// after says which failures that nothing explains may come from one that stands before them, with a name or without: a gradient from its loss, a
// logged number from what it is the mean of.
func after(later, earlier string) bool {
	of := map[string][]string{"gradient": {"aggregate", "token_loss", "ratio"}, "aggregate": {"aggregate", "token_loss"}, "scalars": {"aggregate", "token_loss", "kl", "ratio", "reward"}, "gae": {"gae"}, "agreement": {"agreement", "logp"}}
	return !apart(later, earlier) && slices.Contains(of[groupOf(later)], groupOf(earlier)) || later == "scalars/grad_norm" && groupOf(earlier) == "update"
}

// apart reports whether one of two checks is of the policy's loss and the other of the critic's: neither is made of the other. Nor is the critic's loss made of the
// sum that it is in.
func apart(later, earlier string) bool {
	critic := func(id string) bool { return strings.Contains(id, "value") } // aggregate/value_loss, gradient/dvalues, scalars/value_loss
	policy := func(id string) bool {
		return slices.Contains([]string{"token_loss", "ratio", "kl"}, groupOf(id)) || slices.Contains([]string{"aggregate/pg_loss", "aggregate/kl_loss", "aggregate/entropy_loss", "gradient/dlogp"}, id)
	}
	return critic(later) && (policy(earlier) || earlier == "aggregate/loss") || critic(earlier) && policy(later)
}

// made says what a stage is made of (diagnosis.md: the stages and what they take in), and which outputs are two sides of one formula: the loss of a pair and its
// gradients, the log-probs and entropies of one softmax. Where nothing explains the earlier, what is made of it cannot be judged apart from it.
var made = map[string][]string{
	"logp": {"logp"}, "reward": {"reward", "kl"}, "advantage": {"advantage"}, "gae": {"gae"}, "token_loss": {"ratio", "kl"}, "preference": {"preference", "token_loss"},
	"aggregate": {"aggregate", "token_loss", "ratio"}, "gradient": {"gradient", "aggregate", "token_loss", "ratio", "kl", "preference"},
	"scalars": {"aggregate", "token_loss", "kl", "ratio", "reward", "preference", "gae"},
}

// exchanged are the stages that are computed from rows of log-probs.
var exchanged = []string{"ratio", "kl", "token_loss", "aggregate", "gradient", "scalars", "agreement"}

// leadsTo reports whether a failure without a name may be left under one that stands before it, by name or not. One that fails for certain stays beside a
// bug that does not explain it: it is a second one.
func leadsTo(earlier, later *check.Result) bool {
	names := causes(earlier)
	if later.Verdict == check.Fail && len(names) > 0 {
		return false
	}
	if slices.Contains(names, "ROWS-SWAPPED") {
		return slices.Contains(exchanged, groupOf(later.Check))
	}
	return counted(earlier) && !apart(later.Check, earlier.Check) && (slices.Contains(made[groupOf(later.Check)], groupOf(earlier.Check)) || after(later.Check, earlier.Check) || sides(later.Check, earlier.Check))
}

// sides are logged numbers of one formula: the rewards of the chosen and of the rejected answer, and their difference.
func sides(a, b string) bool {
	const of = "scalars/rewards_"
	return strings.HasPrefix(a, of) && strings.HasPrefix(b, of)
}

// counted reports whether elements of a result, or rules of it, were found wrong in some step.
func counted(res *check.Result) bool { return res.Steps != nil && res.Steps.Bad > 0 }

// consequence reports whether a failure with these names is what a bug before it leads to. Between log-probs of other rows a line has a
// slope near 0, which is no temperature; what the program made of the rows before they were exchanged, as rewards and logged numbers, cannot
// be right by the exchanged ones; a count of the tokens is not one of a wrong mask; a KL of the rollout's log-probs has no gradient; an
// estimate with the wrong sign pulls the wrong way; and a loss that is constant where it is clipped has no gradient there.
func consequence(bug, later string, names []string) bool {
	logged := groupOf(later) == "scalars" && !slices.ContainsFunc(names, func(n string) bool { return !strings.HasPrefix(n, "METRIC-") })
	only := func(list ...string) bool {
		return !slices.ContainsFunc(names, func(n string) bool { return !slices.Contains(list, n) })
	}
	switch bug {
	case "ROWS-SWAPPED":
		return later == "agreement/temperature" || later == acrossFirst || logged || len(names) == 0 && slices.Contains([]string{"reward", "advantage", "gae"}, groupOf(later))
	case "MASK-SHIFT":
		return later == "aggregate/num_items"
	case "KL-OF-OLD", "KL-OF-GEN": // numbers of the rollout carry no gradient
		return later == "gradient/dlogp" && only("KL-DETACHED")
	case "KL-REVERSED":
		return later == "gradient/dlogp" && len(names) > 0 && only("KL-SIGN", "KL-REVERSED")
	case "LOGP-SAME-POSITION": // the entropy is of the same logits
		return later == "logp/entropy" && len(names) > 0 && only("LOGP-SHIFT")
	case "LOGP-TEMPERATURE":
		return later == "logp/entropy" && len(names) > 0 && only("ENTROPY-TEMPERATURE")
	case "LOGP-FORM": // and of the same softmax
		return later == "logp/entropy" && only("ENTROPY-FORM")
	}
	switch {
	case strings.HasPrefix(bug, "WHITEN-") || bug == "reward/token": // rewards that were whitened otherwise are whitened no more
		return groupOf(later) == "gae" && len(names) > 0 && only("WHITEN-REWARDS-MISSING", "rewards.whiten=no")
	case strings.HasPrefix(bug, "MASK-"):
		return later == "aggregate/num_items" && len(names) == 0
	case strings.HasPrefix(bug, "CLIP-"):
		return later == "gradient/dlogp" && len(names) > 0 && only("GRAD-CUT-OFF")
	}
	return false
}

// gathered puts findings without a name under those that they come from where these stand behind them: a range that is left under the formula that leaves it, what is
// undecided under what failed, and one side of a formula under the other. The worse verdict leads, and of two failures the one with a name.
func gathered(found []check.Finding, results []check.Result) []check.Finding {
	named := func(f *check.Finding) bool { return len(causes(&results[f.Results[0]])) > 0 }
	under := func(f, g *check.Finding) bool {
		return slices.ContainsFunc(f.Results, func(i int) bool {
			return (counted(&results[i]) || ranges[results[i].Check] != nil) && slices.ContainsFunc(g.Results, func(k int) bool {
				a, b := &results[i], &results[k]
				switch {
				case ranges[a.Check] != nil: // the same numbers
					return slices.Contains(ranges[a.Check], b.Check)
				case f.Verdict == check.Fail && named(g):
					return false
				}
				return leadsTo(b, a) || leadsTo(a, b)
			})
		})
	}
	leads := func(g, f *check.Finding, before bool) bool {
		gs, fs := slices.Index(severity, g.Verdict), slices.Index(severity, f.Verdict)
		return ranges[f.Seen[0]] != nil || gs < fs || gs == fs && (before || named(g))
	}
	kept := slices.Clone(found)
	for i := 0; i < len(kept); i++ {
		f := &kept[i]
		if named(f) {
			continue
		}
		j := slices.IndexFunc(kept, func(g check.Finding) bool {
			return g.Results[0] != f.Results[0] && leads(&g, f, g.Results[0] < f.Results[0]) && under(f, &g)
		})
		if j < 0 {
			continue
		}
		list(&kept[j], f, results)
		kept = slices.Delete(kept, i, i+1)
		i = -1
	}
	return kept
}

// list puts what was seen of f under g, in the order of the pipeline behind what names g.
func list(g, f *check.Finding, results []check.Result) {
	g.Results = append(slices.Clone(g.Results), f.Results...)
	slices.Sort(g.Results[1:])
	g.Seen = nil
	for _, k := range g.Results {
		g.Seen = append(g.Seen, results[k].Check)
	}
}

// reduced puts terms of a loss under one another whose numbers are wrong by the same factor in every file: they go through one sum.
func (s *session) reduced(found []check.Finding, results []check.Result) []check.Finding {
	kept := slices.Clone(found)
	for i := 0; i < len(kept); i++ {
		f := &kept[i]
		j := slices.IndexFunc(kept, func(g check.Finding) bool {
			of := slices.Index(severity, g.Verdict) - slices.Index(severity, f.Verdict)
			return (of < 0 || of == 0 && g.Results[0] < f.Results[0]) && s.sameFactors(&results[g.Results[0]], &results[f.Results[0]])
		})
		if j >= 0 {
			list(&kept[j], f, results)
			kept = slices.Delete(kept, i, i+1)
			i = -1
		}
	}
	return kept
}

// sameFactors reports whether two terms of one loss are wrong by the same factors in every file of the step in which they first are.
func (s *session) sameFactors(a, b *check.Result) bool {
	const same = 1e-4 // of a number; those of float32 agree to 1e-6, and a term that is a small difference to less
	if groupOf(a.Check) != "aggregate" || groupOf(b.Check) != "aggregate" {
		return false
	}
	x, y := s.failureOf(a.Check), s.failureOf(b.Check)
	if x == nil || y == nil || x.Case.B.Meta.Step != y.Case.B.Meta.Step || len(x.Got) != len(y.Got) || len(x.Pred.Want) != len(x.Got) || len(y.Pred.Want) != len(y.Got) {
		return false
	}
	for i := range x.Got {
		p, q := x.Got[i]*y.Pred.Want[i], y.Got[i]*x.Pred.Want[i]
		if !(math.Abs(p-q) <= same*max(math.Abs(p), math.Abs(q))) {
			return false
		}
	}
	return len(x.Got) > 0
}

// severity orders verdicts, the worst first.
var severity = []check.Verdict{check.Fail, check.Convention, check.Undetermined, check.Warn}

// ranges are checks of what any right output is within, and those that recompute the output.
var ranges = map[string][]string{"logp/entropy_range": {"logp/entropy", "logp/new"}, "advantage/moments": {"advantage/group", "gae/advantage"}}
