package stage_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
	"plumbline/verify/tol"
)

// dual is a float32 with its derivative with respect to the cell's own log-prob at constant ratio, and with respect to the ratio.
type dual struct{ v, direct, ratio float32 }

func constant(x float32) dual { return dual{v: x} }

func (a dual) plus(b dual) dual { return dual{a.v + b.v, a.direct + b.direct, a.ratio + b.ratio} }

func (a dual) times(b dual) dual {
	return dual{a.v * b.v, a.v*b.direct + b.v*a.direct, a.v*b.ratio + b.v*a.ratio}
}

func (a dual) most(b dual) dual {
	switch {
	case a.v > b.v:
		return a
	case b.v > a.v:
		return b
	}
	return dual{a.v, (a.direct + b.direct) / 2, (a.ratio + b.ratio) / 2}
}

func (a dual) negative() dual { return dual{-a.v, -a.direct, -a.ratio} }

func (a dual) clamped(lo, hi float32) dual {
	if lo < a.v && a.v < hi {
		return a
	}
	return constant(min(max(a.v, lo), hi))
}

// family is a loss with its options and how a trainer computes it.
type family struct {
	name    string
	drift   float64
	options []string
	beta    float64
	weights bool
	inside  bool
	grad    string
	level   string
	token   func(t *trainer, rho, lp dual, i int) dual
}

func (f *family) set(t require.TestingT) *convention.Set {
	list := []string{"ratio.old=stored", "kl.kind=k3", "kl.clamp_in=none", "kl.clamp_out=none", "tis.level=token", "tis.rule=clamp", "kl.under_is_weight=outside"}
	if f.level == "" {
		f.level = "token"
	}
	list = append(list, "ratio.level="+f.level, "ratio.log_clamp=none")
	if f.beta != 0 {
		list = append(list, "kl.place=loss", "kl.beta="+short(f.beta), "kl.grad="+f.grad)
	} else {
		list = append(list, "kl.place=none")
	}
	if f.inside {
		list = append(list, "kl.under_is_weight=inside")
	}
	set := options(t, append(list, f.options...)...)
	if !f.weights {
		set = set.With("tis.level", must(convention.Parse("tis.level", "none")), "test")
	}
	return set
}

func short(x float64) string { return convention.NumberValue(x).String() }

func must(v convention.Value, err error) convention.Value {
	if err != nil {
		panic(err)
	}
	return v
}

func (t *trainer) ppo(rho dual, i int, low, high float64) dual {
	a := constant(-float32(t.b.Token("advantages")[i]))
	return a.times(rho).most(a.times(rho.clamped(float32(1-low), float32(1+high))))
}

