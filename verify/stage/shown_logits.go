package stage

import (
	"math"
	"strconv"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// temperatures returns the temperature that log-probs give by the logits of their tokens, as the value of the option.
func temperatures(b *dump.Batch) [][]assign {
	t, ok := TemperatureOf(b, b.Token("logp_new"))
	if !ok {
		return nil
	}
	return [][]assign{{{"logp.temperature", convention.NumberValue(t)}}}
}

// TemperatureOf returns the number by which the logits of a batch are divided in log-probs x of its tokens: the t of
//
//	x = z_id/t − ln Σ_j e^{z_j/t}
//
// in all cells that are looked at. The right side is concave in 1/t, −ln V at 0 and largest where the mean of z is z_id, so that a cell gives two values
// at most; those of a few cells are held against the others. A value within 1e-4 of one of three digits is that one.
func TemperatureOf(b *dump.Batch, x []float64) (t float64, ok bool) {
	const (
		least  = 8   // cells
		most   = 256 // cells
		starts = 4   // cells that are solved
	)
	c := NewCase(b, &convention.Set{}, 0)
	if b.Tensors["logits"] == nil || len(x) != len(b.Mask) {
		return 0, false
	}
	rows, logits, vocab := c.logitRows()
	if !c.OK() {
		return 0, false
	}
	type cell struct {
		z  []float64
		id int
		x  float64
	}
	var cells []cell
	for k, r := range rows {
		for col := range b.Cols {
			if r >= b.Rows || !b.Mask[r*b.Cols+col] || len(cells) >= most {
				continue
			}
			if id, is := b.TokenID(r, col); is && id >= 0 && id < vocab {
				cells = append(cells, cell{logits[(k*b.Cols+col)*vocab : (k*b.Cols+col+1)*vocab], id, x[r*b.Cols+col]})
			}
		}
	}
	if len(cells) < least {
		return 0, false
	}
	at := func(c cell, beta float64) (lp, slope float64) { // of x by 1/t, and its derivative z_id − E z
		top := math.Inf(-1)
		for _, z := range c.z {
			top = max(top, beta*z)
		}
		var sum, mean float64
		for _, z := range c.z {
			if math.IsInf(z, -1) {
				continue
			}
			e := math.Exp(beta*z - top)
			sum, mean = sum+e, mean+float64(e*z)
		}
		return beta*c.z[c.id] - top - math.Log(sum), c.z[c.id] - mean/sum
	}
	fits := func(beta float64) bool {
		for _, c := range cells {
			if lp, _ := at(c, beta); !(math.Abs(lp-c.x) <= 1e-4*(1+math.Abs(c.x))) {
				return false
			}
		}
		return true
	}
	const low, high = 1e-2, 1e2 // of 1/t
	for _, c := range cells[:starts] {
		peak := low // where the slope changes its sign
		if _, slope := at(c, low); slope > 0 {
			peak = bisect(low, high, func(beta float64) bool { _, slope := at(c, beta); return slope > 0 })
		}
		for _, side := range [2][2]float64{{low, peak}, {high, peak}} { // outer end, inner end: x rises from one to the other
			outer, _ := at(c, side[0])
			inner, _ := at(c, side[1])
			if !(outer <= c.x && c.x <= inner+1e-6) {
				continue
			}
			beta := bisect(side[0], side[1], func(beta float64) bool { lp, _ := at(c, beta); return lp < c.x })
			t := 1 / beta
			if short := roundTo(t, 3); math.Abs(short-t) <= 1e-4*t && fits(1/short) {
				return short, true
			}
			if fits(beta) {
				return t, true
			}
		}
	}
	return 0, false
}

// bisect returns where a condition that holds at one end stops holding on the way to the other.
func bisect(holds, not float64, cond func(float64) bool) float64 {
	for range 60 {
		if mid := math.Sqrt(holds * not); cond(mid) {
			holds = mid
		} else {
			not = mid
		}
	}
	return math.Sqrt(holds * not)
}

// roundTo rounds to some significant digits.
func roundTo(x float64, digits int) float64 {
	y, err := strconv.ParseFloat(strconv.FormatFloat(x, 'e', digits-1, 64), 64)
	if err != nil {
		panic("stage: " + err.Error())
	}
	return y
}
