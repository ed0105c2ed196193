package stage

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
)

// stepsOf returns three steps of 8 rows of 24 tokens whose log-probs move away from the old ones, with losses of float32 that loss computes
// from a token's log-prob, log-ratio, advantage, KL and distance to the engine.
func stepsOf(seed uint64, withKL bool, loss func(lp, d, adv, kl, gap float64) float64) []Step {
	r := rand.New(rand.NewPCG(seed, 5))
	single := func(x float64) float64 { return float64(float32(x)) }
	var steps []Step
	for n := range 3 {
		const rows, cols = 8, 24
		b := &dump.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Origin: make([]dump.Origin, rows), Files: []dump.FileInfo{{Name: "f", Hi: rows, Cols: cols}}, Tensors: map[string]*dump.Tensor{}}
		b.Meta.TokenLossIncludesKL = &withKL
		b.Meta.Step = n + 1
		lp, old, adv, kl, gen, x := make([]float64, rows*cols), make([]float64, rows*cols), make([]float64, rows*cols), make([]float64, rows*cols), make([]float64, rows*cols), make([]float64, rows*cols)
		for row := range rows {
			a := single(r.NormFloat64())
			for col := range cols {
				i := row*cols + col
				b.Mask[i] = col < 12+row
				old[i] = single(-3 * r.Float64())
				lp[i] = single(old[i] + 0.15*float64(n)*r.NormFloat64())
				gen[i] = single(old[i] + 0.3*r.NormFloat64())
				adv[i], kl[i] = a, single(0.3*r.Float64())
				x[i] = single(loss(lp[i], lp[i]-old[i], a, kl[i], old[i]-gen[i]))
			}
		}
		for name, data := range map[string][]float64{"logp_new": lp, "logp_old": old, "advantages": adv, "kl": kl, "token_loss": x, "logp_gen": gen} {
			if name != "kl" || withKL {
				b.Tensors[name] = &dump.Tensor{Data: data, Layout: dump.PerToken, Type: format.F32}
			}
		}
		steps = append(steps, Step{b, &convention.Set{}})
	}
	steps[0], steps[2] = steps[2], steps[0] // the telling one first
	return steps
}

func clip(d, low, high float64) float64 { return min(max(math.Exp(d), 1-low), 1+high) }

// Where no token shows the bound of one side that of the other is tried for both: what is counted beyond the bounds may tell.
func TestABoundOfOneSideIsTriedForBoth(t *testing.T) {
	steps := stepsOf(1, false, func(_, d, adv, _, _ float64) float64 { return max(-adv*math.Exp(d), -adv*min(math.Exp(d), 1.177)) })
	var lows []string
	for _, f := range Solve(Find("token_loss/policy"), steps)[:2] {
		lows = append(lows, texts(f.Changes)["clip.low"])
	}
	require.Equal(t, "none", lows[0])
	for _, s := range steps {
		adv, d := s.B.Token("advantages"), s.B.Token("logp_old")
		for i, lp := range s.B.Token("logp_new") {
			if adv[i] < 0 && lp < d[i] { // nothing falls below
				d[i] = lp
				s.B.Token("token_loss")[i] = -adv[i]
			}
		}
	}
	lows = nil
	for _, f := range Solve(Find("token_loss/policy"), steps)[:2] {
		lows = append(lows, texts(f.Changes)["clip.low"])
	}
	require.Equal(t, []string{"none", "0.177"}, lows)
}

