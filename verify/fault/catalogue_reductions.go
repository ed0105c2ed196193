package fault

import (
	"math"
	"slices"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// aggregation returns the way in which token losses are reduced, "" if it is not known. The labels of SFT are summed over all tokens unless
// something else is declared.
func aggregation(c *stage.Case) string {
	if v := c.Set.Value("agg.kind"); v.Kind() == convention.Enum {
		return v.Text()
	}
	if strings.EqualFold(c.B.Meta.Algorithm, "sft") {
		return "token"
	}
	return ""
}

// reduced are the per-token tensors that a loss is reduced from.
var reduced = []string{"token_loss", "kl", "entropy"}

// weighted predicts an output of a loss in whose mean over rows every row has a factor of its own.
func weighted(b *dump.Batch, c *stage.Case, ch *stage.Check, by []float64) *stage.Prediction {
	cells := eachOf(len(c.B.Mask), func(i int) float64 { return by[i/c.B.Cols] })
	return weightedCells(b, c, ch, cells)
}

// weightedCells is [weighted] with a factor for every token.
func weightedCells(b *dump.Batch, c *stage.Case, ch *stage.Check, by []float64) *stage.Prediction {
	set := func(*stage.Case) (*dump.Batch, *convention.Set, bool) { return b, c.Set, true }
	if ch.Stage == convention.Gradient {
		p := under(set, c, ch)
		if p == nil || len(p.Want) != len(c.B.Mask) {
			return nil
		}
		return timesCells(p, 0, func(i int) float64 { return by[i] })
	}
	terms := reduced
	if c.B.Meta.Algorithm == "sft" {
		terms = []string{"logp_new"}
	}
	stand := map[string]*stage.Prediction{}
	for _, name := range terms {
		in := c.Of(c.B, c.Set).Token(name)
		if in.X == nil || in.Err != nil && c.Has(name) { // its error would be lost
			continue
		}
		x := slices.Clone(in.X)
		for i := range x {
			x[i] *= by[i]
		}
		if c.Has(name) {
			b = b.With(name, x)
			continue
		}
		e := eachOf(len(x), func(i int) float64 { return in.E(i) * by[i] })
		stand[name] = &stage.Prediction{Want: x, Bound: e, Half: in.Half}
	}
	d := c.Of(b, c.Set).StandingAll(stand)
	p := ch.Predict(d)
	if p == nil || !d.OK() {
		return nil
	}
	return p
}

// tokensOf returns the number of tokens of every row in a mask.
func tokensOf(b *dump.Batch, mask []bool) []float64 {
	return eachOf(b.Rows, func(r int) float64 { return count(mask[r*b.Cols : (r+1)*b.Cols]) })
}

// counted predicts an output of a loss whose denominator counts other tokens: of the rows that have some, what tokens returns in
// place of their number. Nothing shows where a loss has no such denominator.
func counted(tokens func(c *stage.Case, row int, n float64) float64) func(*stage.Case, *stage.Check) *stage.Prediction {
	return func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		n := tokensOf(c.B, c.B.Mask)
		m := make([]float64, len(n))
		for r := range n {
			if m[r] = n[r]; n[r] > 0 {
				if m[r] = tokens(c, r, n[r]); !(m[r] > 0) {
					return nil
				}
			}
		}
		if slices.Equal(n, m) {
			return nil
		}
		switch aggregation(c) {
		case "seq_mean_token_mean":
			by := make([]float64, len(n))
			for r := range by {
				if n[r] > 0 {
					by[r] = n[r] / m[r]
				}
			}
			return weighted(c.B, c, ch, by)
		case "token":
			micro := false
			if v := c.Set.Value("agg.denominator"); v.Kind() == convention.Enum {
				micro = v.Text() == "micro"
			}
			if items := c.FactOr("num_items_in_batch", 0); items > 0 && !micro && items != count(c.B.Mask) {
				return nil // counted over more than these rows
			}
			return scaled(under(sameInput, c, ch), c.B, func(f int) float64 {
				lo, hi := 0, c.B.Rows
				if micro {
					lo, hi = c.B.Files[f].Lo, c.B.Files[f].Hi
				}
				return total(n[lo:hi]) / total(m[lo:hi])
			})
		}
		return nil
	}
}

