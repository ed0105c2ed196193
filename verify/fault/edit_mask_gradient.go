package fault

import (
	"fmt"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/stage"
)

// fewestCells is how many gradients other than 0 a mask must leave that is read off them: what is left has to be right as numbers, too.
const fewestCells = 20

// maskOfGradient returns the mask by which a program computed its loss where that shows: a cell that does not count has the gradient 0, one
// that counts another, unless the right gradient is 0 there. It is nil where nothing says that the mask is another one. configured are the options under
// which a loss leaves such tokens out.
func maskOfGradient(o *stage.Outcome, c *stage.Case) (f *maskForm, configured []string) {
	if slices.Contains([]string{"gradient/dvalues", "aggregate/value_loss"}, o.Check.ID) {
		return maskOfValues(c), nil
	}
	if !slices.Contains([]string{"gradient/dlogp", "aggregate/loss", "aggregate/pg_loss", "preference/sft_loss"}, o.Check.ID) {
		return nil, nil
	}
	now, known := readOff(c, "dlogp")
	if now == nil {
		return nil, nil
	}
	if o.Check.ID == "gradient/dlogp" && slices.ContainsFunc([]string{"aggregate/loss", "preference/sft_loss"}, func(id string) bool {
		return stage.Judge(stage.Find(id), c.B, c.Set).Verdict == check.Pass
	}) {
		return nil, nil // the loss has the right mask
	}
	if c.B.Tensors["token_loss"] != nil && stage.Judge(stage.Find("token_loss/policy"), c.B, c.Set).Verdict == check.Fail || clipped(c, now, known) {
		return nil, nil // a token without a gradient may be one that another clip cuts off
	}
	was := c.B.Mask
	var fits []cellSet
	for _, s := range append(slices.Clone(cellSets), ofToken(c, now, known), ofPosition(c.B, now, known)) {
		if s.in != nil && s.id != "EXTRA-TERM" && leavesOut(was, now, known, s.of(c, false)) && !slices.ContainsFunc(fits, func(t cellSet) bool { return t.id == s.id }) {
			fits = append(fits, s)
		}
	}
	if len(fits) > 0 {
		name, title := fits[0].id, fits[0].title
		for _, s := range fits[1:] {
			if name != "LOSS-MASK-FIRST" || s.id != "LOSS-MASK-OTHER" { // before the second token is the first one
				name, title = "LOSS-MASK-OTHER", title+", or "+s.title // sets that are the same on these data
			}
		}
		return &maskForm{name, "without tokens " + title + ", by the gradients", func(c *stage.Case) []bool {
			m := fits[0].of(c, false)
			for i, in := range m {
				m[i] = c.B.Mask[i] && !in
			}
			return m
		}}, nil
	}
	id := "LOSS-MASK-OTHER"
	if inHoles(c.B, was, now) {
		id = "LOSS-MASK-TOOL"
	}
	return &maskForm{id, otherCells(c, was, now) + ", by the gradients", func(c *stage.Case) []bool {
		m, _ := readOff(c, "dlogp")
		return m
	}}, filtersOf(c, was, now)
}

// maskOfValues returns the mask of the value loss that its gradients show, nil where that is the declared one.
func maskOfValues(c *stage.Case) *maskForm {
	if c.EnumOr("value.mask", "response") != "response" {
		return nil
	}
	now, _ := readOff(c, "dvalues")
	if now == nil || heldValues(c.B, now) {
		return nil
	}
	return &maskForm{"LOSS-MASK-OTHER", "of the value loss " + otherCells(c, c.B.Mask, now) + ", by the gradients", func(c *stage.Case) []bool {
		m, _ := readOff(c, "dvalues")
		return m
	}}
}