// Numbers that no table has are what the losses of a few steps say together: written here from the formulas of the papers.
func TestLossesAreSolved(t *testing.T) {
	surrogate := func(d, adv float64) float64 { return max(-adv*math.Exp(d), -adv*clip(d, 0.0625, 0.177)) }
	gate := func(d, adv float64) float64 {
		tau := 1.31
		if adv > 0 {
			tau = 0.83
		}
		return -adv * 4 / tau / (1 + math.Exp(-tau*(math.Exp(d)-1)))
	}
	for _, tt := range []struct {
		name   string
		withKL bool
		loss   func(lp, d, adv, kl, gap float64) float64
		want   map[string]string
	}{
		{"ppo", false, func(_, d, adv, _, _ float64) float64 { return surrogate(d, adv) }, map[string]string{"loss.kind": "ppo", "clip.low": "0.0625", "clip.high": "0.177", "clip.dual": "none"}},
		{"ppo with KL", true, func(_, d, adv, kl, _ float64) float64 { return surrogate(d, adv) + 0.0317*kl }, map[string]string{"loss.kind": "ppo", "clip.low": "0.0625", "clip.high": "0.177", "kl.beta": "0.0317"}},
		{"most ratios clipped, with KL", true, func(_, d, adv, kl, _ float64) float64 {
			return max(-adv*math.Exp(d), -adv*clip(d, 0.0037, 0.0053)) + 0.0317*kl
		}, map[string]string{"clip.low": "0.0037", "clip.high": "0.0053", "kl.beta": "0.0317"}},
		{"dual clip", false, func(_, d, adv, _, _ float64) float64 {
			if x := surrogate(d, adv); adv < 0 {
				return min(x, -1.27*adv)
			} else {
				return x
			}
		}, map[string]string{"clip.low": "0.0625", "clip.high": "0.177", "clip.dual": "1.27"}},
		{"cispo", false, func(lp, d, adv, _, _ float64) float64 { return -min(math.Exp(d), 1.153) * adv * lp }, map[string]string{"loss.kind": "cispo", "clip.low": "none"}},
		{"sapo", false, func(_, d, adv, _, _ float64) float64 { return gate(d, adv) }, map[string]string{"loss.kind": "sapo", "sapo.tau_pos": "0.83", "sapo.tau_neg": "1.31"}},
		{"sapo with KL", true, func(_, d, adv, kl, _ float64) float64 { return gate(d, adv) + 0.0317*kl }, map[string]string{"loss.kind": "sapo", "sapo.tau_pos": "0.83", "sapo.tau_neg": "1.31", "kl.beta": "0.0317"}},
		{"dro", false, func(lp, d, adv, _, _ float64) float64 { return -adv*lp + 0.73*d*d/2 }, map[string]string{"loss.kind": "dro", "dro.beta": "0.73"}},
		{"reinforce", false, func(lp, _, adv, _, _ float64) float64 { return -adv * lp }, map[string]string{"loss.kind": "reinforce"}},
		{"engine's weights left out", false, func(_, d, adv, _, gap float64) float64 {
			if w := math.Exp(gap); w < 0.71 || w > 1.4 {
				return 0
			} else {
				return w * surrogate(d, adv)
			}
		}, map[string]string{"loss.kind": "ppo", "tis.level": "token", "tis.rule": "zero_outside", "clip.low": "0.0625", "clip.high": "0.177"}},
		{"engine's weights stopped", false, func(_, d, adv, _, gap float64) float64 { return min(math.Exp(gap), 1.37) * surrogate(d, adv) }, map[string]string{"tis.level": "token", "tis.high": "1.37", "clip.low": "0.0625", "clip.high": "0.177"}},
	} {
		for seed := range uint64(4) {
			steps := stepsOf(seed, tt.withKL, tt.loss)
			fits := Solve(Find("token_loss/policy"), steps)
			require.NotEmpty(t, fits, "%s, seed %d", tt.name, seed)
			got := map[string]string{}
			for _, c := range fits[0].Changes {
				got[c.Option] = c.To.String()
			}
			for option, value := range tt.want {
				require.Equal(t, value, got[option], "%s, seed %d: %v", tt.name, seed, got)
			}
			for _, f := range fits {
				for _, s := range steps {
					require.Equal(t, check.Pass, Judge(Find("token_loss/policy"), s.B, changedBy(s.Set, f.Changes, "search")).Verdict, "%s: %v", tt.name, f.Changes)
				}
			}
		}
	}
}

// Rows that went too far are left out of any kind of loss (TRL 1.16, off_policy_mask_threshold).
func TestLimitsOfRowsAreSolvedBesideAGate(t *testing.T) {
	steps := stepsOf(1, false, func(_, d, adv, _, _ float64) float64 { return -adv * 4 / (1 + math.Exp(-(math.Exp(d) - 1))) })
	out := 0
	for _, s := range steps {
		lp, old, adv, loss := s.B.Token("logp_new"), s.B.Token("logp_old"), s.B.Token("advantages"), s.B.Token("token_loss")
		if gen := s.B.Token("logp_gen"); gen != nil {
			old = gen
		}
		for r := range s.B.Rows {
			var gap, n float64
			for i := r * s.B.Cols; i < (r+1)*s.B.Cols; i++ {
				if s.B.Mask[i] {
					gap, n = gap+old[i]-lp[i], n+1
				}
			}
			for i := r * s.B.Cols; gap/n > 0.003 && i < (r+1)*s.B.Cols; i++ {
				if adv[i] < 0 && s.B.Mask[i] {
					loss[i] = 0
					out++
				}
			}
		}
	}
	require.NotZero(t, out)
	fits := Solve(Find("token_loss/policy"), steps)
	require.NotEmpty(t, fits)
	require.Equal(t, "sapo", texts(fits[0].Changes)["loss.kind"])
	require.NotEmpty(t, texts(fits[0].Changes)["loss.off_policy_max"])
}