// rowsWithout returns the input in whose mask whole rows are left out, by what the batch says of them.
func rowsWithout(drop func(c *stage.Case, row int) bool) input {
	return func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
		b := c.B
		m := slices.Clone(b.Mask)
		for r := range b.Rows {
			if drop(c, r) {
				clear(m[r*b.Cols : (r+1)*b.Cols])
			}
		}
		if slices.Equal(m, b.Mask) || count(m) == 0 {
			return nil, nil, false
		}
		return b.WithMask(m), c.Set, true
	}
}

// attended returns the number of tokens of a row, prompt included, that its attention mask has, 0 where it is not in the dump.
func attended(c *stage.Case, row int, _ float64) float64 {
	t := c.B.Tensors["attention_mask"]
	if t == nil || t.Layout != dump.PerRow || len(t.Data) != c.B.Rows*t.Width {
		return 0
	}
	return total(t.Data[row*t.Width : (row+1)*t.Width])
}

// truncated reports whether a row was cut off by its length, as far as its ids tell.
func truncated(c *stage.Case, row int) bool {
	return c.FactList("eos_token_id") != nil && count(c.B.Mask[row*c.B.Cols:(row+1)*c.B.Cols]) > 0 && !ended(c, row)
}

// positive reports whether the advantage of a row is above 0, of per-token advantages that of its first token.
func positive(c *stage.Case, row int) bool {
	a := c.Optional("advantages")
	first := firstOf(c.B, row)
	return a.X != nil && first >= 0 && a.X[first] > 0
}

// byAdvantages predicts an output of a loss whose every file is Σ ℓ·A/Σ A, over the cells of the mask or over all of them: that of a
// mean over the file's own tokens, of token losses times A·n/Σ A.
func byAdvantages(all bool, terms ...string) func(*stage.Case, *stage.Check) *stage.Prediction {
	return func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		a := c.Optional("advantages")
		if a.X == nil || len(a.X) != len(c.B.Mask) {
			return nil
		}
		b, m := c.B, slices.Clone(c.B.Mask)
		by := make([]float64, len(m))
		doubt := 0.0 // relative, of a sum of advantages that may cancel
		for _, f := range b.Files {
			var sum, size, n float64
			for i := f.Lo * b.Cols; i < f.Hi*b.Cols; i++ {
				if m[i] = all && i%b.Cols < f.Cols || b.Mask[i]; m[i] {
					sum += a.X[i]
					size += math.Abs(a.X[i])
					n++
				}
			}
			for i := f.Lo * b.Cols; i < f.Hi*b.Cols; i++ {
				by[i] = a.X[i] * n / sum
			}
			doubt = max(doubt, n*c.Unit*size/math.Abs(sum))
		}
		set := c.Set.With("agg.kind", parsed("agg.kind", "token"), "hypothesis").With("agg.denominator", parsed("agg.denominator", "micro"), "hypothesis")
		b = b.WithMask(m)
		if ch.Stage != convention.Gradient {
			for _, name := range terms {
				in := c.Of(c.B, c.Set).Token(name)
				if in.X == nil {
					continue
				}
				if in.Err != nil { // its error would be lost, and without it the loss is another one
					return nil
				}
				x := slices.Clone(in.X)
				for i := range x {
					x[i] *= by[i]
				}
				b = b.With(name, x)
			}
		}
		p := under(func(*stage.Case) (*dump.Batch, *convention.Set, bool) { return b, set, true }, c, ch)
		if p == nil {
			return nil
		}
		q := altered(p)
		for i := range q.Want {
			if ch.Stage == convention.Gradient && len(q.Want) == len(by) {
				q.Want[i] *= by[i]
				q.Bound[i] *= math.Abs(by[i])
			}
			q.Bound[i] += doubt * math.Abs(q.Want[i])
		}
		return q
	}
}

