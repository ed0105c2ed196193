package stage

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
)

// bareLosses are files that have log-probs, advantages and a loss of them, and nothing of what is between. loss has the sums of the policy losses over the
// mask and over rows by their means, those of the KL, and the counts.
func bareLosses(files int, policy func(a, lp, ratio, rowRatio float64) float64, kl func(d float64) float64, loss func(pg, pgRows, kl, tokens, rows float64) float64) *Losses {
	return bareLossesOf(files, 0.09, 0.3, policy, kl, loss)
}

// bareLossesOf is bareLosses of a policy that moves so far from that of the rollout, and of a reference that is so far from it.
func bareLossesOf(files int, moved, apart float64, policy func(a, lp, ratio, rowRatio float64) float64, kl func(d float64) float64, loss func(pg, pgRows, kl, tokens, rows float64) float64) *Losses {
	l := &Losses{}
	for f := range files {
		lengths := []int{2 + f%5, 6, 3, 5}
		b := lossFile(6, lengths, func(int) float64 { return 0 }, nil)
		delete(b.Tensors, "token_loss")
		b.Meta.Step = f
		lp, old, ref := make([]float64, 24), make([]float64, 24), make([]float64, 24)
		adv := []float64{1.3, -0.4, 0.6, -1.5}
		for i := range lp {
			old[i] = float64(float32(-1 - math.Abs(math.Sin(float64(5*i+f)))))
			ref[i] = float64(float32(old[i] + apart*math.Cos(float64(3*i+2*f))))
			lp[i] = float64(float32(old[i] + moved*float64(f%4)*math.Sin(float64(11*i+3*f))))
		}
		var pg, pgRows, d, tokens, rows float64
		for r, n := range lengths {
			var sum, log float64
			for i := 6 * r; i < 6*r+n; i++ {
				log += lp[i] - old[i]
			}
			for i := 6 * r; i < 6*r+n; i++ {
				x := policy(adv[r], lp[i], math.Exp(lp[i]-old[i]), math.Exp(log/float64(n)))
				sum += x
				d += kl(lp[i] - ref[i])
			}
			pg, pgRows, tokens, rows = pg+sum, pgRows+sum/float64(n), tokens+float64(n), rows+1
		}
		for name, x := range map[string][]float64{"logp_new": lp, "logp_old": old, "logp_ref": ref} {
			b.Tensors[name] = &dump.Tensor{Data: x, Layout: dump.PerToken, Type: format.F32}
		}
		b.Tensors["advantages"] = &dump.Tensor{Data: adv, Layout: dump.PerRow, Type: format.F32}
		b.Tensors["loss"] = &dump.Tensor{Data: []float64{float64(float32(loss(pg, pgRows, d, tokens, rows)))}, Layout: dump.PerFile, Type: format.F32}
		l.Add(b)
	}
	return l
}

func k3(d float64) float64 { return math.Exp(-d) - 1 + d }

// Losses of which nothing but log-probs and advantages was dumped tell their form: bounds, level of the ratio, estimate and coefficient of the KL.
func TestFormsOfBareLosses(t *testing.T) {
	clipped := func(low, high float64) func(a, lp, ratio, row float64) float64 {
		return func(a, _, ratio, _ float64) float64 { return -min(a*ratio, a*min(max(ratio, 1-low), 1+high)) }
	}
	ofTokens := func(beta float64) func(pg, pgRows, kl, tokens, rows float64) float64 {
		return func(pg, _, kl, tokens, _ float64) float64 { return (pg + beta*kl) / tokens }
	}
	for _, c := range []struct {
		loss   *Losses
		beta   float64
		form   []string
		absent string
	}{
		{bareLosses(6, clipped(0.2, 0.28), k3, ofTokens(0.04)), 0.04, []string{"kl.kind=k3", "clip.low=0.2", "clip.high=0.28", "ratio.level=token"}, ""},
		{bareLosses(6, clipped(0.1, 0.1), func(d float64) float64 { return d }, ofTokens(0.01)), 0.01, []string{"kl.kind=k1", "clip.low=0.1", "clip.high=0.1"}, ""},
		{bareLosses(6, clipped(0.1, 0.05), func(d float64) float64 { return d * d / 2 }, ofTokens(0.125)), 0.125, []string{"kl.kind=k2", "clip.low=0.1", "clip.high=0.05"}, ""},
		{bareLosses(6, func(a, _, _, row float64) float64 { return -a * row }, math.Abs, func(_, rows, _, _, n float64) float64 { return rows / n }), 0, []string{"ratio.level=seq_mean"}, "kl.kind"},
		{bareLosses(6, func(a, lp, _, _ float64) float64 { return -a * lp }, k3, func(pg, _, _, _, rows float64) float64 { return pg / rows }), 0, []string{"loss.kind=reinforce"}, "kl.kind"},
		{bareLosses(6, clipped(0.15, 0.15), k3, func(pg, _, _, _, rows float64) float64 { return pg / rows / 6 }), 0, []string{"agg.kind=seq_sum_const", "clip.low=0.15"}, "kl.kind"},
		// a bug in them: the rest is as it is
		{bareLosses(6, clipped(0.2, 0.2), func(d float64) float64 { return math.Exp(d) - 1 - d }, ofTokens(0.04)), 0.04, []string{"kl.kind=k3", "clip.low=0.2", "clip.high=0.2"}, ""},
		{bareLosses(6, func(a, _, ratio, _ float64) float64 { return -a * min(max(ratio, 0.8), 1.2) }, k3, ofTokens(0.04)), 0.04, []string{"kl.kind=k3", "clip.low=0.2", "clip.high=0.2"}, ""},
	} {
		var has []string
		for _, change := range c.loss.Form() {
			has = append(has, fmt.Sprintf("%s=%v", change.Option, change.To))
			require.NotEqual(t, c.absent, change.Option)
		}
		require.Subset(t, has, c.form)
		require.InDelta(t, c.beta, c.loss.Coefficients()["kl.beta"], 0)
	}
}

