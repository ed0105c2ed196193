package stage

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/tol"
)

// divisors collects what the policy losses of files are of the sums of their tokens, of which nobody says the aggregation.
type divisors struct {
	quotients []float64 // of every file with a loss that is not 0
	rounding  []float64 // of these, relative: sums of float32 that cancel are known to 16 units of their terms
	tokens    map[float64]bool
	padded    bool // every quotient is the number of cells of its file
	no        bool
}

// add takes the files of a batch: the losses of its tokens, or where they are not there those of a ratio that nothing clips, −A·ρ.
func (d *divisors) add(b *dump.Batch) {
	of := b.PerFile("pg_loss")
	if of == nil && b.PerFile("kl_loss") == nil && b.PerFile("entropy_loss") == nil && b.PerFile("value_loss") == nil {
		of = b.PerFile("loss")
	}
	x := b.Token("token_loss")
	old, _ := rolloutLogp(b)
	if adv, lp := b.Token("advantages"), b.Token("logp_new"); x == nil && adv != nil && lp != nil && old != nil {
		x = make([]float64, len(adv))
		for i, m := range b.Mask {
			if m {
				x[i] = -adv[i] * math.Exp(lp[i]-old[i])
			}
		}
	}
	if d.no = d.no || of == nil || x == nil || len(b.Missing) > 0; d.no {
		return
	}
	if d.tokens == nil {
		d.tokens, d.padded = map[float64]bool{}, true
	}
	for f, file := range b.Files {
		var sum, size, n float64
		for i := file.Lo * b.Cols; i < file.Hi*b.Cols; i++ {
			if b.Mask[i] {
				sum, size, n = sum+x[i], size+math.Abs(x[i]), n+1
			}
		}
		if math.Abs(sum) < 1e-3*size || of[f] == 0 { // rounding would say it
			continue
		}
		q := sum / of[f]
		d.rounding = append(d.rounding, max(1e-5, 16*tol.U32*size/math.Abs(sum)))
		d.quotients, d.tokens[n] = append(d.quotients, q), true
		d.padded = d.padded && math.Round(q) == float64((file.Hi-file.Lo)*file.Cols)
	}
}

// Divisor solves loss = Σ ℓ/C for C, a whole number and the same in all files: 0 unless there are four of them, not all of one token count, and C
// is not the cells of each. Where the losses of tokens were not dumped it is solved for with their form.
func (l *Losses) Divisor() float64 {
	d := &l.divisors
	if f := l.fitted(); f != nil && f.divisor > 0 {
		return f.divisor
	} else if f != nil && f.constant > 0 && l.constantOfWhole() == 0 {
		if c := l.forms.solver.ofAll(f.constant); c > 1 {
			return c
		}
	}
	if d.no || len(d.quotients) < 4 || len(d.tokens) < 2 || d.padded {
		return 0
	}
	c := math.Round(d.quotients[0])
	for i, q := range d.quotients {
		if !(c >= 2) || !(math.Abs(q-c) <= d.rounding[i]*c) {
			return 0
		}
	}
	return c
}

// ofAll returns the whole number that a constant beside the rows of a file is with them, where all files have as many, 1 of a sum that nothing divides;
// 0 where it is none, or the cells of a file.
func (t *boundTokens) ofAll(constant float64) float64 {
	if len(t.files) < 4 {
		return 0
	}
	rows := len(t.files[0].rows)
	c := math.Round(constant * float64(rows))
	if c < 1 || math.Abs(constant*float64(rows)-c) > 1e-5*c || slices.ContainsFunc(t.files, func(f boundFile) bool { return len(f.rows) != rows || f.cols*f.height == c }) {
		return 0
	}
	return c
}
