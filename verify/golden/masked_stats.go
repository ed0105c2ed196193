package golden

import (
	"math"

	"plumbline/reference/rl"
)

// MaskedStats judges masked sums, means, variances, whitening and nanstd.
var MaskedStats = maskedStats.check()

var maskedStats = &section{
	name:  "masked_stats",
	title: "masked mean, variance and whitening are those of the frameworks",
	doc: `Recomputes masked_mean, masked_sum, masked_var, masked_whiten, masked_normalize and nanstd: Σx·m/(Σm + ε), variances with
and without n/(n−1), whitening with ε inside the root or as a floor. Compares values; empty and single masks must be
refused where verl and TRL raise.`,
	source: "options mean.*, whiten.*; reference/rl MaskedMean, MaskedVar, Whiten, NaNStd",
	functions: map[string]recompute{
		"verl masked_mean": maskedMean, "trl-ppo masked_mean": maskedMean, "openrlhf masked_mean": maskedMean,
		"verl masked_sum": maskedSum,
		"verl masked_var": maskedVar, "trl-ppo masked_var": maskedVar,
		"verl masked_whiten": maskedWhiten, "trl-ppo masked_whiten": maskedWhiten,
		"openrlhf masked_normalize": maskedNormalize,
		"trl nanstd":                nanStd,
	},
	faults: maskedStatsFaults,
}

// varOf is the masked variance of TRL and verl.
func (c *call) varOf(peer string, unbiased bool) rl.VarOptions {
	if unbiased {
		return c.whitenOf(peer, true).Var
	}
	o := rl.VarOptions{Mean: c.meanOf(peer)}
	o.Empty = o.Mean.Empty
	return o
}

// masked reads the inputs of this section.
func masked(c *call) (x []float64, m []bool, rows, cols int) {
	x, rows, cols = c.grid("x")
	return x, c.mask("mask", rows, cols), rows, cols
}

// byRow reads the axis of a statistic, which OpenRLHF calls dim: all elements, or each row.
func byRow(c *call) bool {
	key := "axis"
	if _, ok := c.e.Options["dim"]; ok {
		key = "dim"
	}
	axis, on := c.num(key)
	if on && axis != 1 && axis != -1 {
		c.undetermined("%s %v: the reference has statistics of rows and of everything", key, axis)
	}
	return on
}

func maskedMean(c *call) []answer {
	x, m, rows, cols := masked(c)
	each, o := byRow(c), c.meanOf(c.e.Peer)
	if !c.ok() {
		return nil
	}
	if each {
		got, err := rl.MaskedMeanRows(nil, x, m, rows, cols, o)
		return []answer{refused("mean", got, err)}
	}
	got, err := rl.MaskedMean(x, m, o)
	return []answer{refused("mean", []float64{got}, err)}
}

func maskedSum(c *call) []answer {
	x, m, rows, cols := masked(c)
	each := byRow(c)
	if !c.ok() {
		return nil
	}
	if each {
		return []answer{plain("sum", rl.RowSums(nil, x, m, rows, cols)...)}
	}
	return []answer{plain("sum", rl.MaskedSum(x, m, rl.OutsideIgnore))}
}

func maskedVar(c *call) []answer {
	x, m, _, _ := masked(c)
	o := c.varOf(c.e.Peer, c.flag("unbiased"))
	if !c.ok() {
		return nil
	}
	got, err := rl.MaskedVar(x, m, o)
	return []answer{refused("var", []float64{got}, err)}
}

func maskedWhiten(c *call) []answer {
	x, m, rows, cols := masked(c)
	o := c.whitenOf(c.e.Peer, c.flag("shift_mean"))
	if !c.ok() {
		return nil
	}
	got, err := rl.Whiten(nil, x, m, rows, cols, o)
	return []answer{refused("whitened", got, err)}
}

// maskedNormalize is OpenRLHF's, which whitens each row and multiplies by the mask, so that NaN outside stays.
func maskedNormalize(c *call) []answer {
	x, m, rows, cols := masked(c)
	if !byRow(c) {
		c.undetermined("dim null: OpenRLHF normalises rows")
	}
	o := c.whitenOf("openrlhf", true)
	if o.Scope, o.Var.Empty = rl.ScopeRow, rl.EmptyZero; !c.ok() {
		return nil
	}
	got, err := rl.Whiten(nil, x, m, rows, cols, o)
	for i := range got {
		if !m[i] {
			got[i] *= 0
		}
	}
	return []answer{refused("normalized", got, err)}
}

// nanStd is TRL's standard deviation of what is not NaN, called with the cells outside the mask set to NaN.
func nanStd(c *call) []answer {
	x, m, _, _ := masked(c)
	if byRow(c) {
		c.undetermined("dim 1: the entries of nanstd are of all cells")
	}
	if !c.ok() {
		return nil
	}
	n := 0
	inside := make([]float64, len(x))
	for i, v := range x {
		if inside[i] = v; !m[i] {
			inside[i] = math.NaN()
		}
		if inside[i] == inside[i] {
			n++
		}
	}
	std := rl.NaNStd(inside, 1)
	return []answer{leaking("std", []float64{std}, []float64{std * math.Sqrt(bessel32(n))}, LeakBessel)}
}