// asMask are the bugs of advantages that stand where the mask belongs.
func asMask() []*Hypothesis {
	var list []*Hypothesis
	for _, all := range []bool{false, true} {
		for _, terms := range [][]string{{"token_loss", "kl"}, reduced} {
			list = append(list, &Hypothesis{ID: "LOSS-MASKED-BY-ADVANTAGES-TWICE", Checks: []string{"aggregate", "gradient/dlogp"},
				Title:   "the advantages stand for the mask, in the sum of every file and in its denominator",
				Predict: byAdvantages(all, terms...)})
		}
	}
	return list
}

var reductionFaults = append(asMask(), []*Hypothesis{
	{ID: "LOSS-MASK-FIRST", Checks: []string{"aggregate", "gradient"},
		Input: mask(withoutFirst)},
	{ID: "LOSS-MASK-FIRST", Checks: []string{"aggregate", "gradient"},
		Title:   "the first token of every response is left out of the sum, and counted",
		Predict: numerator(mask(withoutFirst))},
	{ID: "LOSS-MASK-NO-EOS-ABOVE", Checks: []string{"aggregate", "gradient"},
		Predict: numerator(mask(withoutLast))},
	{ID: "LOSS-MASK-P1-ABOVE", Checks: []string{"aggregate", "gradient"},
		Predict: numerator(mask(oneMore))},
	{ID: "LOSS-MASK-EARLY-ABOVE", Checks: []string{"aggregate", "gradient"},
		Predict: numerator(mask(early))},
	{ID: "LOSS-MASK-TRUNCATED", Checks: []string{"aggregate", "gradient"},
		Input: rowsWithout(truncated)},
	{ID: "LOSS-MASK-NEGATIVE", Checks: []string{"aggregate", "gradient"},
		Input: rowsWithout(func(c *stage.Case, row int) bool { return !positive(c, row) })},
	{ID: "AGG-LENGTH-OFF-BY-ONE", Checks: []string{"aggregate", "gradient"},
		Title:   "the denominator counts one token of every response too few",
		Predict: counted(func(_ *stage.Case, _ int, n float64) float64 { return max(n-1, 1) })},
	{ID: "AGG-LENGTH-OFF-BY-ONE", Checks: []string{"aggregate", "gradient"},
		Title:   "the denominator counts one token of every response too many",
		Predict: counted(func(_ *stage.Case, _ int, n float64) float64 { return n + 1 })},
	{ID: "AGG-PROMPT-COUNTED", Checks: []string{"aggregate", "gradient"},
		Predict: counted(func(c *stage.Case, row int, n float64) float64 {
			p := c.B.Row("prompt_len")
			if p == nil {
				return 0
			}
			return n + p[row]
		})},
	{ID: "AGG-PROMPT-COUNTED", Checks: []string{"aggregate", "gradient"},
		Title:   "the denominator counts all tokens that are attended to, those of the prompt, too",
		Predict: counted(attended)},
	{ID: "ADV-DIVIDED-BY-LENGTH", Checks: []string{"token_loss", "gradient/dlogp"}, Predict: policyTerm(1, overLengths)},
	{ID: "ADV-DIVIDED-BY-LENGTH", Checks: []string{"aggregate"},
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			if aggregation(c) != "seq_mean_token_mean" { // else it is another reduction of the policy term
				return nil
			}
			return policyTerm(1, overLengths)(c, ch)
		}},
}...)

// overLengths divides the advantages by the tokens of their rows.
func overLengths(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
	a := c.Optional("advantages")
	if a.X == nil || len(a.X) != len(c.B.Mask) {
		return nil, nil, false
	}
	x := slices.Clone(a.X)
	for r, n := range tokensOf(c.B, c.B.Mask) {
		for i := r * c.B.Cols; i < (r+1)*c.B.Cols; i++ {
			x[i] /= max(n, 1)
		}
	}
	return perToken("advantages", x)(c)
}
