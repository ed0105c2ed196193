package stage_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// Which loss the pairs have, and its β, is what their losses say; each fit's changes make its options.
func TestLossesOfPairsAreFound(t *testing.T) {
	for _, kind := range []string{"sigmoid", "hinge", "ipo"} {
		for seed := range uint64(8) {
			tr := pairs(seed)
			b := tr.b
			set := options(t, "dpo.loss="+kind, "dpo.beta=0.2", "dpo.label_smoothing=0")
			tr.perRow("pair_loss", func(int) float64 { return 0 })
			for r, w := range judged32(t, "preference/pair_loss", b, set).Pred.Want {
				b.Row("pair_loss")[r] = round32(w)
			}
			fits, _ := stage.Complete(stage.Find("preference/pair_loss"), b, &convention.Set{})
			require.NotEmpty(t, fits, "%s, seed %d", kind, seed)
			for _, f := range fits {
				made := &convention.Set{}
				for _, c := range f.Changes {
					require.Equal(t, convention.Unknown, made.Value(c.Option).Kind(), "%s is changed twice", c.Option)
					made = made.With(c.Option, c.To, "search")
				}
				require.Equal(t, kind, made.Value("dpo.loss").String(), "seed %d", seed)
				require.Equal(t, "0.2", made.Value("dpo.beta").String(), "%s, seed %d", kind, seed)
				for _, c := range f.Changes {
					require.Equal(t, f.Set.Value(c.Option), made.Value(c.Option))
				}
			}
		}
	}
}
