package stage

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// GDPO: every reward function is normalised in its group, and the weighted sum in the batch.
func TestNormalizeThenSum(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	w := worst{}
	s := set(t, "adv.kind=group adv.multi=normalize_then_sum kl.place=loss whiten.scope=none adv.center=mean adv.scale=group_std adv.ddof=1 adv.eps=1e-4 adv.zero_std=divide_eps adv.singleton=zero").WithFact("reward_weights", []any{1.0, 0.5, 0.25})
	for range 2000 {
		g, members := groupBatch(r, statFamilies["normal"], 2, 4)
		per := make([]float64, 3*g.Rows)
		for i := range per {
			per[i] = float64(f32(r.NormFloat64()))
		}
		g.row("rewards_per_func", per...)
		sum := make([]float32, g.Rows)
		for f, weight := range []float32{1, .5, .25} {
			for _, ids := range members {
				var own []float32
				for _, i := range ids {
					own = append(own, f32(per[3*i+f]))
				}
				for k, z := range group32(r, own, nil, "mean", "group_std", 1, 1e-4, false) {
					sum[ids[k]] += weight * z
				}
			}
		}
		a := make([]float64, g.Rows)
		for i, v := range group32(r, sum, nil, "mean", "group_std", 1, 1e-4, false) {
			a[i] = float64(v)
		}
		w.add(t, "gdpo", "advantage/group", g.row("advantages", a...).Batch, s)
	}
	w.tight(t)
}

// The advantage of a batch baseline, whitened over rows or tokens, and of a raw reward.
func TestBatchBaseline(t *testing.T) {
	g := newGrid(2, 1, 2, 1).row("scores", 1, 2, 6).row("advantages", -2, -1, 3)
	s := set(t, "adv.kind=batch_baseline adv.center=mean adv.scale=none kl.place=loss whiten.scope=none")
	require.Equal(t, check.Pass, Judge(Find("advantage/group"), g.Batch, s).Verdict)
	const white = " whiten.scope=global whiten.mask=response whiten.ddof=0 whiten.eps_place=inside_sqrt whiten.shift_mean=true whiten.eps=0"
	std := math.Sqrt(14. / 3)
	s = set(t, "adv.kind=batch_baseline adv.center=mean adv.scale=none kl.place=loss"+white)
	require.Equal(t, check.Pass, Judge(Find("advantage/group"), g.row("advantages", -2/std, -1/std, 3/std).Batch, s).Verdict)
	std, mean := math.Sqrt(15./4-1./16), -1./4 // of −2, −1, −1, 3
	g.token("advantages", (-2-mean)/std, 0, (-1-mean)/std, (-1-mean)/std, (3-mean)/std, 0)
	require.Equal(t, check.Pass, Judge(Find("advantage/group"), g.Batch, s).Verdict)
	raw := set(t, "adv.kind=raw kl.place=loss whiten.scope=none")
	require.Equal(t, check.Pass, Judge(Find("advantage/group"), g.row("advantages", 1, 2, 6).Batch, raw).Verdict)
}

func TestWhichCheckOwnsAdvantages(t *testing.T) {
	g := newGrid(1, 1).row("advantages", 1).row("scores", 1)
	owner := func(s *convention.Set) string {
		var ids []string
		for _, ch := range ownChecks() {
			if ch.Output == "advantages" && ch.Applies != nil && ch.Applies(NewCase(g.Batch, s, tol.U32)) {
				ids = append(ids, ch.ID)
			}
		}
		return strings.Join(ids, " ")
	}
	require.Equal(t, "advantage/group", owner(set(t, "")))
	require.Equal(t, "gae/advantage", owner(set(t, "adv.kind=gae")))
	require.Equal(t, "advantage/return", owner(set(t, "adv.kind=rfpp")))
	g.token("values", 1)
	require.Equal(t, "gae/advantage", owner(set(t, "")))
	o := Judge(Find("gae/advantage"), g.token("advantages", 1).Batch, set(t, ""))
	require.Equal(t, fmt.Sprint([]string{"adv.kind"}), fmt.Sprint(o.Case.Unknown))
	// Asked for an estimator of another check, a check predicts what that one would.
	p := Find("gae/advantage").Predict(NewCase(g.Batch, set(t, "adv.kind=raw kl.place=loss whiten.scope=none"), tol.U32))
	require.Equal(t, []float64{1}, p.Want)
}
