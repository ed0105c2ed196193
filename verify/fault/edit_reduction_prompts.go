package fault

import (
	"math"
	"slices"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/verify/stage"
)

const withPrompt = "its prompt and response"

// promptParts adds the lengths and the counts of programs that count prompts as well: of dumps that show them, and those that gradients show.
func (p *reductionParts) promptParts(c *stage.Case, n []float64, add func(list *[]part, what string, x []float64)) {
	b := c.B
	both := withPrompts(b, n)
	if both == nil {
		if both, told := shownPrompts(c, n); both != nil { // what some steps tell may be so in those that do not
			p.length = append(p.length, part{withPrompt + ", as many tokens more for all rows of a group as their gradients show", both, !told})
		}
		return
	}
	add(&p.length, withPrompt, both)
	add(&p.count, "the tokens of the step with their prompts", everyRow(b, total(both)))
	add(&p.count, "the tokens of the micro-batch with their prompts", spreadFiles(b, func(f int) float64 { return total(both[b.Files[f].Lo:b.Files[f].Hi]) }))
}

// withPrompts returns the tokens of prompt and response of every row, nil where the dump does not show them.
func withPrompts(b *dump.Batch, tokens []float64) []float64 {
	both := make([]float64, len(tokens))
	if prompt := b.Row("prompt_len"); len(prompt) == len(tokens) {
		for r := range both {
			both[r] = tokens[r] + prompt[r]
		}
		return both
	}
	if packed := packedLengths(b); packed != nil {
		return packed
	}
	t := b.Tensors["attention_mask"]
	if t == nil || t.Width <= b.Cols || len(t.Data) != len(tokens)*t.Width {
		return nil
	}
	for i, x := range t.Data {
		both[i/t.Width] += x
	}
	return both
}

// packedLengths returns the cells of every sequence of packed rows, each of which begins with cells that are not of its response; else nil.
func packedLengths(b *dump.Batch) []float64 {
	n := make([]float64, b.Rows)
	for r := range n {
		first, _ := firstLast(b.Mask[r*b.Cols : (r+1)*b.Cols])
		if n[r] = float64(b.Origin[r].Cols); !b.Files[b.File(r)].Packed || n[r] == 0 || first == 0 {
			return nil
		}
	}
	return n
}

// shownPrompts returns the tokens of every row and k more, a whole number of each group, which has one prompt: means over responses of n tokens whose gradients are
// n/(n + k) of the right ones. Nil where these are not such numbers. They are told from other divisors where rows have the k of their group, or that of all, at
// another length.
func shownPrompts(c *stage.Case, n []float64) (both []float64, told bool) {
	const least = 2
	b := c.B
	id, got := b.Row("group_id"), b.Token("dlogp")
	if len(id) != b.Rows || got == nil || c.EnumOr("agg.kind", "") != "seq_mean_token_mean" {
		return nil, false
	}
	p := under(sameInput, c, stage.Find("gradient/dlogp"))
	if p == nil || len(p.Want) != len(got) {
		return nil, false
	}
	prompt, first, confirmed := map[float64]float64{}, map[float64]float64{}, 0
	var all []int // rows that show k
	for r := range b.Rows {
		k, ok := shownPrompt(c, p, got, r, n[r])
		if !ok {
			return nil, false
		}
		if math.IsNaN(k) {
			continue
		}
		if all = append(all, r); first[id[r]] == 0 {
			prompt[id[r]], first[id[r]] = k, n[r]
		}
		if prompt[id[r]] != k {
			return nil, false
		}
		confirmed += boolToInt(first[id[r]] != n[r])
	}
	if len(all) == 0 {
		return nil, false
	}
	one := func(r int) bool { return prompt[id[r]] == prompt[id[all[0]]] }
	if confirmed < least && !slices.ContainsFunc(all, func(r int) bool { return !one(r) }) {
		confirmed = 0
		for _, r := range all {
			confirmed += boolToInt(n[r] != n[all[0]])
		}
	}
	both = make([]float64, b.Rows)
	for r := range both {
		both[r] = n[r] + prompt[id[r]]
	}
	return both, confirmed >= least
}

// shownPrompt returns k of a row of n tokens, NaN where no gradient shows it; not ok where it is no whole number, or one for each token.
func shownPrompt(c *stage.Case, p *stage.Prediction, got []float64, r int, n float64) (k float64, ok bool) {
	const whole = 1e-3
	k = math.NaN()
	for i := range c.B.TokensOf(r) {
		if p.Want[i] == 0 || p.Judge != nil && !p.Judge[i] {
			continue
		}
		x := n*p.Want[i]/got[i] - n
		if !(x > whole) || math.Abs(x-math.Round(x)) > whole || !math.IsNaN(k) && math.Round(x) != k {
			return 0, false
		}
		k = math.Round(x)
	}
	return k, true
}

// withPrompts reports whether sums over responses are divided by lengths with prompts, and nothing else is changed: no program has such a mean.
func (p *reductionParts) withPrompts(from, at choice) bool {
	return from.keep == at.keep && from.count == at.count && from.factor == at.factor && strings.HasPrefix(p.length[at.length].what, withPrompt)
}