func families() []family {
	adv := func(t *trainer, i int) float32 { return float32(t.b.Token("advantages")[i]) }
	return []family{
		{name: "ppo, small steps", drift: 1e-3, options: []string{"loss.kind=ppo", "clip.low=0.2", "clip.high=0.28", "clip.dual=none", "clip.delta=none"},
			token: func(t *trainer, rho, lp dual, i int) dual { return t.ppo(rho, i, .2, .28) }},
		{name: "ppo, large steps, naive KL", drift: 0.7, beta: 0.04, grad: "naive", options: []string{"loss.kind=ppo", "clip.low=0.2", "clip.high=0.28", "clip.dual=none", "clip.delta=none"},
			token: func(t *trainer, rho, lp dual, i int) dual { return t.ppo(rho, i, .2, .28) }},
		{name: "ppo, corrected KL, weights", drift: 0.4, beta: 0.1, grad: "is_corrected", weights: true, options: []string{"loss.kind=ppo", "clip.low=0.2", "clip.high=0.2", "clip.dual=none", "clip.delta=none"},
			token: func(t *trainer, rho, lp dual, i int) dual { return t.ppo(rho, i, .2, .2) }},
		{name: "ppo, KL under the weights", drift: 0.3, beta: 0.5, grad: "score_function", weights: true, inside: true, options: []string{"loss.kind=ppo", "clip.low=0.2", "clip.high=0.2", "clip.dual=none", "clip.delta=none"},
			token: func(t *trainer, rho, lp dual, i int) dual { return t.ppo(rho, i, .2, .2) }},
		{name: "dual clip", drift: 1.2, options: []string{"loss.kind=ppo", "clip.low=0.2", "clip.high=0.2", "clip.dual=3", "clip.delta=none"},
			token: func(t *trainer, rho, lp dual, i int) dual {
				l := t.ppo(rho, i, .2, .2)
				if a := adv(t, i); a < 0 {
					return l.negative().most(constant(a * 3)).negative()
				}
				return l
			}},
		{name: "delta", drift: 1.2, options: []string{"loss.kind=ppo", "clip.low=0.2", "clip.high=0.2", "clip.dual=none", "clip.delta=1.5"},
			token: func(t *trainer, rho, lp dual, i int) dual {
				a := constant(-adv(t, i))
				return a.times(rho.clamped(float32(math.Inf(-1)), 1.5)).most(a.times(rho.clamped(.8, float32(1+.2))))
			}},
		{name: "sequence ratio", drift: 0.3, level: "seq_mean", beta: 0.04, grad: "is_corrected", options: []string{"loss.kind=ppo", "clip.low=3e-2", "clip.high=4e-2", "clip.dual=none", "clip.delta=none"},
			token: func(t *trainer, rho, lp dual, i int) dual { return t.ppo(rho, i, .03, .04) }},
		{name: "summed ratio", drift: 0.1, level: "seq_sum", options: []string{"loss.kind=ppo", "clip.low=0.2", "clip.high=0.2", "clip.dual=none", "clip.delta=none"},
			token: func(t *trainer, rho, lp dual, i int) dual { return t.ppo(rho, i, .2, .2) }},
		{name: "reinforce", drift: 0.1, beta: 0.1, grad: "straight_through_k2", options: []string{"loss.kind=reinforce"},
			token: func(t *trainer, rho, lp dual, i int) dual { return constant(-adv(t, i)).times(lp) }},
		{name: "cispo", drift: 0.5, options: []string{"loss.kind=cispo", "clip.low=none", "clip.high=1.3", "clip.high_is_absolute=true"},
			token: func(t *trainer, rho, lp dual, i int) dual {
				return constant(-min(rho.v, 1.3) * adv(t, i)).times(lp)
			}},
		{name: "sapo", drift: 0.5, options: []string{"loss.kind=sapo", "sapo.tau_pos=1", "sapo.tau_neg=1.05"},
			token: func(t *trainer, rho, lp dual, i int) dual {
				a, tau := adv(t, i), float32(1.05)
				if a > 0 {
					tau = 1
				}
				s := 1 / (1 + t.exp32(-tau*(rho.v-1)))
				return dual{v: -(4 / tau * s) * a, ratio: -4 * s * (1 - s) * a}
			}},
		{name: "dro", drift: 0.5, options: []string{"loss.kind=dro", "dro.beta=0.1"},
			token: func(t *trainer, rho, lp dual, i int) dual {
				d := lp.plus(constant(-float32(t.b.Token("logp_old")[i])))
				return constant(-adv(t, i)).times(lp).plus(constant(.5 * .1).times(d.times(d)))
			}},
		{name: "dppo, total variation", drift: 0.5, options: []string{"loss.kind=dppo_tv", "clip.low=0.05", "clip.high=0.1", "dppo.limit=1.2"},
			token: func(t *trainer, rho, lp dual, i int) dual {
				p, q, a := t.exp32(lp.v), t.exp32(float32(t.b.Token("logp_old")[i])), adv(t, i)
				if w := min(rho.v, 1.2); a > 0 && p-q <= .1 || !(a > 0) && p-q >= -.05 {
					return constant(-w * a).times(lp)
				}
				return constant(0)
			}},
		{name: "vespo", drift: 0.05, options: []string{"loss.kind=vespo", "vespo.k_pos=2", "vespo.lambda_pos=3", "vespo.k_neg=3", "vespo.lambda_neg=2"},
			token: func(t *trainer, rho, lp dual, i int) dual {
				var d []float32
				for j := i / t.b.Cols * t.b.Cols; j < (i/t.b.Cols+1)*t.b.Cols; j++ {
					if t.b.Mask[j] {
						d = append(d, float32(t.b.Token("logp_new")[j])-float32(t.b.Token("logp_old")[j]))
					}
				}
				s := sum32(d)
				w := t.exp32(s)
				k, l := float32(2), float32(3)
				if adv(t, i) < 0 {
					k, l = 3, 2
				}
				return constant(-t.exp32(k*s+l*(1-w)) * adv(t, i)).times(lp)
			}},
	}
}

