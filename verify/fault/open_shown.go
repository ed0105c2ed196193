package fault

import (
	"math"
	"slices"
	"strconv"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// ShownUnder returns what an output gives of options in closed form, as [stage.Shown] does, where it was made of what a bug makes of the inputs, and not of
// the inputs themselves: numbers that nobody declares are read off with the bug in place, or not at all. The likeliest of each bug, each once.
func ShownUnder(ch *stage.Check, b *dump.Batch, set *convention.Set) (shown [][]stage.Change) {
	seen := func(list [][]stage.Change, changes []stage.Change) bool {
		return slices.ContainsFunc(list, func(l []stage.Change) bool { return slices.Equal(l, changes) })
	}
	healthy := stage.Shown(ch, b, set)
	c := stage.NewCase(b, set, 0)
	for _, h := range all {
		if !h.Applies(ch) || h.Input == nil {
			continue
		}
		in, under, ok := h.Input(c)
		if !ok || in == b {
			continue
		}
		for _, changes := range first(stage.Shown(ch, in, under), 1) {
			if !seen(healthy, changes) && !seen(shown, changes) {
				shown = append(shown, changes)
			}
		}
	}
	var slips [][]stage.Change
	switch {
	case ch.ID == "gae/advantage" || ch.Output == "returns":
		slips = append(recursionsShown(b, set), valuesShown(ch, b, set)...)
		if b.Token("token_rewards") == nil {
			slips = append(slips, stage.RewardsUnder(b, set)...)
		}
	case ch.ID == "ratio/is_weights":
		slips = slices.Concat(enginesShown(ch, b, set), weightsShown(ch, b, set), keptShown(ch, b, set))
	case ch.ID == "advantage/return":
		slips = stage.BaselinesUnder(b, set)
	case ch.ID == "reward/token":
		slips = rewardsShown(ch, b, set)
	case ch.ID == "gradient/dlogp":
		slips = stage.RareGradients(b, set)
	case ch.ID == "aggregate/value_loss" || ch.ID == "gradient/dvalues":
		slips = stage.ValueClipsUnder(b, set)
	}
	if ch.Stage == convention.Reward || ch.Stage == convention.Advantage {
		slips = append(append(slips, first(stage.InvertedPenalties(ch, b, set), 3)...), policiesShown(ch, b, set)...)
	}
	if ch.ID == "advantage/group" {
		slips = append(append(slips, stage.HeldEnds(ch, b, set)...), stage.ScoresUnder(b, set)...)
		for _, s := range shapingAdded(c) {
			slips = append(slips, first(stage.Shown(ch, s.unshaped(c), set), 2)...)
		}
	}
	for _, changes := range slips {
		if !seen(healthy, changes) && !seen(shown, changes) {
			shown = append(shown, changes)
		}
	}
	return shown
}

// weightsShown are the levels, rules and bounds of importance weights by the functions of log-ratios and the scopes that no program has.
func weightsShown(ch *stage.Check, b *dump.Batch, set *convention.Set) (shown [][]stage.Change) {
	const option = "tis.level"
	if set.Value(option).Kind() != convention.Unknown {
		return nil
	}
	strays := []input{meanOverColumns}
	for _, s := range strayScopes {
		strays = append(strays, ofScope(s))
	}
	for _, level := range []string{"token", "seq_geo", "seq_sum"} {
		of, err := convention.Parse(option, level)
		if err != nil {
			panic("fault: " + err.Error())
		}
		var inputs []input
		for _, f := range weightForms {
			if f.id != "IS-BF16" { // as a run in 16 bits makes them
				inputs = append(inputs, ofScope(f.scope(level)))
			}
		}
		if level != "token" {
			inputs = append(inputs, strays...)
		}
		for _, in := range inputs {
			under, _, ok := in(stage.NewCase(b, set.With(option, of, "search"), 0))
			if !ok {
				continue
			}
			for _, changes := range stage.Shown(ch, under, set) {
				if slices.ContainsFunc(changes, func(c stage.Change) bool { return c.Option == option && c.To == of }) {
					shown = append(shown, changes)
				}
			}
		}
	}
	return shown
}

// enginesShown are the levels, rules and bounds of importance weights by log-probs of the engine, or of the rollout, that stand a token too late or too early, or one in
// the place of the other.
func enginesShown(ch *stage.Check, b *dump.Batch, set *convention.Set) (shown [][]stage.Change) {
	old, gen := b.Token("logp_old"), b.Token("logp_gen")
	if old == nil || gen == nil {
		return nil
	}
	shown = append(heldBelow(b, set), first(stage.Shown(ch, b.With("logp_old", gen).With("logp_gen", old), set), 1)...)
	for _, name := range []string{"logp_gen", "logp_old"} {
		for _, by := range []int{1, -1} {
			shown = append(shown, first(stage.Shown(ch, b.With(name, rolledBy(b, b.Token(name), by)), set), 1)...)
		}
	}
	return shown
}

// keptShown is what weights say of the bounds that some of them were outside of where these became 1, and not 0.
func keptShown(ch *stage.Check, b *dump.Batch, set *convention.Set) [][]stage.Change {
	w, ones := b.Tensors["is_weights"], 0
	if w == nil || w.Width > 1 {
		return nil
	}
	y := slices.Clone(w.Data)
	for i, x := range y {
		if x == 1 && (w.Layout != dump.PerToken || b.Mask[i]) {
			y[i] = 0
			ones++
		}
	}
	if ones == 0 {
		return nil
	}
	return first(stage.Shown(ch, b.With("is_weights", y), set), 2)
}

// heldBelow is the cap of weights that are at least that: the smallest, which several tokens have.
func heldBelow(b *dump.Batch, set *convention.Set) [][]stage.Change {
	const several = 4
	w := b.Token("is_weights")
	if w == nil {
		return nil
	}
	least, n := math.Inf(1), 0
	for i := range b.Tokens() {
		switch {
		case w[i] < least:
			least, n = w[i], 1
		case w[i] == least:
			n++
		}
	}
	if n < several || !(least > 0) {
		return nil
	}
	written, err := strconv.ParseFloat(strconv.FormatFloat(least, 'g', 4, 64), 64)
	if err != nil {
		return nil
	}
	var list []stage.Change
	for _, a := range [][2]string{{"tis.level", "token"}, {"tis.rule", "truncate_upper"}, {"tis.high", strconv.FormatFloat(written, 'g', -1, 64)}} {
		v, err := convention.Parse(a[0], a[1])
		has := set.Value(a[0])
		if err != nil || has.Known() && has != v {
			return nil
		}
		list = append(list, stage.Change{Option: a[0], From: has, To: v})
	}
	return [][]stage.Change{list}
}

// rolledBy is x with every number that many columns earlier in its row, those of one end at the other.
func rolledBy(b *dump.Batch, x []float64, by int) []float64 {
	y := make([]float64, len(x))
	for i := range y {
		col := (i%b.Cols + by + b.Cols) % b.Cols
		y[i] = x[i-i%b.Cols+col]
	}
	return y
}

// rewardsShown is what stands in rewards where the KL is added to them, and where the score is that of the first token.
func rewardsShown(ch *stage.Check, b *dump.Batch, set *convention.Set) (shown [][]stage.Change) {
	if kl := b.Token("kl"); kl != nil {
		minus := make([]float64, len(kl))
		for i, x := range kl {
			minus[i] = -x
		}
		shown = first(stage.Shown(ch, b.With("kl", minus), set), 2)
	}
	in := b
	for _, name := range []string{"token_rewards", "kl", "logp_old", "logp_ref"} {
		if x := b.Token(name); x != nil {
			in = in.With(name, endsExchanged(b, x))
		}
	}
	return append(append(shown, first(stage.Shown(ch, in, set), 2)...), stage.RewardsUnder(b, set)...)
}

// endsExchanged is x with the numbers of the first and the last token of every response in each other's place.
func endsExchanged(b *dump.Batch, x []float64) []float64 {
	y := slices.Clone(x)
	for r := range b.Rows {
		row := b.Mask[r*b.Cols : (r+1)*b.Cols]
		if lo := slices.Index(row, true); lo >= 0 {
			i, j := r*b.Cols+lo, lastOf(b, r)
			y[i], y[j] = x[j], x[i]
		}
	}
	return y
}

// recursionsShown are γ, λ and the whitening by the recursions of the catalogue that take other rewards or values than GAE's.
func recursionsShown(b *dump.Batch, set *convention.Set) (shown [][]stage.Change) {
	for _, f := range recursionForms()[1:] {
		shown = append(shown, stage.DecaysUnder(b, set, f.next, f.own, f.reward)...)
	}
	return shown
}

// policiesShown is what stands in rewards where the policy and the reference of their KL are exchanged: of k3 and k1 that is another number.
func policiesShown(ch *stage.Check, b *dump.Batch, set *convention.Set) [][]stage.Change {
	old, ref := b.Token("logp_old"), b.Token("logp_ref")
	if old == nil || ref == nil || b.Token("kl") != nil {
		return nil
	}
	return first(stage.Shown(ch, b.With("logp_old", ref).With("logp_ref", old), set), 2)
}

// valuesShown are γ, λ and what stands in rewards, by the values of a column that is one too late or too early.
func valuesShown(ch *stage.Check, b *dump.Batch, set *convention.Set) (shown [][]stage.Change) {
	v := b.Token("values")
	if v == nil {
		return nil
	}
	for _, by := range []int{1, -1} {
		x := make([]float64, len(v))
		for i := range x {
			if from := i%b.Cols + by; from >= 0 && from < b.Cols {
				x[i] = v[i+by]
			}
		}
		shown = append(shown, first(stage.Shown(ch, b.With("values", x), set), 1)...)
	}
	return shown
}

func first[T any](list []T, n int) []T { return list[:min(n, len(list))] }
