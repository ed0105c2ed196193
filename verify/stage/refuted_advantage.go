package stage

import (
	"math"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// NotARecursion reports whether the advantages of some rows are of no recursion over what their returns exceed values by, whitened or not, whatever nobody declares.
// With R − V = Σ (γλ)^k·δ, which gives δ of every token that has one behind it, advantages of any other λ', and any line a·x + b of them, have
//
//	A_t = a·δ_t + γλ'·A_{t+1} + b·(1 − γλ')
//
// which are three numbers of a row. Rows are taken of eight tokens or more beside their last, and a quarter of these may be off.
func NotARecursion(b *dump.Batch, gamma, lambda float64) bool {
	const least, rows, near = 8, 2, 1e-2
	adv, ret, v := b.Token("advantages"), b.Token("returns"), b.Token("values")
	if adv == nil || ret == nil || v == nil || b.Tensors["segment_ids"] != nil {
		return false
	}
	dones := b.Token("dones")
	wrong := 0
	for r := range b.Rows {
		o := observations{n: 3}
		var sum, square float64
		for i := r * b.Cols; i+1 < (r+1)*b.Cols; i++ {
			if !b.Mask[i] || !b.Mask[i+1] || dones != nil && (dones[i] != 0 || dones[i+1] != 0) {
				continue
			}
			o.add(ret[i]-v[i]-gamma*lambda*(ret[i+1]-v[i+1]), adv[i+1], 1, adv[i])
			sum, square = sum+adv[i], square+adv[i]*adv[i]
		}
		n := float64(o.len())
		if n < least {
			continue
		}
		spread := math.Sqrt(max(square/n-sum/n*sum/n, 0))
		if w, left := o.solve(); w != nil && spread > 0 && left > near*spread {
			wrong++
		}
	}
	return wrong >= rows
}

// NotReturns reports whether the returns of some file are of no γ and λ: of every token that has one behind it they are
//
//	R_t = r_t + γ(1 − λ)·V_{t+1} + γλ·R_{t+1}
//
// and where rewards, or the advantages that returns were taken from, were whitened before, R − V is still one line of r_t, V_t, V_{t+1} and R_{t+1} − V_{t+1}
// for all tokens. A quarter of them may be off.
func NotReturns(b *dump.Batch) bool {
	const least, near = 48, 1e-2
	ret, v, reward := b.Token("returns"), b.Token("values"), b.Token("token_rewards")
	if ret == nil || v == nil || reward == nil || b.Tensors["segment_ids"] != nil {
		return false
	}
	dones := b.Token("dones")
	for _, f := range b.Files {
		o := observations{n: 5}
		var sum, square float64
		for i := f.Lo * b.Cols; i+1 < f.Hi*b.Cols; i++ {
			if (i+1)%b.Cols == 0 || !b.Mask[i] || !b.Mask[i+1] || dones != nil && (dones[i] != 0 || dones[i+1] != 0) {
				continue
			}
			x := ret[i] - v[i]
			o.add(reward[i], v[i+1], v[i], ret[i+1]-v[i+1], 1, x)
			sum, square = sum+x, square+x*x
		}
		n := float64(o.len())
		if n < least {
			continue
		}
		spread := math.Sqrt(max(square/n-sum/n*sum/n, 0))
		if w, left := o.solve(); w != nil && spread > 0 && left > near*spread {
			return true
		}
	}
	return false
}

// NotOfScores reports whether advantages of rows of a group do not follow their scores: of two rows that ended, one with the higher score has the lower
// advantage, or equal scores have two. Every estimator of a group subtracts one baseline from all of its rows, or for each the mean of the others, and divides
// by one number, so that advantages rise with scores; what shapes scores by the end or the length of a response changes long ones, which are left out. It holds
// where scores are all that a reward is made of: a KL in it, and scores of several functions that are normalised apart, are not among them. Advantages are
// those of last tokens, which no discount lowers.
func NotOfScores(b *dump.Batch) bool {
	const pairs, groups, near = 3, 2, 1e-3
	score, id := b.Row("scores"), b.Row("group_id")
	c := NewCase(b, &convention.Set{}, 0)
	adv := c.Optional("advantages").X
	if score == nil || id == nil || len(adv) != len(b.Mask) || b.Tensors["rewards_per_func"] != nil || b.Tensors["segment_ids"] != nil {
		return false
	}
	longest := -1
	for r := range b.Rows {
		longest = max(longest, c.last(r))
	}
	type row struct{ score, adv float64 }
	of := map[float64][]row{}
	most := 0.0
	for r := range b.Rows {
		last := c.last(r)
		if last < 0 || !b.Mask[r*b.Cols+last] || 4*(last+1) > 3*(longest+1) || math.IsNaN(score[r]) {
			continue
		}
		x := row{score[r], adv[r*b.Cols+last]}
		of[id[r]] = append(of[id[r]], x)
		most = max(most, math.Abs(x.adv))
	}
	wrong, in := 0, 0
	for _, rows := range of {
		n := 0
		for i, x := range rows {
			for _, y := range rows[:i] {
				if x.score > y.score {
					x, y = y, x
				}
				if d := x.adv - y.adv; d > near*most || x.score == y.score && d < -near*most {
					n++
				}
			}
		}
		if wrong += n; n > 0 {
			in++
		}
	}
	return wrong >= pairs && in >= groups
}
