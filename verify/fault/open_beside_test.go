package fault

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// Rows that are left out by another rule, and a gate without its factor, show the number, or the kind, that nobody declares, and are named under it.
func TestWhatIsLeftOutUnderALimitThatNobodyDeclares(t *testing.T) {
	clip := func(d, a float64) float64 {
		r := math.Exp(d)
		return math.Max(-a*r, -a*math.Max(0.8, math.Min(r, 1.28)))
	}
	leftOut := func(drops func(a, gap float64) bool) *dump.Batch {
		b := updated(clip)
		lp, old, adv, loss := b.Token("logp_new"), b.Token("logp_old"), b.Row("advantages"), b.Token("token_loss")
		for r := range b.Rows {
			var gap float64
			for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
				gap += (old[i] - lp[i]) / float64(b.Cols)
			}
			for i := r * b.Cols; drops(adv[r], gap) && i < (r+1)*b.Cols; i++ {
				loss[i] = 0
			}
		}
		return b
	}
	set := clippedLoss(t, "loss.off_policy_max", "none", "loss.top_entropy", "none")
	open := func(option string) bool { return option == "loss.off_policy_max" || option == "loss.kind" }
	named := func(b *dump.Batch, set *convention.Set) (ids []string) {
		o := stage.Judge(stage.Find("token_loss/policy"), b, set)
		require.Equal(t, check.Fail, o.Verdict)
		for _, changes := range Beside(o, open) {
			full := set
			for _, c := range changes {
				full = full.With(c.Option, c.To, "search")
			}
			for _, e := range Explain(stage.Judge(o.Check, b, full)) {
				if !e.Lead && !e.Hypothesis.Relative {
					ids = append(ids, e.Hypothesis.ID)
				}
			}
		}
		return ids
	}
	require.Contains(t, named(leftOut(func(_, gap float64) bool { return gap > 0.02 }), set), "OFF-POLICY-FORM")
	right := stage.Judge(stage.Find("token_loss/policy"), leftOut(func(a, gap float64) bool { return a < 0 && gap > 0.0237 }), set)
	require.Empty(t, Beside(right, open), "the right rule with a limit leaves out the same rows")
	whole := updated(func(d, a float64) float64 { return 1.1 * clip(d, a) })
	require.Empty(t, Beside(stage.Judge(stage.Find("token_loss/policy"), whole, set), open), "nothing is left out")
	gate := func(factor float64) *dump.Batch {
		b := updated(func(d, a float64) float64 {
			tau := 1.0
			if a < 0 {
				tau = 1.05
			}
			return -a * factor / (1 + math.Exp(-tau*(math.Exp(d)-1)))
		})
		lp, old, adv, loss := b.Token("logp_new"), b.Token("logp_old"), b.Row("advantages"), b.Token("token_loss")
		for i := 0; i < len(lp); i += 3 {
			old[i], loss[i] = lp[i], float64(float32(-adv[i/b.Cols]*factor/2))
		}
		return b
	}
	require.Contains(t, named(gate(1), set), "SAPO-SCALE")
	require.Empty(t, named(gate(1.7), set), "half of nothing")
}
