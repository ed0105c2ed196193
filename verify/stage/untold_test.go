package stage

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// Numbers of a formula that make no difference to any cell are no sign of it: vespo's weight is 1 where all ratios are, whatever its numbers.
func TestNumbersThatTheDataDoNotTell(t *testing.T) {
	steps := stepsOf(1, false, func(lp, d, adv, _, _ float64) float64 { return -adv * lp })
	for n, want := range map[int]bool{0: false, 2: true} { // the step that tells most is the first; all ratios of the last are 1
		b := steps[n].B
		loss := b.Token("token_loss")
		set := steps[n].Set
		var changes []Change
		for _, a := range append([]assign{word("kl.place", "none"), word("tis.level", "none")}, vespo...) {
			changes = append(changes, Change{a.option, convention.Value{}, a.value})
			set = set.With(a.option, a.value, "search")
		}
		p := Find("token_loss/policy").Predict(NewCase(b, set, 0x1p-24))
		for i, x := range p.Want {
			loss[i], _ = rounded(x, tol.UB)
		}
		b.Tensors["token_loss"].Type = format.BF16
		s := newSearch(Find("token_loss/policy"), b)
		require.Equal(t, want, s.untold(Fit{Changes: changes, Set: set}), "step %d", b.Meta.Step)
	}
}
