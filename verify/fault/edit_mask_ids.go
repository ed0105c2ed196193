package fault

import (
	"math"

	"plumbline/verify/stage"
)

const byIDs = "every token in front of the padding counts, by the ids"

// beforePadding returns the mask of all tokens in front of the padding, those of tools and of an environment too, as the ids show it. The
// padding is the id that fills the most cells at the ends of rows, outside the mask, two of a row at least. Rows without a token stay so.
func beforePadding(c *stage.Case) []bool {
	b := c.B
	ids := b.Token("response_ids")
	if len(ids) != len(b.Mask) || b.Cols == 0 {
		return nil
	}
	run := func(r int, pad float64) (n int) { // cells at the end of a row
		_, last := firstLast(b.Mask[r*b.Cols : (r+1)*b.Cols])
		for t := b.Cols - 1; t > last && ids[r*b.Cols+t] == pad; t-- {
			n++
		}
		return n
	}
	cells := map[float64]int{}
	for r := range b.Rows {
		id := ids[(r+1)*b.Cols-1]
		if n := run(r, id); n > 1 {
			cells[id] += n
		}
	}
	pad, most := 0.0, 1
	for id, n := range cells {
		if n > most || n == most && n > 1 && id < pad {
			pad, most = id, n
		}
	}
	if most < 2 {
		pad = math.NaN() // none is padded
	}
	before := func(r int) float64 { // the token in front of the padding
		if t := b.Cols - 1 - run(r, pad); t >= 0 {
			return ids[r*b.Cols+t]
		}
		return math.NaN()
	}
	ended := map[float64]bool{} // by one token where padding is told best: then it is EOS, and ends all rows that are padded
	for r := range b.Rows {
		if run(r, pad) > 1 {
			ended[before(r)] = true
		}
	}
	mask := make([]bool, len(b.Mask))
	for r := range b.Rows {
		n := run(r, pad)
		if len(ended) == 1 && !ended[before(r)] {
			n = 0
		}
		if _, last := firstLast(b.Mask[r*b.Cols : (r+1)*b.Cols]); last >= 0 {
			for t := range b.Cols - n {
				mask[r*b.Cols+t] = true
			}
		}
	}
	return mask
}
