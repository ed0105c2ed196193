package stage

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// whitenings are how releases whiten advantages over a rollout: verl's masked_whiten, and OpenRLHF's experience maker.
var whitenings = [][]assign{
	{word("whiten.scope", "global"), word("whiten.mask", "response"), word("whiten.ddof", "1"), word("whiten.eps_place", "inside_sqrt"), word("whiten.shift_mean", "true")},
	{word("whiten.scope", "global"), word("whiten.mask", "response"), word("whiten.ddof", "0"), word("whiten.eps_place", "floor_var"), word("whiten.shift_mean", "true")},
}

// estimators proposes the estimators of releases without a critic that no profile has by default: REINFORCE++ with a discount that its advantages
// show, and with the baseline of the group.
func estimators(b *dump.Batch) (lists [][]assign) {
	if variesInRow(b) {
		for _, gamma := range discounts(b) {
			base := []assign{word("adv.kind", "rfpp"), word("rfpp.mode", "return_to_go"), amount("gae.gamma", gamma)}
			for n, w := range whitenings {
				hole := word("gae.hole", []string{"carry", "zero_step"}[n])
				lists = append(lists, append(append([]assign{hole}, base...), w...))
			}
			lists = append(lists, append([]assign{word("whiten.scope", "none")}, base...))
		}
		return lists
	}
	lists = append(groupForms(b), batchForms(b)...)
	for _, kind := range []string{"rfpp_baseline", "raw"} {
		for _, w := range whitenings {
			lists = append(lists, append([]assign{word("adv.kind", kind)}, w...))
		}
	}
	return lists
}

// batchForms proposes the mean of the batch as the baseline where every score exceeds its advantage by it (OpenRLHF 0.11.2, flash_reinforce).
func batchForms(b *dump.Batch) [][]assign {
	base, ok := baselineOfAll(b)
	if m := momentsOf(b.Row("scores"), nil, 0, 0, 0); !ok || math.Abs(base-m.mean) > 1e-5*(math.Abs(m.mean)+math.Sqrt(m.v)) {
		return nil
	}
	return [][]assign{{word("adv.kind", "batch_baseline"), word("adv.center", "mean"), word("adv.scale", "none"), word("whiten.scope", "none")}}
}

// baselineOfAll returns what every score exceeds its advantage by, where that is one number for eight rows and more.
func baselineOfAll(b *dump.Batch) (base float64, ok bool) {
	score, adv := b.Row("scores"), rowAdvantages(b)
	if len(score) != b.Rows || len(adv) != b.Rows {
		return 0, false
	}
	var x []float64
	size := 0.0
	for r, tokens := range (&Case{B: b}).rowsWithTokens() {
		if tokens {
			x = append(x, score[r]-adv[r])
			size = max(size, math.Abs(score[r]), math.Abs(adv[r]))
		}
	}
	if len(x) < 8 {
		return 0, false
	}
	base = x[0]
	for _, v := range x {
		if !(math.Abs(v-base) <= 1e-5*size) {
			return 0, false
		}
	}
	return base, true
}

// rareForms are those that no profile has by default and that are not whitened. By chance some numbers are those of one of them, too, so that
// they are searched after all others.
func rareForms(ch *Check, b *dump.Batch) (lists [][]assign) {
	if ch.ID == "gradient/dlogp" {
		return rareGradients(b)
	}
	if ch.ID != "advantage/group" && ch.ID != "advantage/return" || variesInRow(b) {
		return nil
	}
	for _, kind := range []string{"opo", "remax", "passk", "rfpp_baseline", "gpg"} {
		if kind == "remax" && b.Row("reward_baselines") == nil {
			continue // any baseline of a group is that of ReMax where its greedy answers were not dumped
		}
		lists = append(lists, []assign{word("adv.kind", kind), word("whiten.scope", "none")})
	}
	return lists
}

// variesInRow reports whether advantages have two numbers in the mask of a row. One number and zeros beside it are one: where the row of another response has no
// token, its advantages are 0. Zeros behind a reward are those of a return, which has two.
func variesInRow(b *dump.Batch) bool {
	x, reward := b.Token("advantages"), b.Token("token_rewards")
	if x == nil {
		return false
	}
	for r := range b.Rows {
		one, before := math.NaN(), -1 // the number of the row, and the token before
		for i := range b.TokensOf(r) {
			switch {
			case before >= 0 && x[i] != x[before] && len(reward) == len(x) && reward[before] != 0, math.IsNaN(x[i]):
				return true
			case x[i] == 0 || x[i] == one:
			case math.IsNaN(one):
				one = x[i]
			default:
				return true
			}
			before = i
		}
	}
	return false
}

// EstimatorUnseen is the tensor that a dump lacks for the estimators that its advantages may be of, where nobody says which; "" where it has them. Advantages that
// differ within rows are those of a recursion over values: no estimator of a whole response gives them, and those of its tokens cannot be tried, but for the ones
// that have no values. Other advantages are mostly those of groups, of which nothing says which rows they are.
func EstimatorUnseen(b *dump.Batch, set *convention.Set) (tensor string) {
	switch c := NewCase(b, set, 0); {
	case variesInRow(b):
		if b.Tensors["values"] == nil && b.Tensors["returns"] == nil && b.Tensors["sum_pi_squared"] == nil { // that is for the one estimator without values
			return "values"
		}
	case b.Tensors["group_id"] == nil && c.groupPrompts() == nil && (!set.Declares("adv.group_by") || math.IsNaN(FactNumber(set, "num_generations"))):
		return "group_id"
	}
	return ""
}

// TermsUnseen are the terms that a loss may have besides, by the options of their coefficients, of which a dump has no tensor: a bonus of entropies, and the loss of
// a critic, which advantages that differ within rows come from. The policy term is not there alone, so that the rest would show.
func TermsUnseen(b *dump.Batch) (tensors map[string]string) {
	lacks := func(names ...string) bool {
		return !slices.ContainsFunc(names, func(name string) bool { return b.Tensors[name] != nil })
	}
	tensors = map[string]string{}
	if !lacks("token_loss", "pg_loss") {
		return tensors
	}
	if lacks("entropy", "entropy_loss") {
		tensors["entropy.coef"] = "entropy"
	}
	if lacks("value_loss", "values_new", "sum_pi_squared") && variesInRow(b) { // a baseline of tokens that has no critic
		tensors["value.coef"] = "value_loss"
	}
	return tensors
}

// discounts proposes γ of a return that was whitened to a·G + b: G_t = r_t + γ·G_{t+1}, so that A_t = a·r_t + γ·A_{t+1} + (1 − γ)·b, where r are the
// rewards, or but for the last token 0.
func discounts(b *dump.Batch) (list []float64) {
	adv, r := b.Token("advantages"), b.Token("token_rewards")
	two, three := observations{n: 2}, observations{n: 3}
	for i := range adv {
		if (i+1)%b.Cols == 0 || !b.Mask[i] || !b.Mask[i+1] {
			continue
		}
		two.add(adv[i+1], 1, adv[i])
		if r != nil {
			three.add(r[i], adv[i+1], 1, adv[i])
		}
	}
	size := rms(adv, func(i int) bool { return b.Mask[i] })
	add := func(gamma float64) {
		for _, tol := range []float64{1e-4, 2e-3} {
			list = append(list, written(unit(gamma), tol))
		}
	}
	if w, left := two.solve(); w != nil && left <= size/256 {
		add(w[0])
	} else if w, left := three.solve(); w != nil && left <= size/256 {
		add(w[1])
	} else {
		list = append(list, 1)
	}
	return list
}
