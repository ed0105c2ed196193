package stage_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
)

// covariances are those of clip_cov and kl_cov in float32.
func (t *trainer) covariances(f int) []float32 {
	b := t.b
	lp, adv := b.Token("logp_new"), b.Token("advantages")
	var l, a []float32
	lo, hi := b.Files[f].Lo*b.Cols, b.Files[f].Hi*b.Cols
	for i := lo; i < hi; i++ {
		if b.Mask[i] {
			l, a = append(l, float32(lp[i])), append(a, float32(adv[i]))
		}
	}
	ml, ma := sum32(l)/float32(len(l)), sum32(a)/float32(len(a))
	cov := make([]float32, hi-lo)
	for i := range cov {
		cov[i] = (float32(adv[lo+i]) - ma) * (float32(lp[lo+i]) - ml)
	}
	return cov
}

func TestLossesByCovariance(t *testing.T) {
	log := ratioLog{}
	for seed := range cases(300) {
		tr := newTrainer(uint64(seed))
		tr.logprobs(0.2)
		b := tr.b
		a := reduction{kind: "token", where: "micro"}
		w := a.weights(b, tr.micro)
		lp, old, adv := b.Token("logp_new"), b.Token("logp_old"), b.Token("advantages")

		held, drop := make([]bool, len(lp)), make([]bool, len(lp))
		for f, file := range b.Files {
			cov := tr.covariances(f)
			var order []int
			for i := range cov {
				if j := file.Lo*b.Cols + i; b.Mask[j] {
					order = append(order, j)
					drop[j] = cov[i] > 0 && cov[i] < 5 && tr.r.IntN(2) == 0
				}
			}
			slices.SortStableFunc(order, func(i, j int) int {
				switch x, y := cov[i-file.Lo*b.Cols], cov[j-file.Lo*b.Cols]; {
				case x > y:
					return -1
				case x < y:
					return 1
				}
				return 0
			})
			for _, j := range order[:min(max(1, int(.3*float64(len(order)))), len(order))] {
				held[j] = true
			}
		}
		both := []string{"ratio.old=stored", "ratio.level=token", "ratio.log_clamp=none", "kl.place=none", "tis.level=none"}

		f := family{name: "kl_cov", level: "token", token: func(t *trainer, rho, x dual, i int) dual {
			l := constant(float32(-adv[i])).times(rho)
			if held[i] {
				d := x.plus(constant(float32(-old[i])))
				if d.v < 0 {
					d = d.negative()
				}
				l = l.plus(d)
			}
			return l
		}}
		set := a.set(t, options(t, append(both, "loss.kind=kl_cov", "cov.fraction=0.3", "cov.coef=1")...))
		token, rho, n := tr.losses(&f)
		tr.backward(&f, token, rho, n, w)
		log.pass(t, "kl_cov token_loss", judged32(t, "token_loss/policy", b, set), seed)
		if o := judged32(t, "gradient/dlogp", b, set); o.Tally.Undetermined == 0 { // a file of one row has a covariance of 0 everywhere
			log.pass(t, "kl_cov dlogp", o, seed)
		}

		f = family{name: "clip_cov", level: "token", token: func(t *trainer, rho, x dual, i int) dual {
			l := t.ppo(rho, i, .2, .2)
			if c := float32(-adv[i]) * min(max(rho.v, .8), 1.2); drop[i] && !(c > float32(-adv[i])*rho.v) {
				return constant(0)
			}
			return l
		}}
		set = a.set(t, options(t, append(both, "loss.kind=clip_cov", "clip.low=0.2", "clip.high=0.2", "clip.dual=none", "clip.delta=none", "cov.lower=0", "cov.upper=5")...))
		token, rho, n = tr.losses(&f)
		grad := tr.backward(&f, token, rho, n, w)
		log.pass(t, "clip_cov token_loss", judged32(t, "token_loss/policy", b, set), seed)
		log.pass(t, "clip_cov dlogp", judged32(t, "gradient/dlogp", b, set), seed)
		log.pass(t, "clip_cov dlogp without token_loss", judged32(t, "gradient/dlogp", b.Without("token_loss"), set), seed)
		for i, g := range grad {
			if g != 0 {
				grad[i] = g / 2
				require.Equal(t, check.Fail, judged32(t, "gradient/dlogp", b.Without("token_loss"), set).Verdict)
				break
			}
		}
	}
	log.report(t)
}

func TestGradientBehindClamps(t *testing.T) {
	// verl's k3: log-ratios within ±20, the estimate within ±10; beyond either the gradient is 0.
	f := family{drift: 4, beta: 0.1, grad: "naive", options: []string{"loss.kind=reinforce", "kl.clamp_in=20", "kl.clamp_out=10"}}
	f.token = func(t *trainer, rho, lp dual, i int) dual {
		return constant(float32(-t.b.Token("advantages")[i])).times(lp)
	}
	log := ratioLog{}
	for seed := range cases(200) {
		tr := newTrainer(uint64(seed))
		tr.logprobs(f.drift)
		b := tr.b
		a := reduction{kind: "token", where: "micro"}
		w := a.weights(b, tr.micro)
		set := a.set(t, f.set(t))
		lp, ref, adv := b.Token("logp_new"), b.Token("logp_ref"), b.Token("advantages")
		grad := tr.grid("dlogp", func(i int) float64 {
			x := min(max(float32(ref[i])-float32(lp[i]), -20), 20)
			e := tr.exp32(x)
			g := 1 - e
			if e-x-1 > 10 || x == 20 || x == -20 {
				g = 0
			}
			return float64(w[i] * (float32(-adv[i]) + .1*g))
		})
		log.pass(t, "k3 with clamps", judged32(t, "gradient/dlogp", b, set), seed)
		if at := slices.IndexFunc(grad, func(g float64) bool { return g != 0 }); at >= 0 {
			planted(t, "gradient/dlogp", "dlogp", b, set, at)
		}
	}
	log.report(t)
}
