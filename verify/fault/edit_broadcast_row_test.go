package fault

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// Advantages of tokens that are the first or the last of those of their row are named, and those of one number that is none of these are not.
func TestOneAdvantageForARow(t *testing.T) {
	p, _, err := convention.Lookup("verl-ppo@0.9")
	require.NoError(t, err)
	passedBy := func(own, behind, m float64) float64 { return own*m + (1-m)*behind }
	for _, scope := range []string{"none", "global"} {
		set := convention.FromProfile(p).With("whiten.scope", parsed("whiten.scope", scope), "test")
		for name, x := range map[string]string{"gae.gamma": "0.97", "gae.lambda": "0.9"} {
			set = set.With(name, parsed(name, x), "test")
		}
		for words, of := range map[string]func(x []float64) float64{
			"": nil, "is the first of those of its row": func(x []float64) float64 { return x[0] }, "is the last of those of its row": func(x []float64) float64 { return x[len(x)-1] },
			"?": slices.Max[[]float64],
		} {
			b := rolledOut(true, overHoles(passedBy, passedBy))
			o := stage.Judge(stage.Find("gae/advantage"), b, set)
			require.NotNil(t, o.Pred, o.Lacking())
			for r := range b.Rows {
				var x []float64
				for i := range b.TokensOf(r) {
					x = append(x, o.Pred.Want[i])
				}
				for i := range b.TokensOf(r) {
					if b.Token("advantages")[i] = o.Pred.Want[i]; of != nil {
						b.Token("advantages")[i] = of(x)
					}
				}
			}
			o = stage.Judge(stage.Find("gae/advantage"), b, set)
			if of == nil {
				require.Equal(t, check.Pass, o.Verdict)
				continue
			}
			named := slices.ContainsFunc(Explain(o), func(e Explanation) bool { return e.Hypothesis.ID == "ADV-BROADCAST" && !e.Lead })
			require.Equal(t, words != "?", named, words)
			if named {
				require.Contains(t, Explain(o)[0].Hypothesis.Title, words)
			}
		}
	}
}
