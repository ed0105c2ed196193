package stage

import "math"

// bentShapes are policy losses of a token that no configuration has: a bug makes them, of which the rest of the loss, its coefficients and bounds, is right.
// n is the number of tokens of the row.
var bentShapes = []func(a, ratio, bound, n float64) float64{
	func(a, ratio, bound, _ float64) float64 { return -a * min(max(ratio, 1-bound), 1+bound) },
	func(a, ratio, bound, _ float64) float64 { return -max(a*ratio, a*min(max(ratio, 1-bound), 1+bound)) },
	func(a, ratio, bound, _ float64) float64 { return clippedLoss(a, 1/ratio, bound) },
	func(a, ratio, bound, _ float64) float64 { return clippedLoss(a, 1+math.Log(ratio), bound) },
	func(a, ratio, bound, _ float64) float64 { return -min(a*ratio, a*min(max(ratio, -bound), bound)) },
	func(a, ratio, bound, n float64) float64 { return clippedLoss(a, ratio, bound) / n },
	func(a, ratio, bound, n float64) float64 { return clippedLoss(a, ratio, bound) * n },
	func(a, ratio, bound, _ float64) float64 { return -clippedLoss(a, ratio, bound) },
}

// bentKLs are estimates of a KL that no configuration has, of d = lp − ref.
var bentKLs = []func(d float64) float64{
	func(d float64) float64 { return math.Expm1(d) - d },
	func(d float64) float64 { return math.Exp(-d) + d },
	func(d float64) float64 { return -d },
	func(d float64) float64 { return math.Exp(-d) - d - 1 },
	func(d float64) float64 { return d * d },
}

// clippedLoss is −min(ρA, clip(ρ, 1 − ε, 1 + ε)A).
func clippedLoss(a, ratio, bound float64) float64 {
	return -min(a*ratio, a*min(max(ratio, 1-bound), 1+bound))
}

// bentBounds is the number of the usual bounds that are tried beneath a bug.
const bentBounds = 8

// bentFile is what bugs make of the tokens of a file.
type bentFile struct {
	shapes  [][aggregations]float64 // by shape and bound
	kls     [][aggregations]float64
	columns [2][]float64 // means of columns, of the surrogate by bound and of the KL by estimate
	groups  [2][]float64 // means of groups
}

// bend adds what bugs make of the tokens of files.
func (l *lossForms) bend(c *Case, files []formFile, adv []float64) {
	b := c.B
	lp, ref, n := b.Token("logp_new"), b.Token("logp_ref"), c.tokensOfRows()
	old, _ := rolloutLogp(b)
	if old == nil {
		old = lp
	}
	x := make([]float64, len(lp))
	each := func(of func(i int) float64) []float64 {
		for i, m := range b.Mask {
			if x[i] = 0; m {
				x[i] = of(i)
			}
		}
		return x
	}
	for _, shape := range bentShapes {
		for _, bound := range usualBounds[:bentBounds] {
			for f, of := range c.aggregated(each(func(i int) float64 { return shape(adv[i], math.Exp(lp[i]-old[i]), bound, n[i/b.Cols]) })) {
				files[f].bent.shapes = append(files[f].bent.shapes, of)
			}
		}
	}
	apart := func(k int) {
		for f := range files {
			at := &files[f].bent
			lo, hi := b.Files[f].Lo, b.Files[f].Hi
			at.columns[k] = append(at.columns[k], meanOfMeans(b.Mask, x, lo, hi, b.Cols, func(_, col int) float64 { return float64(col) }))
			if id := b.Row("group_id"); id != nil {
				at.groups[k] = append(at.groups[k], meanOfMeans(b.Mask, x, lo, hi, b.Cols, func(row, _ int) float64 { return id[row] }))
			}
		}
	}
	for _, bound := range usualBounds[:bentBounds] {
		each(func(i int) float64 { return clippedLoss(adv[i], math.Exp(lp[i]-old[i]), bound) })
		apart(0)
	}
	if given := b.Token("kl"); given != nil {
		each(func(i int) float64 { return given[i] })
		apart(1)
		return
	}
	if ref == nil {
		return
	}
	for _, k := range klForms {
		each(func(i int) float64 { return k.of(lp[i] - ref[i]) })
		apart(1)
	}
	for _, of := range bentKLs {
		for f, of := range c.aggregated(each(func(i int) float64 { return of(lp[i] - ref[i]) })) {
			files[f].bent.kls = append(files[f].bent.kls, of)
		}
	}
}

// meanOfMeans is the mean of the means of the tokens of parts of rows lo to hi, a part having one key.
func meanOfMeans(mask []bool, x []float64, lo, hi, cols int, key func(row, col int) float64) float64 {
	sum, n := map[float64]float64{}, map[float64]float64{}
	for i := lo * cols; i < hi*cols; i++ {
		if k := key(i/cols, i%cols); mask[i] {
			sum[k] += x[i]
			n[k]++
		}
	}
	var all float64
	for k, s := range sum {
		all += s / n[k]
	}
	return all / float64(len(n))
}

// bent returns the forms with a bug in them. The options that they give are those beside the bug.
func (l *lossForms) bent() (list []candidate) {
	level := l.levels()[0]
	kinds, given := klForms, l.known[1]
	if !l.kl || given {
		kinds = kinds[:1]
	}
	for k, bound := range usualBounds[:bentBounds] {
		form := lossForm{level: level, high: bound, low: bound, engine: l.engine}
		if !l.ratios {
			form.high, form.low = math.NaN(), math.NaN()
			if k > 0 {
				break
			}
		}
		add := func(surrogate, kl func(f *formFile) [aggregations]float64) {
			list = append(list, candidate{form: form, surrogate: surrogate, kl: kl})
		}
		plain := func(f *formFile) [aggregations]float64 { return f.surrogate(0, k, k) }
		for j, kl := range kinds {
			if form.kl = kl.kind; given {
				form.kl = anyKL
			}
			estimate := func(f *formFile) [aggregations]float64 { return f.kl[j] }
			for i := range bentShapes {
				add(func(f *formFile) [aggregations]float64 { return f.bent.shapes[i*bentBounds+k] }, estimate)
			}
			one := func(of func(f *formFile) [2][]float64) {
				add(func(f *formFile) [aggregations]float64 { return alone(of(f)[0], k) }, func(f *formFile) [aggregations]float64 { return alone(of(f)[1], j) })
			}
			one(func(f *formFile) [2][]float64 { return f.bent.columns })
			one(func(f *formFile) [2][]float64 { return f.bent.groups })
			if !l.kl {
				continue
			}
			for _, own := range []int{ofTokens, ofRows, ofSums} { // aggregated as the policy loss is not
				add(plain, func(f *formFile) (of [aggregations]float64) {
					for i := range of {
						of[i] = f.kl[j][own]
					}
					return of
				})
			}
		}
		for j := range bentKLs {
			if !l.kl || given {
				break
			}
			form.kl = "k3"
			add(plain, func(f *formFile) [aggregations]float64 { return f.bent.kls[j] })
		}
	}
	return list
}

// alone is a number that no aggregation of a configuration makes, in the place of one of them.
func alone(list []float64, k int) (of [aggregations]float64) {
	for i := range of {
		of[i] = math.NaN()
	}
	if k < len(list) {
		of[ofTokens] = list[k]
	}
	return of
}