// A run of one update a rollout has no old log-probs: the ratio is 1, and what is left over the policy term is the KL with its coefficient.
func TestLossesWithoutOldLogProbsAreSolved(t *testing.T) {
	steps := stepsOf(3, true, func(_, _, adv, kl, _ float64) float64 { return 0.0317*kl - adv })
	for _, s := range steps {
		delete(s.B.Tensors, "logp_old")
		delete(s.B.Tensors, "logp_gen")
	}
	fits := Solve(Find("token_loss/policy"), steps)
	require.NotEmpty(t, fits)
	got := map[string]string{}
	for _, c := range fits[0].Changes {
		got[c.Option] = c.To.String()
	}
	require.Equal(t, "stopgrad_new", got["ratio.old"])
	require.Equal(t, "0.0317", got["kl.beta"])
}

// Where the engine's log-probs are all that a rollout has, the ratios may be to these.
func TestLossesOfRatiosToTheEngineAreSolved(t *testing.T) {
	steps := stepsOf(4, false, func(lp, d, adv, _, gap float64) float64 { return -min(math.Exp(d+gap), 1.15) * adv * lp })
	for _, s := range steps {
		delete(s.B.Tensors, "logp_old")
	}
	fits := Solve(Find("token_loss/policy"), steps)
	require.NotEmpty(t, fits)
	got := texts(fits[0].Changes)
	require.Equal(t, "engine", got["ratio.old"])
	require.Equal(t, "cispo", got["loss.kind"])
}

// Bounds of a loss with a bug in it are those that its ratios stop at: on the wrong side of a detached weight, too, and beside a KL where most tokens have
// nothing else.
func TestShownBoundsOfWrongLosses(t *testing.T) {
	ch := Find("token_loss/policy")
	shown := ShownBounds(ch, stepsOf(5, false, func(lp, d, adv, _, _ float64) float64 { return -max(math.Exp(d), 1.15) * adv * lp }))
	require.True(t, slices.ContainsFunc(shown, func(list []Change) bool {
		got := texts(list)
		return got["loss.kind"] == "cispo" && got["clip.high"] == "0.15"
	}))
	shown = ShownBounds(ch, stepsOf(5, true, func(lp, d, adv, kl, _ float64) float64 {
		if x := min(-adv*math.Exp(d), -adv*clip(d, 0.2, 0.2)); math.Mod(1e4*math.Abs(lp), 3) < 1 {
			return x + 0.05*kl
		}
		return 0.05 * kl
	}))
	require.NotEmpty(t, shown)
	got := texts(shown[0])
	require.Equal(t, [3]string{"0.05", "0.2", "0.2"}, [3]string{got["kl.beta"], got["clip.low"], got["clip.high"]})
}

// What no formula gives is solved by nothing: bugs stay unexplained.
func TestWrongLossesAreNotSolved(t *testing.T) {
	for name, loss := range map[string]func(lp, d, adv, kl, gap float64) float64{
		"the smaller of both":  func(_, d, adv, _, _ float64) float64 { return min(-adv*math.Exp(d), -adv*clip(d, 0.0625, 0.177)) },
		"one sign turned":      func(_, d, adv, _, _ float64) float64 { return max(-adv*math.Exp(-d), -adv*clip(-d, 0.0625, 0.177)) },
		"half":                 func(_, d, adv, _, _ float64) float64 { return 0.5 * max(-adv*math.Exp(d), -adv*clip(d, 0.0625, 0.177)) },
		"ratio less 1":         func(_, d, adv, _, _ float64) float64 { return -adv * (math.Exp(d) - 1) },
		"noise":                func(lp, d, adv, _, _ float64) float64 { return -adv*math.Exp(d) + 0.01*math.Sin(1e3*lp) },
		"clip of the log":      func(_, d, adv, _, _ float64) float64 { return -adv * min(max(d, -0.1), 0.1) },
		"advantage's absolute": func(_, d, adv, _, _ float64) float64 { return -math.Abs(adv) * math.Exp(d) },
	} {
		for seed := range uint64(3) {
			require.Empty(t, Solve(Find("token_loss/policy"), stepsOf(seed, false, loss)), fmt.Sprint(name, seed))
		}
	}
}