// ratios returns the ratios, and the row counts by which their derivatives are divided.
func (t *trainer) ratios(level string) (rho, n []float32) {
	b := t.b
	lp, old := b.Token("logp_new"), b.Token("logp_old")
	rho, n = make([]float32, len(lp)), make([]float32, b.Rows)
	for r := range b.Rows {
		var d []float32
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			rho[i] = t.exp32(float32(lp[i]) - float32(old[i]))
			if b.Mask[i] {
				d = append(d, float32(lp[i])-float32(old[i]))
			}
		}
		if level == "token" {
			continue
		}
		n[r] = 1
		s := sum32(d)
		if level == "seq_mean" {
			n[r] = max(float32(len(d)), 1)
			s /= n[r]
		}
		e := t.exp32(s)
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			rho[i] = e
		}
	}
	return rho, n
}

// losses computes token losses with their derivatives, and dumps them with the KL.
func (t *trainer) losses(f *family) (token []dual, rho, n []float32) {
	b := t.b
	rho, n = t.ratios(f.level)
	lp, ref := b.Token("logp_new"), b.Token("logp_ref")
	token = make([]dual, len(lp))
	kl := make([]float64, len(lp))
	out := make([]float64, len(lp))
	for i := range lp {
		if i%b.Cols >= b.Origin[i/b.Cols].Cols {
			continue
		}
		l := f.token(t, dual{v: rho[i], ratio: 1}, dual{v: float32(lp[i]), direct: 1}, i)
		w := float32(1)
		if f.weights {
			w = float32(b.Token("is_weights")[i])
			l = constant(w).times(l)
		}
		if f.beta != 0 {
			x := float32(ref[i]) - float32(lp[i])
			e := t.exp32(x)
			k := dual{v: e - x - 1, direct: 1 - e}
			switch f.grad {
			case "is_corrected":
				k = k.times(dual{v: rho[i], ratio: 1})
			case "score_function":
				k.direct += k.v
			case "straight_through_k2":
				k.direct = -x
			}
			kl[i] = float64(k.v)
			beta := float32(f.beta)
			if f.inside {
				beta *= w
			}
			l = l.plus(constant(beta).times(k))
		}
		token[i] = l
		out[i] = float64(l.v)
	}
	t.put("kl", kl)
	t.put("token_loss", out)
	return token, rho, n
}

func TestTokenLossOfAnotherImplementation(t *testing.T) {
	log := ratioLog{}
	for _, f := range families() {
		for seed := range cases(400) {
			tr := newTrainer(uint64(seed))
			tr.logprobs(f.drift)
			if f.weights {
				tr.grid("is_weights", func(int) float64 { return math.Exp(0.3 * tr.r.NormFloat64()) })
			}
			set := f.set(t)
			tr.losses(&f)
			o := judged32(t, "token_loss/policy", tr.b, set)
			log.pass(t, f.name, o, seed)
			at := slices.Index(tr.b.Mask, true)
			planted(t, "token_loss/policy", "token_loss", tr.b, set, at)

			// The chain predicts what is not there.
			chained := stage.NewCase(tr.b.Without("token_loss", "kl"), set, tol.U32)
			in := chained.Token("token_loss")
			require.NotNil(t, in.X, "%s: %v %v", f.name, chained.Unknown, chained.Absent)
			for i, m := range tr.b.Mask {
				if m {
					got := tr.b.Token("token_loss")[i]
					near := math.Abs(got-in.X[i]) <= in.E(i)+tol.Storage(got, tol.U32, tol.Eta32)
					require.True(t, near || f.name == "dppo, total variation", "%s, seed %d: %v, want %v ± %v", f.name, seed, got, in.X[i], in.E(i))
				}
			}
		}
	}
	log.report(t)
}

// Whether token losses hold the KL term the file says, or else the numbers.
func TestWhetherTokenLossesHoldTheKL(t *testing.T) {
	f := families()[1]
	tr := newTrainer(3)
	tr.logprobs(f.drift)
	tr.losses(&f)
	set := f.set(t)
	tr.b.Meta.TokenLossIncludesKL = nil
	require.Equal(t, check.Pass, judged32(t, "token_loss/policy", tr.b, set).Verdict)
	off := set.With("kl.place", must(convention.Parse("kl.place", "none")), "test")
	require.Equal(t, check.Fail, judged32(t, "token_loss/policy", tr.b, off).Verdict)
	require.NotContains(t, judged32(t, "token_loss/policy", tr.b, off).Case.Read, "kl.beta")
	wrong := append([]float64(nil), tr.b.Token("token_loss")...)
	for i, k := range tr.b.Token("kl") {
		wrong[i] += 0.1 * k
	}
	require.Equal(t, check.Fail, judged32(t, "token_loss/policy", tr.b.With("token_loss", wrong), set).Verdict)
	without := false
	tr.b.Meta.TokenLossIncludesKL = &without
	require.Equal(t, check.Fail, judged32(t, "token_loss/policy", tr.b, set).Verdict)
}

