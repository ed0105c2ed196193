package stage

import (
	"fmt"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// heldAfterBaseline proposes the range that what a baseline leaves of scores is held in, before the KL is subtracted (OpenRLHF 0.11.2, make_experience
// and compute_reward, reward.clip_range): of the mean of the group, or of its other responses.
func (t rewardTerm) heldAfterBaseline(b *dump.Batch, r []float64) (lists [][]assign) {
	if t.white {
		return nil
	}
	c, y := NewCase(b, &convention.Set{}, 0), make([]float64, b.Rows)
	for row := range y {
		y[row] = math.NaN()
		if last := c.last(row); last >= 0 {
			i := row*b.Cols + last
			y[row] = r[i] - t.slope*t.k[i]
		}
	}
	for _, l := range leftByBaselines(b, y) {
		list := append([]assign{word("kl.place", "sequence_reward_after")}, l.list...)
		if rule := heldWithin(y, l.left, 1); rule != nil {
			list = append(list, word("reward.clip", "after_baseline"), rule[1])
		} else if !nearAll(y, l.left) {
			continue
		}
		lists = append(lists, t.withKL(list)...)
	}
	return lists
}

// withKL is a list with the estimator of the KL and with what its coefficient may be.
func (t rewardTerm) withKL(list []assign) (lists [][]assign) {
	if k := slices.IndexFunc(t.list, func(a assign) bool { return a.option == "kl.kind" }); k >= 0 {
		list = append(list, t.list[k])
	}
	for _, tol := range []float64{1e-5, 1e-3} {
		if beta := written(-t.slope, tol); beta > 0 && !math.IsInf(beta, 0) {
			lists = append(lists, append(slices.Clone(list), amount("kl.beta", beta)))
		}
	}
	return lists
}

// BaselinesUnder returns what the sums of rewards from each token on give, as [Shown] does, of the KL of an estimator without values whose scores have any
// baseline of their group, that of a bug, too: the estimator and the coefficient of the KL.
func BaselinesUnder(b *dump.Batch, set *convention.Set) [][]Change {
	ret := b.Token("returns")
	if ret == nil {
		ret = b.Token("advantages")
	}
	if ret == nil || b.Token("values") != nil || b.Token("token_rewards") != nil || b.Row("group_id") == nil || !variesInRow(b) {
		return nil
	}
	t := recursionOf(b, ret, rewardEstimates(b, set))
	if t == nil || t.shifted || t.k == nil {
		return nil
	}
	t.slope = t.w[1]
	var lists [][]assign
	for _, center := range []string{"loo", "mean"} {
		list := []assign{word("kl.place", "sequence_reward_after"), word("adv.kind", "group"), word("adv.center", center), word("adv.scale", "none")}
		if gamma := written(unit(t.w[0]), 1e-4); gamma != 1 {
			list = append(list, amount("gae.gamma", gamma))
		}
		lists = append(lists, t.withKL(list)...)
	}
	return openOf(lists, set)
}

// heldAdvantages is [rewardTerm.heldAfterBaseline] of advantages that have no KL in them and are one number of a row.
func heldAdvantages(b *dump.Batch) (lists [][]assign) {
	y := rowAdvantages(b)
	if len(y) != b.Rows || variesInRow(b) {
		return nil
	}
	for _, l := range leftByBaselines(b, y) {
		if rule := heldWithin(y, l.left, 1); rule != nil {
			lists = append(lists, slices.Concat([]assign{word("adv.kind", "group"), word("whiten.scope", "none")}, l.list, []assign{word("reward.clip", "after_baseline"), rule[1]}))
		}
	}
	return lists
}

// penalisedAdvantages proposes the rules for responses without an end that advantages show of scores less the mean of their group: whitened over a rollout, or not.
func penalisedAdvantages(b *dump.Batch) (lists [][]assign) {
	y := rowAdvantages(b)
	if len(y) != b.Rows || variesInRow(b) || len(b.Row("group_id")) != b.Rows || len(b.Row("scores")) != b.Rows {
		return nil
	}
	for _, l := range groupPenalties(b, y) {
		lists = append(lists, append([]assign{word("adv.kind", "group"), word("whiten.scope", "none")}, l.list...))
		for _, white := range whitenings {
			lists = append(lists, slices.Concat([]assign{word("adv.kind", "rfpp_baseline")}, l.list, white))
		}
	}
	return lists
}

// HeldEnds is the range that advantages of rows are held in by their own ends, whatever baseline they have: the largest, or the smallest, is that of three rows and
// more, of as many groups. An end that is not there is the other one's mirror. Nil where a baseline of a release says it, or nothing does.
func HeldEnds(ch *Check, b *dump.Batch, set *convention.Set) [][]Change {
	const least = 3
	y, id := rowAdvantages(b), b.Row("group_id")
	if ch.ID != "advantage/group" || len(y) != b.Rows || len(id) != b.Rows || b.Rows == 0 || variesInRow(b) || len(heldAdvantages(b)) > 0 {
		return nil
	}
	lo, hi := slices.Min(y), slices.Max(y)
	at := func(end float64) bool {
		groups := map[float64]bool{}
		for row, x := range y {
			if x == end {
				groups[id[row]] = true
			}
		}
		return len(groups) >= least
	}
	switch low, high := at(lo), at(hi); {
	case low && !high && -lo >= hi:
		hi = -lo
	case high && !low && -hi <= lo:
		lo = -hi
	case !low || !high:
		return nil
	}
	v, err := convention.Parse("reward.clip_range", fmt.Sprintf("%g,%g", written(lo, 1e-6), written(hi, 1e-6)))
	if err != nil || !(lo < 0 && hi > 0) {
		return nil
	}
	var lists [][]assign
	for _, center := range []string{"mean", "loo"} {
		lists = append(lists, []assign{word("adv.kind", "group"), word("adv.center", center), word("adv.scale", "none"), word("whiten.scope", "none"),
			word("reward.clip", "after_baseline"), {"reward.clip_range", v}})
	}
	return openOf(lists, set)
}

// nearAll reports whether x are y but for rounding, where they are known, as they are of three rows.
func nearAll(x, y []float64) bool {
	known := 0
	size := maxAbs(y)
	for i := range x {
		if math.IsNaN(x[i]) {
			continue
		}
		if known++; math.Abs(x[i]-y[i]) > 1e-5*size {
			return false
		}
	}
	return known >= 3
}
