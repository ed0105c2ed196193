package fault

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
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

// withoutEOS is the mask without the tokens that end a response: of responses that were cut off all of it. It is nil where no EOS is declared or none is in the mask.
func withoutEOS(c *stage.Case) []bool {
	b, ids := c.B, c.FactList("eos_token_id")
	m := slices.Clone(b.Mask)
	for i := range b.Tokens() {
		if id, ok := b.TokenID(i/b.Cols, i%b.Cols); ok && slices.Contains(ids, float64(id)) {
			m[i] = false
		}
	}
	if slices.Equal(m, b.Mask) {
		return nil
	}
	return m
}

// rowsKept returns a predictor for a mask that is another one in the mean of each response, where the responses that have a token are counted by the right mask. It is
// nil where both masks count the same.
func rowsKept(in input) func(*stage.Case, *stage.Check) *stage.Prediction {
	return func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		b, _, ok := in(c)
		if kind := aggregation(c); !ok || kind != "seq_mean_token_mean" && kind != "seq_mean_token_sum" || c.EnumOr("agg.empty_rows", "counted") != "excluded" {
			return nil
		}
		some := func(b *dump.Batch, of func(file int) bool) (n float64) {
			for r, k := range tokensOf(b, b.Mask) {
				n += float64(boolToInt(k > 0 && of(b.File(r))))
			}
			return n
		}
		where, other := c.EnumOr("agg.denominator", "micro"), false
		by := spreadFiles(c.B, func(f int) float64 {
			counts := func(file int) bool {
				return where != "micro" && where != "rank" || file == f || where == "rank" && c.B.Files[file].Rank == c.B.Files[f].Rank
			}
			left, all := some(b, counts), some(c.B, counts)
			other = other || left != all
			return left / max(all, 1)
		})
		if !other {
			return nil
		}
		return weighted(b, c, ch, by)
	}
}
