package stage

import (
	"math"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// aggregations are the ways in which the numbers of the tokens of a file become one number: means over the tokens or the rows of the file, of the
// file divided by the accumulation steps, and of the step times the ranks; and the same of the sums of rows, which a constant may divide besides.
const (
	ofTokens, ofTokensDivided, ofTokensGlobal = 0, 1, 2
	ofRows, ofRowsDivided, ofRowsGlobal       = 3, 4, 5
	ofSums, ofSumsGlobal                      = 6, 7
	aggregations                              = 8
)

// wholeFile is a file whose loss is all that says of its terms: the loss, and by aggregation the losses, the KL and the entropy of its tokens.
type wholeFile struct {
	loss  float64
	terms [3][aggregations]float64
}

// wholes collects such files; see [Losses].
type wholes struct {
	files []wholeFile
	has   [3]bool
	unit  float64 // of the coarsest of the tensors
	no    bool    // some file has its policy loss, or lacks its loss, or the losses of its tokens
}

var wholeTerms = [3]string{"token_loss", "kl", "entropy"}

// add takes the files of a batch.
func (w *wholes) add(b *dump.Batch, first bool) {
	loss := b.PerFile("loss")
	if w.no = w.no || loss == nil || b.Token("token_loss") == nil || b.PerFile("pg_loss") != nil || len(b.Missing) > 0; w.no {
		return
	}
	var x [3][]float64
	for k, name := range wholeTerms {
		x[k] = b.Token(name)
		if first {
			w.has[k] = x[k] != nil
		} else if w.has[k] != (x[k] != nil) {
			w.no = true
			return
		}
		if x[k] != nil {
			w.unit = max(w.unit, Grid(x[k]), tol.U32)
		}
	}
	c := NewCase(b, &convention.Set{}, 0)
	var of [3][][aggregations]float64
	for k := range x {
		of[k] = c.aggregated(x[k])
	}
	for f := range b.Files {
		file := wholeFile{loss: loss[f]}
		for k := range x {
			if x[k] != nil {
				file.terms[k] = of[k][f]
			}
		}
		w.files = append(w.files, file)
	}
}

// aggregated returns numbers of tokens as the number of each file that every aggregation makes of them; nil of none.
func (c *Case) aggregated(x []float64) (list [][aggregations]float64) {
	b := c.B
	if x == nil {
		return nil
	}
	n := c.tokensOfRows()
	var tokens, rows float64
	for _, t := range n {
		if tokens += t; t > 0 {
			rows++
		}
	}
	world, steps := c.worldSize(), c.accumulation()
	for _, file := range b.Files {
		var own, ownRows, sum, means float64
		for r := file.Lo; r < file.Hi; r++ {
			var row float64
			for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
				if b.Mask[i] {
					row += x[i]
				}
			}
			if sum += row; n[r] > 0 {
				own, ownRows, means = own+n[r], ownRows+1, means+row/n[r]
			}
		}
		list = append(list, [aggregations]float64{sum / own, sum / own / steps, sum * world / tokens, means / ownRows, means / ownRows / steps, means * world / rows,
			sum / ownRows, sum * world / rows})
	}
	return list
}

// wholeFit is what the files of a run say of their losses: the coefficients of the terms, the constant that sums are divided by, 0 where they are
// divided by none, and what is left of the largest loss.
type wholeFit struct {
	coefficients map[string]float64
	constant     float64
	left         float64
}

// fit solves loss = s·(Σ token_loss + β·Σ kl − c·Σ entropy), each Σ by one aggregation and s = 1 but for sums of rows, which a constant may divide,
// for β, c and s by least squares over the files: those that leave 1e-4 of the largest difference, and 8 units of the coarsest tensor, with the
// fewest terms, but for more that leave a thirtieth of it; nil where no aggregation does, or fewer files are there than one more than unknowns. A
// KL term and an entropy bonus may have a mean over tokens of their own, which is tried where all are aggregated alike in vain.
func (w *wholes) fit() (chosen *wholeFit) {
	if w.no || !w.has[0] {
		return nil
	}
	for _, which := range [][]int{{}, {1}, {2}, {1, 2}} {
		if len(which) > 0 && !w.has[which[0]] || len(which) > 1 && !w.has[which[1]] {
			continue
		}
		if f := w.of(which); f != nil && (chosen == nil || f.left < chosen.left/30) {
			chosen = f
		}
	}
	return chosen
}

// of returns the fit of some terms, one without a constant before one with it.
func (w *wholes) of(which []int) *wholeFit {
	for _, free := range []bool{false, true} {
		for _, own := range [][]int{nil, {ofTokensDivided, ofTokensGlobal, ofTokens}} {
			if best := w.best(which, own, free); best != nil {
				return best
			}
		}
	}
	return nil
}

// best returns the fit of some terms that leaves the least, over all aggregations of the policy loss, the other terms having one of those given, or
// that of the policy loss; nil where there is none.
func (w *wholes) best(which, own []int, free bool) (best *wholeFit) {
	for kind := range aggregations {
		if free && kind < ofSums {
			continue
		}
		kinds := own
		if own == nil {
			kinds = []int{kind}
		}
		for _, other := range kinds {
			if f := w.solved(which, kind, other, free); f != nil && (best == nil || f.left < best.left) {
				best = f
			}
			if len(which) == 0 {
				break
			}
		}
	}
	return best
}

// solved returns the fit of some terms under an aggregation of the policy loss and one of the others; nil where it leaves too much.
func (w *wholes) solved(which []int, kind, other int, free bool) *wholeFit {
	terms := which
	if free {
		terms = append([]int{0}, which...)
	}
	of := func(f, k int) float64 {
		if k == 0 {
			return w.files[f].terms[k][kind]
		}
		return w.files[f].terms[k][other]
	}
	n := len(terms)
	if len(w.files) < n+2 {
		return nil
	}
	m := n + 1
	a := make([]float64, n*m)
	y := make([]float64, len(w.files))
	size, differ, left := 0.0, 0.0, 0.0
	for f := range w.files {
		y[f] = w.files[f].loss
		if size = max(size, math.Abs(y[f]), math.Abs(of(f, 0))); !free {
			y[f] -= of(f, 0)
		}
		differ = max(differ, math.Abs(y[f]))
		for i, k := range terms {
			for j, l := range terms {
				a[i*m+j] += float64(of(f, k) * of(f, l))
			}
			a[i*m+n] += float64(of(f, k) * y[f])
		}
	}
	var x []float64
	if n > 0 {
		if x = eliminate(a, n); x == nil {
			return nil
		}
	}
	for f := range y {
		for i, k := range terms {
			y[f] -= float64(x[i] * of(f, k))
		}
		left = max(left, math.Abs(y[f]))
	}
	if free { // the sums themselves are no loss
		size = differ
	}
	if !(left <= 1e-4*differ+8*w.unit*size) {
		return nil
	}
	fit := &wholeFit{coefficients: map[string]float64{}, left: left / size}
	scale := 1.0
	if free {
		if scale = x[0]; !(scale > 0) {
			return nil
		}
		x, fit.constant = x[1:], 1/scale
	}
	for i, k := range which {
		c := x[i] / scale
		if k == 2 {
			c = -c
		}
		if c = math.Abs(c); !(c > 0) {
			return nil
		}
		fit.coefficients[map[int]string{1: "kl.beta", 2: "entropy.coef"}[k]] = written(c, max(1e-3, w.unit))
	}
	return fit
}
