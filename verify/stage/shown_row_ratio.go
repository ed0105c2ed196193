package stage

import (
	"math"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// rowOfRatio is a row whose token losses are −A·c with one c: n tokens whose log-ratios sum to d.
type rowOfRatio struct{ adv, c, d, n float64 }

// beyond reports whether exp(d/length) is beyond a bound at c that the smaller of two terms stops at: above for A > 0, below for A < 0.
func (r rowOfRatio) beyond(length float64) bool {
	return r.adv > 0 == (math.Exp(r.d/length) > r.c)
}

// rowsOfRatios are those rows of a batch; not ok where some row has losses of several ratios.
func rowsOfRatios(b *dump.Batch) (rows []rowOfRatio, ok bool) {
	const same = 16 * tol.U32
	loss, lp, old, adv := b.Token("token_loss"), b.Token("logp_new"), b.Token("logp_old"), NewCase(b, &convention.Set{}, 0).Optional("advantages").X
	if loss == nil || lp == nil || old == nil || len(adv) != len(b.Mask) || max(Grid(loss), Grid(lp), Grid(old)) > tol.U32 {
		return nil, false
	}
	for r := range b.Rows {
		row := rowOfRatio{c: math.NaN()}
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			if !b.Mask[i] || adv[i] == 0 {
				continue
			}
			c := -loss[i] / adv[i]
			if row.n++; row.n == 1 {
				row.c, row.adv = c, adv[i]
			}
			if !(c > 0) || !(math.Abs(c-row.c) <= same*c) {
				return nil, false
			}
			row.d += lp[i] - old[i]
		}
		if row.n > 1 && (row.d != 0 || row.c != 1) {
			rows = append(rows, row)
		}
	}
	return rows, true
}

// RowRatioShown returns the bounds of token losses that are one number for each row where a number L that is none of its tokens divides the sum of the
// log-ratios of every row:
//
//	c = exp(Σd/L), held at 1 + clip.high where A > 0 and at 1 − clip.low where A < 0
//
// No program has such a ratio of a sequence. The rows that no bound holds say L, most of four and more, of lengths that differ; the others say the bounds.
func RowRatioShown(steps []Step, set *convention.Set) [][]Change {
	const least, near = 4, 64 * tol.U32
	var rows []rowOfRatio
	for _, s := range steps {
		of, ok := rowsOfRatios(s.B)
		if !ok {
			return nil
		}
		rows = append(rows, of...)
	}
	at := func(length float64) (n, lengths int) {
		seen := map[float64]bool{}
		for _, r := range rows {
			if math.Abs(r.d/length-math.Log(r.c)) <= near {
				seen[r.n] = true
				n++
			}
		}
		return n, len(seen)
	}
	length, most := 0.0, 0
	for _, r := range rows {
		if l := r.d / math.Log(r.c); l > 0 && math.Abs(math.Log(r.c)) > 1e-4 {
			if n, lengths := at(l); n > most && lengths > 1 {
				length, most = l, n
			}
		}
	}
	if most < least || 2*most < len(rows) {
		return nil
	}
	list := []assign{word("ratio.level", "seq_mean")}
	var bounds [2]float64
	for _, r := range rows {
		if math.Abs(r.d/length-math.Log(r.c)) <= near {
			continue
		}
		side := 0
		if r.adv < 0 {
			side = 1
		}
		if !r.beyond(length) || bounds[side] != 0 && math.Abs(r.c-bounds[side]) > near {
			return nil
		}
		bounds[side] = r.c
	}
	if c := bounds[1]; c != 0 {
		list = append(list, amount("clip.low", written(1-c, 1e-4)))
	}
	if c := bounds[0]; c != 0 {
		list = append(list, amount("clip.high", written(c-1, 1e-4)))
	}
	return openOf([][]assign{list}, set)
}
