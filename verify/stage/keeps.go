package stage

import (
	"math"
	"slices"

	"plumbline/reference/rl"
	"plumbline/verify/tol"
)

// keeps multiplies the weight of the policy term by what the loss leaves out of it: rows that went too far (loss.off_policy_max) and
// tokens of low entropy (loss.top_entropy). A decision that lies within its own error may be either, so that the weight of these cells
// is open: its error is the weight itself.
func (c *Case) keeps(p *policy) {
	if limit := c.Default("loss.off_policy_max", math.NaN()); !math.IsNaN(limit) {
		c.keepNear(p, limit)
	}
	if keep, open := c.highEntropy(); keep != nil && c.OK() {
		p.thin(keep, open)
	}
}

// thin multiplies the weight of the policy term by keep, of 0 and 1, which is open where open says so.
func (p *policy) thin(keep []float64, open []bool) {
	w := Input{X: slices.Clone(keep), Err: make([]float64, len(keep)), Half: p.weight.Half}
	for i := range keep {
		x := 1.0
		if p.weight.X != nil {
			x = p.weight.X[i]
			w.Err[i] = p.weight.E(i)
		}
		w.X[i] *= x
		if open[i] {
			w.Err[i] += math.Abs(x)
		}
	}
	p.weight = w
}

// keepNear leaves out the rows with A < 0 whose mean of gen − lp over the tokens is above the limit; without an engine, of old − lp
// (TRL 1.16 get_off_policy_mask). Differences have the type of both, their sum and the mean are rounded to it:
//
//	e = (Σ(e_lp + e_gen + u·|d|) + fold(n)·Σ|d| + u·|Σd|)/n + u·|mean| + u·|limit|
func (c *Case) keepNear(p *policy, limit float64) {
	from := p.old
	name := "logp_old"
	if c.Has("logp_gen") {
		name = "logp_gen"
		from = c.Token(name)
	} else if from.X != nil && c.Has(name) {
		from = c.Token(name) // as stored: what ratios make of it is theirs
	}
	if from.X == nil { // a detached copy of lp: nothing is far
		return
	}
	if !c.OK() {
		return
	}
	b, u := c.B, p.u
	if v := min(halfOf(b, name), halfOf(b, "logp_new")); v > 0 {
		u = v
	}
	x := slices.Clone(from.X)
	for i, v := range x {
		if math.IsNaN(v) { // torch.nan_to_num of the difference
			x[i] = p.lp.X[i]
		}
	}
	keep := rl.OffPolicyMask(nil, p.lp.X, x, p.adv.X, p.mask, b.Rows, b.Cols, limit)
	open := make([]bool, len(keep))
	for r := range b.Rows {
		var sum, size, e, n float64
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			if p.mask[i] {
				d := x[i] - p.lp.X[i]
				sum += d
				size += math.Abs(d)
				e += p.lp.E(i) + from.E(i) + u*math.Abs(d)
				n++
			}
		}
		n = max(n, 1)
		e = (e+foldError(int(n), c.Unit)*size+u*math.Abs(sum))/n + u*math.Abs(sum/n) + u*math.Abs(limit)
		near := math.Abs(sum/n-limit) <= e
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			open[i] = p.mask[i] && (near && p.adv.X[i]-p.adv.E(i) < 0 || keep[i] == 0 && p.adv.X[i]+p.adv.E(i) >= 0)
		}
	}
	p.thin(keep, open)
}

// highEntropy returns 1 for the tokens whose entropy reaches the quantile of loss.top_entropy over the tokens of a micro-batch, those of
// all ranks together, else 0, and where that is open; nil where all tokens are kept. The quantile is interpolated in float32 (TRL 1.16
// get_high_entropy_mask, torch.quantile), see [quantile].
func (c *Case) highEntropy() (keep []float64, open []bool) {
	top := c.Default("loss.top_entropy", math.NaN())
	if math.IsNaN(top) || top >= 1 {
		return nil, nil
	}
	h := c.Token("entropy")
	b := c.B
	if b.Meta.WorldSize > 1 && len(b.Missing) > 0 {
		note(&c.Absent, "entropy of all ranks")
	}
	if !c.OK() {
		return nil, nil
	}
	keep, open = make([]float64, len(h.X)), make([]bool, len(h.X))
	done := map[int]bool{}
	for _, first := range b.Files {
		if done[first.MicroBatch] {
			continue
		}
		done[first.MicroBatch] = true
		mask := make([]bool, len(h.X))
		var kept []float64
		for _, f := range b.Files {
			if f.MicroBatch != first.MicroBatch {
				continue
			}
			for i := f.Lo * b.Cols; i < f.Hi*b.Cols; i++ {
				if mask[i] = b.Mask[i]; mask[i] {
					kept = append(kept, h.X[i])
				}
			}
		}
		if len(kept) == 0 {
			continue
		}
		slices.Sort(kept)
		low, high := quantile(kept, 1-top)
		for i, m := range mask {
			if m {
				keep[i], open[i] = 0, h.X[i]+2*h.E(i) >= low && h.X[i]-2*h.E(i) < high
				if h.X[i] >= low {
					keep[i] = 1
				}
			}
		}
	}
	return keep, open
}

// quantile returns the ends between which the quantile q of sorted numbers lies as float32 has it. The rank r = q·(n − 1) is a product of two
// numbers of float32, which is rounded to one before its fraction is taken, or not (torch 2.15: of a whole rank 4·10⁻⁷ may be left), and the value
// x_⌊r⌋ + (r − ⌊r⌋)·(x_⌈r⌉ − x_⌊r⌋) is off by 4u of itself. It is never outside the two numbers, to which rounding is monotone: between two equal
// ones, as entropies of a 16-bit type often are, it is that number, and so it is at a rank that is whole.
func quantile(x []float64, q float64) (low, high float64) {
	last := len(x) - 1
	low, high = math.Inf(1), math.Inf(-1)
	for _, rank := range []float64{float64(float32(q) * float32(last)), float64(float32(q)) * float64(last)} {
		k := min(int(rank), last)
		value, next := x[k], x[min(k+1, last)]
		off := 0.0
		if rank != float64(k) {
			value += float64((rank - float64(k)) * (next - value))
			off = 4 * tol.U32 * math.Abs(value)
		}
		low, high = min(low, max(value-off, x[k])), max(high, min(value+off, next))
	}
	return low, high
}

// ofHighEntropy restricts the mean over the tokens of a micro-batch to those that loss.top_entropy keeps, as TRL does with its entropy
// bonus. A token that is open moves a mean of n by at most its value and that of the mean, over n.
func (c *Case) ofHighEntropy(red *reduction) *reduction {
	keep, open := c.highEntropy()
	if keep == nil || red == nil {
		return red
	}
	red.mask = make([]bool, len(keep))
	for f, file := range c.B.Files {
		var n, undecided float64
		for i := file.Lo * c.B.Cols; i < file.Hi*c.B.Cols; i++ {
			if red.mask[i] = keep[i] == 1; red.mask[i] {
				n++
			}
			if open[i] {
				undecided++
			}
		}
		red.tokens[f], red.o[f].Tokens = n, max(n, 1)
		red.slack = max(red.slack, 2*undecided/max(n, 1))
	}
	return red
}
