package fault

import (
	"cmp"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// Healed returns a batch as it would be without a bug that its output shows whatever the options are, once for each bug: what makes the output right there is a
// base on which the bug is looked for.
func Healed(ch *stage.Check, b *dump.Batch, set *convention.Set) (list []*dump.Batch) {
	add := func(in *dump.Batch) {
		if in != nil {
			list = append(list, in)
		}
	}
	switch ch.ID {
	case "advantage/return":
		for _, f := range toGoForms {
			if f.undo != nil {
				add(stage.Undone(b, set, f.undo, func(n int) int { return n - 1 }))
			}
		}
		add(stage.Undone(b, set, unsum, func(int) int { return 0 }))
	case "gae/advantage", "gae/returns":
		for _, in := range stage.RecursionsRewarded(b) {
			add(in)
		}
		off := map[*dump.Batch]float64{}
		for _, f := range wrongRecursions() {
			in, by := stage.RecursionUndone(b, set, f)
			if in == nil || slices.ContainsFunc(list, func(o *dump.Batch) bool { return slices.Equal(o.Token("returns"), in.Token("returns")) }) {
				continue
			}
			list, off[in] = append(list, in), by
		}
		slices.SortStableFunc(list, func(x, y *dump.Batch) int { return cmp.Compare(off[x], off[y]) })
	}
	return list
}

// wrongRecursions are the recursions of the catalogue whose values are others than the right ones.
func wrongRecursions() (list []stage.WrongRecursion) {
	some := []float64{1.25, -0.5, 2.75, 0.125}
	for _, f := range recursionForms() {
		right := f.next(some, 1) == some[2] && f.own(some, 1) == some[1]
		if right || f.fromFirst {
			continue
		}
		w := stage.WrongRecursion{Next: f.next, Own: f.own, End: func(v []float64) float64 { return f.end(v, 0, 1) }}
		list = append(list, w)
		if own := f.next(some, 1) == some[1]; own {
			w.End, w.Shorter = lastValue, true
			list = append(list, w)
		}
	}
	for _, longest := range []bool{false, true} {
		list = append(list, stage.WrongRecursion{Next: nextValue, Own: ownValue, End: lastValue, Interior: true, Longest: longest})
	}
	return list
}

func lastValue(v []float64) float64 { return v[len(v)-1] }