func TestTokenLossReadsOnlyWhatItsKindUses(t *testing.T) {
	tr := newTrainer(5)
	tr.logprobs(0.1)
	tr.grid("token_loss", func(int) float64 { return 0 })
	base := []string{"kl.place=none", "tis.level=none", "ratio.level=token", "ratio.log_clamp=none"}
	for kind, unread := range map[string][]string{
		"reinforce": {"clip.low", "clip.dual", "ratio.level", "sapo.tau_pos", "kl.beta"},
		"ppo":       {"sapo.tau_pos", "dppo.limit", "clip.high_is_absolute", "ratio.seq_log_max", "ratio.len_eps"},
		"cispo":     {"clip.dual", "clip.delta"},
		"sapo":      {"clip.low", "clip.high", "clip.dual"},
	} {
		o := judged32(t, "token_loss/policy", tr.b, options(t, append(base, "loss.kind="+kind)...))
		for _, name := range unread {
			require.NotContains(t, o.Case.Read, name, kind)
		}
	}
}

func TestTokenLossAtAStraddle(t *testing.T) {
	// p − q of dppo lies on the trust region within rounding: either weight is right, nothing between.
	tr := newTrainer(1)
	b := tr.b
	tr.grid("logp_old", func(int) float64 { return math.Log(0.5) })
	tr.grid("logp_new", func(int) float64 { return math.Log(0.6) })
	tr.grid("advantages", func(int) float64 { return 1 })
	p, q := math.Exp(b.Token("logp_new")[0]), math.Exp(b.Token("logp_old")[0])
	set := options(t, "loss.kind=dppo_tv", "ratio.level=token", "ratio.log_clamp=none", "clip.low=0.1", "clip.high="+short((p-q)*(1+1e-9)), "dppo.limit=3",
		"kl.place=none", "tis.level=none")
	kept := round32(-b.Token("logp_new")[0] * p / q)
	for value, want := range map[float64]check.Verdict{kept: check.Pass, 0: check.Pass, kept / 2: check.Fail} {
		tr.grid("token_loss", func(int) float64 { return value })
		require.Equal(t, want, judged32(t, "token_loss/policy", b, set).Verdict, "%v", value)
	}
}

// On the first update p = q: far inside the region of either divergence, whatever the sign of p − q would say.
func TestTokenLossInsideTheTrustRegion(t *testing.T) {
	for _, kind := range []string{"dppo_tv", "dppo_kl"} {
		tr := newTrainer(1)
		same := func(int) float64 { return math.Log(0.5) }
		tr.grid("logp_old", same)
		tr.grid("logp_new", same)
		tr.grid("advantages", func(int) float64 { return 1 })
		set := options(t, "loss.kind="+kind, "ratio.level=token", "ratio.log_clamp=none", "clip.low=0.1", "clip.high=0.1", "dppo.limit=3", "kl.place=none", "tis.level=none")
		kept := round32(-tr.b.Token("logp_new")[0])
		for value, want := range map[float64]check.Verdict{kept: check.Pass, 0: check.Fail, kept / 2: check.Fail} {
			tr.grid("token_loss", func(int) float64 { return value })
			require.Equal(t, want, judged32(t, "token_loss/policy", tr.b, set).Verdict, "%s: %v", kind, value)
		}
	}
}

func TestClipCovMayLeaveOutItsCandidates(t *testing.T) {
	tr := newTrainer(11)
	tr.logprobs(0.05)
	set := options(t, "loss.kind=clip_cov", "ratio.level=token", "ratio.log_clamp=none", "clip.low=0.2", "clip.high=0.2", "clip.dual=none", "clip.delta=none",
		"cov.lower=-100", "cov.upper=100", "kl.place=none", "tis.level=none")
	tr.losses(&family{level: "token", token: func(t *trainer, rho, lp dual, i int) dual {
		l := t.ppo(rho, i, .2, .2)
		if t.r.IntN(3) == 0 {
			return constant(0)
		}
		return l
	}})
	require.Equal(t, check.Pass, judged32(t, "token_loss/policy", tr.b, set).Verdict)
	none := set.With("cov.upper", convention.NumberValue(-99), "test")
	require.Equal(t, check.Fail, judged32(t, "token_loss/policy", tr.b, none).Verdict)
}
