package fault

import (
	"math"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// rowPredictor tells fast whether an output is near to what other weights of its rows give: it is linear in them.
type rowPredictor struct {
	o    *stage.Outcome
	c    *stage.Case
	zero []float64   // of a number per file, with all weights 0
	of   [][]float64 // of a number per file: what row k of each adds
}

func newRowPredictor(o *stage.Outcome, c *stage.Case) *rowPredictor {
	p := &rowPredictor{o: o, c: c}
	b := c.B
	if o.Check.Stage == convention.Gradient {
		if len(o.Pred.Want) != len(b.Mask) {
			return nil
		}
		return p
	}
	rows := 0
	for _, f := range b.Files {
		rows = max(rows, f.Hi-f.Lo)
	}
	const most = 64 // predictions of everything
	if len(o.Pred.Want) != len(b.Files) || rows > most {
		return nil
	}
	with := func(k int) []float64 {
		by := make([]float64, b.Rows)
		for _, f := range b.Files {
			if k >= 0 && f.Lo+k < f.Hi {
				by[f.Lo+k] = 1
			}
		}
		q := weighted(b, c, o.Check, by)
		if q == nil || len(q.Want) != len(b.Files) {
			return nil
		}
		return q.Want
	}
	if p.zero = with(-1); p.zero == nil {
		return nil
	}
	for k := range rows {
		x := with(k)
		if x == nil {
			return nil
		}
		p.of = append(p.of, x)
	}
	return p
}

// near reports whether the output is within a few limits of what the factors of the rows give.
func (p *rowPredictor) near(by []float64) bool {
	o, b := p.o, p.c.B
	close := func(i int, want float64) bool {
		limit := o.Limit(i)
		if h := math.Abs(o.Pred.Want[i]); h > 0 {
			limit *= max(1, math.Abs(want)/h)
		}
		return math.Abs(o.Got[i]-want) <= 4*limit+1e-6*math.Abs(want)
	}
	if p.of == nil {
		for i, w := range o.Pred.Want {
			if b.Mask[i] && (o.Pred.Judge == nil || o.Pred.Judge[i]) && !close(i, w*by[i/b.Cols]) {
				return false
			}
		}
		return true
	}
	for f, info := range b.Files {
		want := p.zero[f]
		for k := range info.Hi - info.Lo {
			want += by[info.Lo+k] * (p.of[k][f] - p.zero[f])
		}
		if !close(f, want) {
			return false
		}
	}
	return true
}

// endFiles returns for every file the first and the last one of its rank, and whether some rank has several.
func endFiles(b *dump.Batch) (first, last []int, several bool) {
	first, last = make([]int, len(b.Files)), make([]int, len(b.Files))
	for f, own := range b.Files {
		first[f], last[f] = f, f
		for g, other := range b.Files {
			if other.Rank == own.Rank {
				first[f], last[f] = min(first[f], g), max(last[f], g)
			}
		}
		several = several || first[f] != last[f]
	}
	return first, last, several
}
