package stage

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/reference/ad"
)

// aggregated returns the loss of every file by agg.kind, or another one.
func (x *taped) aggregated(l *ad.Var, kind string) (files []*ad.Var) {
	b := x.g
	n := x.lengths()
	counted := x.text("agg.empty_rows", "") == "counted"
	where := x.text("agg.denominator", "micro")
	divBatch := x.text("agg.div_batch", "false") == "true"
	lenEps := x.num("agg.len_eps", 0)
	switch kind {
	case "":
		kind = x.text("agg.kind", "")
	case "gmpo": // the plain mean over all rows
		kind, counted, where, lenEps = "seq_mean_token_mean", true, "micro", 0
	}
	length := 64.0 // the fact loss_denominator
	if where == "constant" && divBatch {
		length = 16 // which divides the rows: the fact max_completion_length
	}
	if kind == "token_sum" && where != "global" || kind == "luspo" || kind == "seq_sum_const" && !divBatch {
		where = "micro" // nothing is counted
	}
	size := func(file func(f *dump.FileInfo) bool) (tokens, rows float64) {
		for k := range b.Files {
			if f := &b.Files[k]; file(f) {
				for r := f.Lo; r < f.Hi; r++ {
					if tokens += n[r]; n[r] > 0 || counted {
						rows++
					}
				}
			}
		}
		return tokens, rows
	}
	row := x.rowSum(l)
	for k := range b.Files {
		f := &b.Files[k]
		factor := 1.0
		tokens, rows := size(func(other *dump.FileInfo) bool { return other == f })
		switch where {
		case "rank":
			tokens, rows = size(func(other *dump.FileInfo) bool { return other.Rank == f.Rank })
		case "global":
			tokens, rows = size(func(*dump.FileInfo) bool { return true })
			factor = float64(b.Meta.WorldSize) // gradients are averaged over ranks
		case "constant":
			tokens, rows = 64, 64 // the fact loss_denominator
		}
		if x.text("agg.div_ga", "false") == "true" {
			factor /= float64(b.Meta.MicroBatches)
		}
		y := row
		switch kind {
		case "token":
			factor /= tokens
		case "seq_mean_token_mean":
			y = ad.Div(y, x.perRow(func(n float64) float64 { return max(n, 1) + lenEps }))
			factor /= rows
		case "seq_mean_token_sum":
			factor /= rows
		case "seq_sum_const":
			if factor /= length; divBatch {
				factor /= rows
			}
		case "luspo":
			y = ad.Mul(ad.Sum(l, true, 1), x.perRow(func(n float64) float64 { return n }))
			factor /= float64((f.Hi - f.Lo) * f.Cols)
		}
		files = append(files, ad.Scale(ad.Sum(ad.Slice(y, 0, f.Lo, f.Hi), false, 0, 1), factor))
	}
	return files
}

// ownMean reports whether the KL term is not aggregated as the policy term is: it is a mean over tokens, or that one is gmpo's.
func (x *taped) ownMean() bool {
	return x.text("kl.place", "none") == "loss" &&
		(x.text("loss.kind", "") == "gmpo" || x.text("kl.agg", "same") == "token" && x.text("agg.kind", "") != "token")
}

// lossOnTape is what the tape makes of a batch.
type lossOnTape struct {
	token, file, grad []float64
}

// policyLoss returns losses of cells and files, and the gradient of the sum of the latter.
func (x *taped) policyLoss() lossOnTape {
	l, kl := x.terms()
	kind := ""
	if x.text("loss.kind", "") == "gmpo" {
		kind = "gmpo"
	}
	token := l
	if kl != nil {
		token = ad.Add(l, kl)
	}
	files := x.aggregated(token, kind)
	if kl != nil && x.ownMean() {
		files = x.aggregated(l, kind)
		own := ""
		if x.text("kl.agg", "same") == "token" {
			own = "token"
		}
		for f, k := range x.aggregated(kl, own) {
			files[f] = ad.Add(files[f], k)
		}
	}
	var out lossOnTape
	for _, f := range files {
		out.file = append(out.file, f.Item())
		if f.NeedsGrad() {
			ad.Backward(f, []float64{1})
		}
	}
	out.token, out.grad = token.Data(), x.lp.Grad()
	return out
}

// valueOnTape returns the value losses of the files without value.coef, and the gradient times it.
func (s *subject) valueOnTape(g grid) lossOnTape {
	x := s.onTape(replaced(replaced(replaced(g, "logp_new", g.Token("values_new")), "logp_old", g.Token("values")), "advantages", g.Token("returns")))
	v, old, target := x.lp, x.constant(g.Token("values")), x.adv
	switch s.text("value.mask", "response") {
	case "none":
		x.on = slices.Repeat([]bool{true}, len(g.Mask))
	case "p1":
		x.on = slices.Clone(g.Mask)
		for i := range x.on {
			x.on[i] = i%g.Cols <= lastToken(g.Batch, i/g.Cols)+1
		}
	default:
		x.on = g.Mask
	}
	square := func(y *ad.Var) *ad.Var { e := ad.Sub(y, target); return ad.Mul(e, e) }
	l := square(v)
	if c := s.num("value.clip", 0); c > 0 {
		// clip(v, V ± c) = V + clip(v − V, ±c), but for a rounding; torch clamps v to the tensors V ± c, which on a bound passes nothing, too
		l = ad.Max(l, square(ad.Add(old, ad.Clamp(ad.Sub(v, old), -c, c))))
	}
	l = ad.Scale(l, s.num("value.factor", math.NaN()))
	var out lossOnTape
	kind := ""
	if x.text("value.agg", "same") == "token" {
		kind = "token"
	}
	for _, f := range x.aggregated(l, kind) {
		out.file = append(out.file, f.Item())
		ad.Backward(f, []float64{s.num("value.coef", 1)})
	}
	out.token, out.grad = l.Data(), v.Grad()
	return out
}
