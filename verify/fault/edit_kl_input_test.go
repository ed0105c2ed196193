package fault

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// estimatedBy returns a step whose estimates of KL a program makes of x = logp_ref − logp_new.
func estimatedBy(estimate func(x float64) float64) *dump.Batch {
	b := updated(func(d, a float64) float64 { return 0 })
	delete(b.Tensors, "token_loss")
	r := rand.New(rand.NewPCG(8, 9))
	lp := b.Token("logp_new")
	ref, kl := make([]float64, len(lp)), make([]float64, len(lp))
	for i := range lp {
		ref[i] = float64(float32(lp[i] + 0.6*r.NormFloat64()))
		kl[i] = float64(float32(estimate(ref[i] - lp[i])))
	}
	for name, x := range map[string][]float64{"logp_ref": ref, "kl": kl} {
		b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: x, Type: format.F32}
	}
	return b
}

// An estimate of KL whose log-ratio was held, or went through a function, is named by that, for every estimator.
func TestKLInputEdits(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	for kind, estimate := range map[string]func(x float64) float64{
		"k3": func(x float64) float64 { return math.Exp(x) - x - 1 },
		"k2": func(x float64) float64 { return x * x / 2 },
	} {
		set := convention.FromProfile(p)
		for name, x := range map[string]string{"kl.kind": kind, "kl.place": "loss", "kl.beta": "0.1", "kl.grad": "naive"} {
			set = set.With(name, parsed(name, x), "test")
		}
		judge := func(estimate func(x float64) float64) *stage.Outcome {
			return stage.Judge(stage.Find("kl/token"), estimatedBy(estimate), set)
		}
		require.Equal(t, check.Pass, judge(estimate).Verdict)
		for _, c := range []struct {
			id, words string
			of        func(x float64) float64
		}{
			{"KL-CUT-OFF", "", func(x float64) float64 { return estimate(math.Max(-0.5, math.Min(x, 0.5))) }},
			{"KL-CUT-OFF", "at most 0.2,", func(x float64) float64 { return estimate(math.Min(x, 0.2)) }},
			{"KL-CUT-OFF", "at least -0.3,", func(x float64) float64 { return estimate(math.Max(x, -0.3)) }},
			{"KL-FORMULA", "3·x", func(x float64) float64 { return estimate(3 * x) }},
			{"KL-FORMULA", "½·|x|,", func(x float64) float64 { return math.Abs(x) / 2 }},
			{"KL-SIGN", "wrong sign", func(x float64) float64 { return -estimate(x) }},
		} {
			if kind == "k2" && c.words == "3·x" {
				continue // is nine times the estimate
			}
			t.Run(kind+" "+c.words, func(t *testing.T) { requireName(t, judge(c.of), c.id, c.words) })
		}
		if kind == "k2" { // of one token no division by a count of the run can be missing
			t.Run("k2 twice", func(t *testing.T) {
				requireName(t, judge(func(x float64) float64 { return x * x }), "KL-FORMULA", "without the ½")
			})
		}
		noise := rand.New(rand.NewPCG(1, 2))
		t.Run(kind+" noise", func(t *testing.T) { requireNoName(t, judge(func(float64) float64 { return noise.NormFloat64() })) })
	}
}

// A slip of the estimator is one under the bounds of the options, too: of x, and of the estimate.
func TestKLFormsAreHeld(t *testing.T) {
	p, _, err := convention.Lookup("openrlhf-group@0.11")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"kl.kind": "k2", "kl.place": "loss", "kl.beta": "0.1", "kl.grad": "naive", "kl.clamp_out": "0.3"} {
		set = set.With(name, parsed(name, x), "test")
	}
	judge := func(estimate func(x float64) float64) *stage.Outcome {
		return stage.Judge(stage.Find("kl/token"), estimatedBy(func(x float64) float64 { return math.Min(estimate(x), 0.3) }), set)
	}
	require.Equal(t, check.Pass, judge(func(x float64) float64 { return x * x / 2 }).Verdict)
	requireName(t, judge(func(x float64) float64 { return x * x }), "KL-FORMULA", "x², without the ½")
}

// Another coefficient makes an estimate of each that is a positive multiple of the log-ratio, of its size or of its square.
func TestMultiplesOfAnEstimate(t *testing.T) {
	for words, of := range map[string]func(x float64) float64{
		"x², without the ½": func(x float64) float64 { return x * x }, "2·|x|": func(x float64) float64 { return 2 * math.Abs(x) }, "−½·x": func(x float64) float64 { return -x / 2 },
	} {
		require.Equal(t, []string{"kl.beta"}, coefficientOf(of), words)
	}
	for words, of := range map[string]func(x float64) float64{
		"½·x": func(x float64) float64 { return x / 2 }, "−½·x²": func(x float64) float64 { return -x * x / 2 }, "√|x|": func(x float64) float64 { return math.Sqrt(math.Abs(x)) },
		"eˣ − x": func(x float64) float64 { return math.Exp(x) - x },
	} {
		require.Nil(t, coefficientOf(of), words)
	}
}

// Advantages whose differences are those of other rows over their own spread, and advantages that are never filled.
func TestAdvantagesOfOthers(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	set := convention.FromProfile(p).WithFact("num_generations", 4)
	difference := func(r []float64, i int) (d, std float64) {
		g := r[i/4*4 : i/4*4+4]
		mean := (g[0] + g[1] + g[2] + g[3]) / 4
		for _, x := range g {
			std += (x - mean) * (x - mean)
		}
		return r[i] - mean, math.Sqrt(std / 3)
	}
	judge := func(of func(r []float64, i int) float64) *stage.Outcome {
		return stage.Judge(stage.Find("advantage/group"), rewarded(func(r []float64, _ []int, i int) float64 { return of(r, i) }), set)
	}
	requireName(t, judge(func(r []float64, i int) float64 {
		d, _ := difference(r, len(r)-1-i)
		_, std := difference(r, i)
		return d / (std + 1e-4)
	}), "ADV-ROWS-OF-OTHERS", "over their own spread")
	requireName(t, judge(func([]float64, int) float64 { return 0 }), "ADV-ZERO", "all advantages are 0")
	require.Equal(t, check.Pass, judge(func(r []float64, i int) float64 {
		d, std := difference(r, i)
		return d / (std + 1e-4)
	}).Verdict)
}