// heldValues reports whether the tokens that a mask lacks are among those whose values have moved most, as those are that some clip of values holds: a mask that has
// nothing to do with values leaves out one, too, that has hardly moved.
func heldValues(b *dump.Batch, now []bool) bool {
	const hardly = 0.1 // of the tokens
	v, old := b.Token("values_new"), b.Token("values")
	if v == nil || old == nil {
		return false
	}
	var all, gone []float64
	for i := range b.Tokens() {
		d := math.Abs(v[i] - old[i])
		if all = append(all, d); !now[i] {
			gone = append(gone, d)
		}
	}
	if len(gone) == 0 {
		return false
	}
	slices.Sort(all)
	return slices.Min(gone) > all[int(hardly*float64(len(all)))]
}

// filtersOf are the options that leave out of a loss what another mask has less than the right one, where it has no more: tokens of responses that keep others, which
// clip_cov draws (Cui et al. 2025), or whole responses of advantages below 0, which are far from the policy (DeepSeek-AI 2025, off-policy sequence masking).
func filtersOf(c *stage.Case, was, now []bool) []string {
	tokens, rows := true, true
	for r := range c.B.Rows {
		lacks, has, above := false, false, false
		for i := r * c.B.Cols; i < (r+1)*c.B.Cols; i++ {
			if now[i] && !was[i] {
				return nil
			}
			lacks, has = lacks || was[i] && !now[i], has || now[i]
			above = above || was[i] && advantageAt(c, i) >= 0
		}
		tokens = tokens && !(lacks && !has)
		rows = rows && !(lacks && (has || above))
	}
	switch {
	case tokens:
		return []string{"loss.kind"}
	case rows:
		return []string{"loss.off_policy_max"}
	}
	return nil
}

// clipped reports whether the tokens that lack a gradient are, of each sign of the advantage, those of the largest ratios, or of the smallest.
func clipped(c *stage.Case, now, known []bool) bool {
	if c.B.Token("logp_old") == nil {
		return false
	}
	some := false
	for _, sign := range []float64{-1, 1} {
		var gone, kept []float64
		for i, m := range c.B.Mask {
			switch {
			case now[i] && !m:
				return false
			case !m || !known[i] || advantageAt(c, i)*sign <= 0:
			case now[i]:
				kept = append(kept, logRatio(c, i))
			default:
				gone = append(gone, logRatio(c, i))
			}
		}
		if len(gone) > 0 && (len(kept) == 0 || !(slices.Min(gone) > slices.Max(kept) || slices.Max(gone) < slices.Min(kept))) {
			return false
		}
		some = some || len(gone) > 0
	}
	return some
}

// readOff returns the mask that the gradients of a batch show, nil if it is the right one or none can be told, and which cells show it. A cell
// whose right gradient is 0 says nothing: it counts as the response mask has it, unless none of its row does that says something.
func readOff(c *stage.Case, gradient string) (now, known []bool) {
	b := c.B
	g := b.Tensors[gradient]
	if g == nil || g.Layout != dump.PerToken || g.Width > 1 || len(g.Data) != len(b.Mask) {
		return nil, nil
	}
	p := under(sameInput, c, stage.Find("gradient/"+gradient))
	if p == nil || len(p.Want) != len(b.Mask) {
		return nil, nil
	}
	now, known = make([]bool, len(b.Mask)), make([]bool, len(b.Mask))
	left := 0
	for r := range b.Rows {
		gone, counts := false, false
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			x := g.Data[i]
			if math.IsNaN(x) {
				return nil, nil
			}
			now[i] = x != 0
			known[i] = now[i] || !b.Mask[i] || math.Abs(p.Want[i]) > 100*p.Bound[i]
			counts = counts || now[i]
			gone = gone || b.Mask[i] && known[i] && !now[i]
			if now[i] {
				left++
			}
		}
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			now[i] = now[i] || !known[i] && b.Mask[i] && (counts || !gone)
		}
	}
	if left < fewestCells || slices.Equal(now, b.Mask) {
		return nil, nil
	}
	return now, known
}