// Ratios that are all 1 are those of any level, and log-ratios that are small have one square by two estimates: neither is said.
func TestFormsThatBareLossesDoNotTell(t *testing.T) {
	names := func(l *Losses) (list []string) {
		for _, c := range l.Form() {
			list = append(list, fmt.Sprintf("%s=%v", c.Option, c.To))
		}
		return list
	}
	rows := func(beta float64) func(pg, pgRows, kl, tokens, rows float64) float64 {
		return func(pg, _, kl, tokens, _ float64) float64 { return (pg + beta*kl) / tokens }
	}
	plain := func(a, _, ratio, _ float64) float64 { return -a * ratio }
	l := bareLossesOf(6, 0, 0.3, plain, k3, rows(0.04))
	require.Equal(t, []string{"kl.place=loss", "kl.kind=k3"}, names(l))
	l = bareLossesOf(6, 0.05, 0.2, plain, func(d float64) float64 { return d * d / 2 }, rows(0.1))
	require.Contains(t, names(l), "kl.kind=k2", "the policy is far enough from the reference")
	l = bareLossesOf(6, 0, 0.02, plain, func(d float64) float64 { return d * d / 2 }, rows(0.5))
	require.Equal(t, []string{"kl.place=loss"}, names(l))
	require.InDelta(t, 0.5, l.Coefficients()["kl.beta"], 0)
}

// Numbers that are no loss of the tokens have no form, nor have two files.
func TestBareLossesOfNoForm(t *testing.T) {
	plain := func(a, _, ratio, _ float64) float64 { return -a * ratio }
	l := bareLosses(6, plain, k3, func(pg, _, kl, tokens, _ float64) float64 { return (pg+0.04*kl)/tokens + 0.01*math.Sin(7*tokens+pg) })
	require.Nil(t, l.Form())
	require.Nil(t, l.Coefficients())
	require.Nil(t, bareLosses(2, plain, k3, func(pg, _, kl, tokens, _ float64) float64 { return (pg + 0.04*kl) / tokens }).Form())
}

// A surrogate of whole rows, to e to the difference of two sums of log-probs in float32: a row without a token, as of a truncated response, has the ratio 1.
func TestFormsOfRowsWithoutTokens(t *testing.T) {
	l := &Losses{}
	for f := range 6 {
		lengths := []int{2 + f%5, 0, 3, 5 * (f % 2)}
		b := lossFile(6, lengths, func(int) float64 { return 0 }, nil)
		delete(b.Tensors, "token_loss")
		b.Meta.Step = f
		lp, old := make([]float64, 24), make([]float64, 24)
		adv := []float64{1.3, -0.4, 0.6, -1.5}
		for i := range lp {
			old[i] = float64(float32(-3 - 4*math.Abs(math.Sin(float64(5*i+f)))))
			lp[i] = float64(float32(old[i] + 0.01*float64(f%4)*math.Sin(float64(11*i+3*f))))
		}
		loss := float32(0)
		for r := range lengths {
			var sum, before float32
			for i := range b.TokensOf(r) {
				sum, before = sum+float32(lp[i]), before+float32(old[i])
			}
			loss -= float32(adv[r]*math.Exp(float64(sum-before))) / 4
		}
		for name, x := range map[string][]float64{"logp_new": lp, "logp_old": old} {
			b.Tensors[name] = &dump.Tensor{Data: x, Layout: dump.PerToken, Type: format.F32}
		}
		b.Tensors["advantages"] = &dump.Tensor{Data: adv, Layout: dump.PerRow, Type: format.F32}
		b.Tensors["loss"] = &dump.Tensor{Data: []float64{float64(loss)}, Layout: dump.PerFile, Type: format.F32}
		l.Add(b)
	}
	var has []string
	for _, change := range l.Form() {
		has = append(has, fmt.Sprintf("%s=%v", change.Option, change.To))
	}
	require.Subset(t, has, []string{"ratio.level=seq_sum"})
}
