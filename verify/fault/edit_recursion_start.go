package fault

import (
	"fmt"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// recursionStart is what the recursion over a row may begin with behind its last token in place of 0.
type recursionStart struct {
	v, rewards    []float64 // of the tokens
	behind, width float64   // the value behind the last token, and the columns of the row
	before        float64   // A of the first token of the row before, where rows are visited one after the other
}

// startForms are recursions whose accumulator is not 0 behind the last token of a response.
func startForms(c *stage.Case) []recursionForm {
	right := recursionForms()[0]
	var list []recursionForm
	for _, f := range []struct {
		title string
		of    func(s recursionStart) float64
	}{
		{"the mean of the rewards of the row over its columns", func(s recursionStart) float64 { return total(s.rewards) / max(s.width, 1) }},
		{"the mean of the rewards of the tokens of the row", func(s recursionStart) float64 { return total(s.rewards) / float64(len(s.rewards)) }},
		{"the sum of the rewards of the row", func(s recursionStart) float64 { return total(s.rewards) }},
		{"the last reward", func(s recursionStart) float64 { return s.rewards[len(s.rewards)-1] }},
		{"the last value", func(s recursionStart) float64 { return s.v[len(s.v)-1] }},
		{"the value behind the last token", func(s recursionStart) float64 { return s.behind }},
		{"that of the first token of the row before: it is not set to 0 between rows", func(s recursionStart) float64 { return s.before }},
	} {
		g := right
		g.id, g.title, g.begin = "GAE-NOT-RESET", "A behind the last token is not 0 but "+f.title, f.of
		list = append(list, g)
	}
	if c.B.Token("token_rewards") == nil { // a reward that is not what it was recomputed to be gives a number in each row, too
		return list
	}
	g := right
	if finished, cut := endsOf(c); finished && cut {
		g.id, g.solved, g.cutOnly = "GAE-TRUNCATED-BOOTSTRAP", true, true
		g.title = "behind responses that were cut off there is another number in each, which nothing of the dump is, and 0 behind those that ended: they are bootstrapped"
		list = append(list, g)
	}
	g = right
	g.id, g.title, g.solved = "GAE-NOT-RESET", "A behind the last token is not 0, in every row another number: all tokens before it carry it on", true
	return append(list, g)
}

// someEnds is the recursion that is cut at some of the ends of episodes alone.
func someEnds(c *stage.Case) []recursionForm {
	if !c.Has("dones") {
		return nil
	}
	f := recursionForms()[0]
	f.id, f.title, f.some = "GAE-DONES", "the recursion goes on over some ends of episodes, and is cut at the others: those that a time limit ends count as none, say", []float64{}
	return []recursionForm{f}
}

// endsOf reports whether a batch has several responses that ended with EOS, and several that did not.
func endsOf(c *stage.Case) (finished, cut bool) {
	const several = 2
	var n [2]int
	if c.FactList("eos_token_id") == nil || c.B.Cols == 0 {
		return false, false
	}
	for r := range c.B.Rows {
		n[boolToInt(ended(c, r))]++
	}
	return n[1] >= several, n[0] >= several
}

// bootForms are recursions in which next_values stand behind other responses than declared.
func bootForms(c *stage.Case) []recursionForm {
	if len(c.B.Row("next_values")) != c.B.Rows {
		return nil
	}
	var list []recursionForm
	for _, f := range []struct {
		title string
		boots func(ended, declared bool) bool
	}{
		{"the value behind the last token is taken for every response, for those that ended with EOS, too", func(bool, bool) bool { return true }},
		{"the value behind the last token is taken for the responses that ended with EOS, and not for those that were cut off", func(ended, _ bool) bool { return ended }},
		{"the value behind the last token is taken for the responses that were cut off", func(ended, _ bool) bool { return !ended }},
		{"the value behind the last token is not taken for the responses that were cut off", func(bool, bool) bool { return false }},
	} {
		g := recursionForms()[0]
		g.id, g.title, g.boots = "GAE-TRUNCATED-BOOTSTRAP", f.title, f.boots
		list = append(list, g)
	}
	return list
}

// heldForms are recursions whose δ is held within bounds that people write.
func heldForms() []recursionForm {
	var list []recursionForm
	for _, bound := range []float64{0.1, 0.2, 0.5, 1, 2, 3, 5, 10} {
		g := recursionForms()[0]
		g.id, g.title, g.held = "GAE-RECURSION", fmt.Sprintf("δ is held within ±%g", bound), bound
		list = append(list, g)
	}
	return list
}

// bootsRow reports whether next_values stand behind a response. Where they are declared to, and EOS is known, they stand behind those without it.
func (f recursionForm) bootsRow(c *stage.Case, r int) bool {
	end := c.FactList("eos_token_id") != nil && ended(c, r)
	declared := c.EnumOr("gae.truncated_bootstrap", "none") == "value"
	if f.boots != nil {
		return f.boots(end, declared)
	}
	return declared && !end
}

// rawAdvantages returns the advantages before whitening that a dump shows: its returns less the values, or advantages that nothing is done to.
func rawAdvantages(c *stage.Case) []float64 {
	v, ret, adv := c.B.Token("values"), c.B.Token("returns"), c.B.Tensors["advantages"]
	if len(v) == len(c.B.Mask) && len(ret) == len(v) {
		return eachOf(len(v), func(i int) float64 { return ret[i] - v[i] })
	}
	if scope := c.Set.Value("whiten.scope"); scope.Kind() == convention.Enum && scope.Text() == "none" && adv != nil && adv.Layout == dump.PerToken && len(adv.Data) == len(c.B.Mask) {
		return adv.Data
	}
	return nil
}
