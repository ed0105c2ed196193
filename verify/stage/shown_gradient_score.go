package stage

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// scoreToken is a token of a row: its advantage, its log-ratio and its gradient.
type scoreToken struct{ adv, d, g float64 }

type scoreRow struct {
	tokens []scoreToken
	file   int
}

// scoreRows returns the tokens of the rows of a policy gradient whose advantages are not all 0, and whether none lacks a gradient, as bounds make them.
func scoreRows(b *dump.Batch) (rows []scoreRow, all bool) {
	lp, old, g := b.Token("logp_new"), b.Token("logp_old"), b.Token("dlogp")
	adv := NewCase(b, &convention.Set{}, 0).Optional("advantages").X
	if lp == nil || old == nil || g == nil || adv == nil {
		return nil, false
	}
	for r := range b.Rows {
		var row []scoreToken
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			x := scoreToken{adv[i], lp[i] - old[i], g[i]}
			if !b.Mask[i] || x.adv == 0 {
				continue
			}
			if x.g == 0 || math.IsNaN(x.adv+x.d+x.g) || math.IsInf(x.adv+x.d+x.g, 0) {
				return nil, false
			}
			row = append(row, x)
		}
		if len(row) > 0 {
			rows = append(rows, scoreRow{row, b.File(r)})
		}
	}
	return rows, len(rows) > 0
}

// scoreForms proposes losses −A·lp with something beside or before it that no bound stops: DRO (arXiv 2405.19107; verl 0.9.1 compute_policy_loss_dro), and
// CISPO (arXiv 2506.13585; verl 0.9.1 compute_policy_loss_cispo, TRL 1.16 loss_type cispo).
func scoreForms(b *dump.Batch) (lists [][]assign) {
	rows, all := scoreRows(b)
	if !all {
		return nil
	}
	if beta := pulled(rows); beta > 0 {
		lists = append(lists, []assign{word("loss.kind", "dro"), amount("dro.beta", beta)})
	}
	return append(lists, heldWeights(rows)...)
}

// pulled returns the β of a gradient w·(−A + β·d) with w one number of a row, d the log-ratio, by least squares in each row, 0 where it is not that of all
// tokens or no row shows it.
func pulled(rows []scoreRow) float64 {
	const least, exact, seen = 3, 1e-4, 1e-2
	type line struct{ w, by float64 }
	lines := make([]line, len(rows))
	var x, weights []float64
	for r, row := range rows {
		var aa, ad, dd, ag, dg float64
		for _, t := range row.tokens {
			aa, ad, dd = aa+t.adv*t.adv, ad-t.adv*t.d, dd+t.d*t.d
			ag, dg = ag-t.adv*t.g, dg+t.d*t.g
		}
		det := aa*dd - ad*ad
		lines[r] = line{(ag*dd - dg*ad) / det, (dg*aa - ag*ad) / det}
		if len(row.tokens) >= least && det > 1e-6*aa*dd {
			x, weights = append(x, lines[r].by/lines[r].w), append(weights, det/aa)
		}
	}
	beta := written(weightedMedian(x, weights), 1e-3)
	if !(beta > 0) || math.IsInf(beta, 0) {
		return 0
	}
	most := 0.0 // what the pull adds to a gradient
	for _, row := range rows {
		var num, den float64
		for _, t := range row.tokens {
			y := beta*t.d - t.adv
			num, den = num+y*t.g, den+y*y
		}
		for _, t := range row.tokens {
			if w := num / den; !(math.Abs(t.g-w*(beta*t.d-t.adv)) <= exact*w*(math.Abs(beta*t.d)+math.Abs(t.adv))) {
				return 0
			}
			most = max(most, math.Abs(beta*t.d/t.adv))
		}
	}
	if most < seen {
		return 0
	}
	return beta
}

// heldWeights proposes the bounds of a gradient −w·A·min(max(ρ, 1 − low), 1 + high), whose tokens beyond a bound keep a gradient, that of the bound: with w
// one number of a file or of a row, what most of its tokens say of it.
func heldWeights(rows []scoreRow) [][]assign {
	of := func(rows []scoreRow) float64 {
		var ws []float64
		for _, row := range rows {
			for _, t := range row.tokens {
				ws = append(ws, -t.g/(t.adv*math.Exp(t.d)))
			}
		}
		if w, n := commonest(ws); n > 2 {
			return w
		}
		return math.NaN()
	}
	whole, apart := make([]float64, len(rows)), make([]float64, len(rows))
	for from := 0; from < len(rows); {
		to := from
		for to < len(rows) && rows[to].file == rows[from].file {
			to++
		}
		w := of(rows[from:to])
		for r := from; r < to; r++ {
			whole[r], apart[r] = w, of(rows[r:r+1])
		}
		from = to
	}
	if lists := heldUnder(rows, whole); lists != nil {
		return lists
	}
	return heldUnder(rows, apart)
}

// heldUnder are the bounds of heldWeights under the weights w of rows, nil where some token stands on none and is not free.
func heldUnder(rows []scoreRow, w []float64) [][]assign {
	const exact = 1e-4
	var low, high, lowE, highE []float64
	free := 0
	for r, row := range rows {
		for _, t := range row.tokens {
			rho := math.Exp(t.d)
			switch x := -t.g / (w[r] * t.adv); {
			case math.IsNaN(x):
			case math.Abs(x-rho) <= exact*rho:
				free++
			case x < rho:
				high, highE = append(high, x), append(highE, exact*x)
			default:
				low, lowE = append(low, x), append(lowE, exact*x)
			}
		}
	}
	beyond := func(x []float64, v interval) bool {
		return slices.ContainsFunc(x, func(y float64) bool { return math.Abs(y-v.mid) > 4*exact*v.mid })
	}
	l, h := meet(low, lowE), meet(high, highE)
	if free < 3 || len(low)+len(high) < 2 || beyond(low, l) || beyond(high, h) {
		return nil
	}
	list := []assign{word("loss.kind", "cispo"), numbers("clip.low", l.of(1, -1))[0]}
	return [][]assign{
		append(slices.Clone(list), word("clip.high_is_absolute", "false"), numbers("clip.high", h.of(-1, 1))[0]),
		append(slices.Clone(list), word("clip.high_is_absolute", "true"), numbers("clip.high", h)[0]),
	}
}