// leavesOut reports whether, as far as is known, another mask is the right one without the cells of a set.
func leavesOut(was, now, known, in []bool) bool {
	some := false
	for i, m := range was {
		if known[i] && now[i] != (m && !in[i]) {
			return false
		}
		some = some || known[i] && m && in[i]
	}
	return some
}

// inHoles reports whether what another mask has more is all between two tokens of a response, and whether it has all else.
func inHoles(b *dump.Batch, was, now []bool) bool {
	for r := range b.Rows {
		first, last := firstLast(was[r*b.Cols : (r+1)*b.Cols])
		for t := range b.Cols {
			if i := r*b.Cols + t; was[i] && !now[i] || now[i] && !was[i] && (t < first || t > last) {
				return false
			}
		}
	}
	return true
}

// otherCells says in words which cells a mask has that are not those of another one.
func otherCells(c *stage.Case, was, now []bool) string {
	b := c.B
	var more, fewer, counted, rows, whole int
	first := ""
	for r := range b.Rows {
		in, out := 0, 0
		for t := range b.Cols {
			i := r*b.Cols + t
			if was[i] {
				in++
			}
			switch {
			case now[i] && !was[i]:
				more++
			case was[i] && !now[i]:
				out++
			default:
				continue
			}
			if first == "" {
				first = fmt.Sprintf("row %d, token %d", r, t)
			}
		}
		counted, fewer = counted+in, fewer+out
		if out > 0 {
			rows++
			if out == in {
				whole++
			}
		}
	}
	switch {
	case more > 0 && fewer > 0:
		return fmt.Sprintf("%d cells outside the response mask count, and %d of its %d tokens do not (the first: %s)", more, fewer, counted, first)
	case more > 0:
		return fmt.Sprintf("%d cells outside the response mask count (the first: %s)", more, first)
	case whole == rows:
		return fmt.Sprintf("%d of %d responses do not count (the first: %s)", rows, b.Rows, first)
	}
	return fmt.Sprintf("%d of %d tokens, in %d of %d responses, do not count (the first: %s)", fewer, counted, rows, b.Rows, first)
}

// ofToken returns the tokens that have the id of the first that a mask is known to lack.
func ofToken(c *stage.Case, now, known []bool) cellSet {
	ids := c.B.Token("response_ids")
	for i := range ids {
		if id := ids[i]; c.B.Mask[i] && known[i] && !now[i] {
			name := "LOSS-MASK-OTHER"
			if slices.Contains(c.FactList("eos_token_id"), id) {
				name = "LOSS-MASK-NO-EOS"
			}
			return cellSet{name, fmt.Sprintf("whose id is %.0f", id), func(c *stage.Case, _, _, i int) bool { return c.B.Token("response_ids")[i] == id }}
		}
	}
	return cellSet{}
}

// ofPosition returns the first k tokens of every response, or all from the k-th on, by the positions of those that a mask is known to lack.
func ofPosition(b *dump.Batch, now, known []bool) cellSet {
	lowest, highest := b.Cols, -1
	position := func(b *dump.Batch, r, t int) int { return int(count(b.Mask[r*b.Cols : r*b.Cols+t])) }
	for i, m := range b.Mask {
		if m && known[i] && !now[i] {
			k := position(b, i/b.Cols, i%b.Cols)
			lowest, highest = min(lowest, k), max(highest, k)
		}
	}
	switch {
	case lowest == 0 && highest < b.Cols-1:
		return cellSet{"LOSS-MASK-OTHER", fmt.Sprintf("before the %d. of a response", highest+2), func(c *stage.Case, r, t, _ int) bool { return position(c.B, r, t) <= highest }}
	case lowest > 0 && lowest < b.Cols:
		return cellSet{"LOSS-MASK-OTHER", fmt.Sprintf("from the %d. of a response on", lowest+1), func(c *stage.Case, r, t, _ int) bool { return position(c.B, r, t) >= lowest }}
	}
	return cellSet{}
}
