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
	n := c.tokensOfRows()
	var tokens, rows float64
	for _, t := range n {
		if tokens += t; t > 0 {
			rows++
		}
	}
	world, steps := c.worldSize(), c.accumulation()
	for f, file := range b.Files {
		of := wholeFile{loss: loss[f]}
		var own, ownRows float64
		for r := file.Lo; r < file.Hi; r++ {
			if own += n[r]; n[r] > 0 {
				ownRows++
			}
		}
		for k := range x {
			if x[k] == nil {
				continue
			}
			var sum, means float64
			for r := file.Lo; r < file.Hi; r++ {
				var row float64
				for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
					if b.Mask[i] {
						row += x[k][i]
					}
				}
				if sum += row; n[r] > 0 {
					means += row / n[r]
				}
			}
			of.terms[k] = [aggregations]float64{sum / own, sum / own / steps, sum * world / tokens, means / ownRows, means / ownRows / steps, means * world / rows,
				sum / ownRows, sum * world / rows}
		}
		w.files = append(w.files, of)
	}
}

// coefficients solves loss = s·(Σ token_loss + β·Σ kl − c·Σ entropy), each Σ by one aggregation and s = 1 but for sums of rows, which a constant may
// divide, for β and c by least squares over the files: those of the fewest terms that leave 1e-4 of the largest difference, and 8 units of the
// coarsest tensor; nil where no aggregation does, or fewer files are there than one more than unknowns.
func (w *wholes) coefficients() map[string]float64 {
	if w.no || !w.has[0] {
		return nil
	}
	for _, which := range [][]int{{}, {1}, {2}, {1, 2}} {
		if len(which) > 0 && !w.has[which[0]] || len(which) > 1 && !w.has[which[1]] {
			continue
		}
		var best map[string]float64
		least := math.Inf(1)
		for kind := range aggregations {
			for _, free := range []bool{false, true} {
				if free && kind < ofSums {
					continue
				}
				if found, left := w.solved(which, kind, free); found != nil && left < least {
					best, least = found, left
				}
			}
		}
		if best != nil {
			return best
		}
	}
	return nil
}

// solved returns the coefficients of some terms under an aggregation, and what it leaves of the largest loss; nil where it leaves too much.
func (w *wholes) solved(which []int, kind int, free bool) (found map[string]float64, left float64) {
	terms := which
	if free {
		terms = append([]int{0}, which...)
	}
	n := len(terms)
	if len(w.files) < n+2 {
		return nil, 0
	}
	m := n + 1
	a := make([]float64, n*m)
	y := make([]float64, len(w.files))
	size, differ := 0.0, 0.0
	for f := range w.files {
		file := &w.files[f]
		y[f] = file.loss
		if size = max(size, math.Abs(file.loss), math.Abs(file.terms[0][kind])); !free {
			y[f] -= file.terms[0][kind]
		}
		differ = max(differ, math.Abs(y[f]))
		for i, k := range terms {
			for j, l := range terms {
				a[i*m+j] += float64(file.terms[k][kind] * file.terms[l][kind])
			}
			a[i*m+n] += float64(file.terms[k][kind] * y[f])
		}
	}
	var x []float64
	if n > 0 {
		if x = eliminate(a, n); x == nil {
			return nil, 0
		}
	}
	for f := range y {
		for i, k := range terms {
			y[f] -= float64(x[i] * w.files[f].terms[k][kind])
		}
		left = max(left, math.Abs(y[f]))
	}
	if !(left <= 1e-4*differ+8*w.unit*size) {
		return nil, 0
	}
	found = map[string]float64{}
	scale := 1.0
	if free {
		if scale = x[0]; !(scale > 0) {
			return nil, 0
		}
		x = x[1:]
	}
	for i, k := range which {
		c := x[i] / scale
		if k == 2 {
			c = -c
		}
		if !(c > 0) {
			return nil, 0
		}
		found[map[int]string{1: "kl.beta", 2: "entropy.coef"}[k]] = written(c, max(1e-3, w.unit))
	}
	return found, left / size
}
