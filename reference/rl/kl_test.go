package rl

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// enumerate returns the expectation over a vocabulary, under the distribution w, of an estimator and of its gradient with
// respect to the logits of the policy p: Σ_j w_j·k_j and Σ_j w_j·k′_j·∂ln p_j/∂z.
func enumerate(p, ref, w, old []float64, o KLOptions) (value float64, grad []float64) {
	log := func(x []float64) []float64 {
		if x == nil {
			return nil
		}
		y := make([]float64, len(x))
		for i, v := range x {
			y[i] = math.Log(v)
		}
		return y
	}
	k, dk := KL(nil, nil, log(p), log(ref), log(old), o)
	grad = make([]float64, len(p))
	for j := range p {
		value += w[j] * k[j]
		for i := range grad {
			grad[i] -= w[j] * dk[j] * p[i]
		}
		grad[j] += w[j] * dk[j]
	}
	return value, grad
}

// exactKL returns KL(p‖q) and its gradients with respect to the logits of p: of KL(p‖q) and of KL(q‖p).
func exactKL(p, q []float64) (kl float64, forward, reverse []float64) {
	for i, x := range p {
		kl += x * math.Log(x/q[i])
	}
	for i, x := range p {
		forward = append(forward, x*(math.Log(x/q[i])-kl))
		reverse = append(reverse, x-q[i])
	}
	return kl, forward, reverse
}

// klIdentities checks which expectation each estimator and each gradient has, without sampling, and returns the first that
// fails. at is the estimator under test.
func klIdentities(at func(p, ref, w, old []float64, o KLOptions) (float64, []float64), p, ref, old []float64) string {
	kl, forward, reverse := exactKL(p, ref)
	zero := make([]float64, len(p))
	for _, c := range []struct {
		name string
		o    KLOptions
		grad []float64
	}{
		{"k1", KLOptions{}, zero},
		{"k2", KLOptions{Kind: KLK2}, forward},
		{"k3", KLOptions{Kind: KLK3}, reverse},
		{"k1·exp(lp − sg lp)", KLOptions{Grad: KLScoreFunction}, forward},
		{"k3·exp(lp − sg lp)", KLOptions{Kind: KLK3, Grad: KLScoreFunction}, forward},
		{"k1 straight through", KLOptions{Grad: KLStraightThroughK2}, forward},
		{"k3 straight through", KLOptions{Kind: KLK3, Grad: KLStraightThroughK2}, forward},
	} {
		value, grad := at(p, ref, p, nil, c.o)
		if c.o.Kind == KLK2 {
			if len(p) > 1 && math.Abs(value-kl) <= 1e-12 && kl > 1e-6 {
				return "k2 is biased"
			}
		} else if !(math.Abs(value-kl) <= 1e-12) {
			return c.name + " value"
		}
		if off(grad, c.grad, 1e-12) != nil {
			return c.name + " gradient"
		}
	}
	for _, kind := range []KLKind{KLK1, KLK3} { // sampled under old, weighted with p/old
		value, grad := at(p, ref, old, old, KLOptions{Kind: kind, Grad: KLISCorrected})
		if !(math.Abs(value-kl) <= 1e-12) || off(grad, forward, 1e-12) != nil {
			return kind.String() + " off policy"
		}
	}
	return ""
}

// distribution draws n probabilities.
func distribution(rng *rand.Rand, n int) []float64 {
	p, sum := make([]float64, n), 0.0
	for i := range p {
		p[i] = math.Exp(rng.NormFloat64())
		sum += p[i]
	}
	for i := range p {
		p[i] /= sum
	}
	return p
}

func TestKLIdentities(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		n := rapid.IntRange(2, 64).Draw(t, "vocabulary")
		if law := klIdentities(enumerate, distribution(rng, n), distribution(rng, n), distribution(rng, n)); law != "" {
			t.Fatal(law)
		}
	})
}

func TestKLIdentitiesReject(t *testing.T) {
	p, ref, old := []float64{.4, .3, .2, .1}, []float64{.1, .2, .3, .4}, []float64{.25, .25, .3, .2}
	require.Empty(t, klIdentities(enumerate, p, ref, old))
	type estimator = func(p, ref, w, old []float64, o KLOptions) (float64, []float64)
	for name, f := range map[string]estimator{
		"k1 and k2 exchanged": func(p, ref, w, old []float64, o KLOptions) (float64, []float64) {
			if o.Kind == KLK1 {
				o.Kind = KLK2
			}
			return enumerate(p, ref, w, old, o)
		},
		"k3 of the other direction": func(p, ref, w, old []float64, o KLOptions) (float64, []float64) {
			if o.Kind == KLK3 {
				return enumerate(ref, p, w, old, o)
			}
			return enumerate(p, ref, w, old, o)
		},
		"score function without its second term": func(p, ref, w, old []float64, o KLOptions) (float64, []float64) {
			if o.Grad == KLScoreFunction {
				o.Grad = KLNaive
			}
			return enumerate(p, ref, w, old, o)
		},
		"weight detached": func(p, ref, w, old []float64, o KLOptions) (float64, []float64) {
			v, g := enumerate(p, ref, w, old, o)
			if o.Grad == KLISCorrected {
				_, g = enumerate(p, ref, p, nil, KLOptions{Kind: o.Kind})
			}
			return v, g
		},
		"no weight": func(p, ref, w, old []float64, o KLOptions) (float64, []float64) {
			return enumerate(p, ref, w, nil, o)
		},
	} {
		require.NotEmpty(t, klIdentities(f, p, ref, old), name)
	}
}

// TestKLWorked has the numbers of the conventions document, section 6.1.
func TestKLWorked(t *testing.T) {
	p, ref := []float64{.4, .3, .2, .1}, []float64{.1, .2, .3, .4}
	kl, forward, reverse := exactKL(p, ref)
	require.InDelta(t, .4564348191467835, kl, 1e-15)
	require.NoError(t, off(forward, []float64{.3719438167892428, -.0152909133115858, -.1723799854509896, -.1842729180266674}, 1e-15))
	require.NoError(t, off(reverse, []float64{.3, .1, -.1, -.3}, 1e-15))
	k2, _ := enumerate(p, ref, p, nil, KLOptions{Kind: KLK2})
	require.InDelta(t, .5215535023914927, k2, 1e-15)

	// Vectors that decide between conventions, section 6.2.
	at := func(lp, ref float64, o KLOptions) float64 {
		v, _ := KL(nil, nil, []float64{lp}, []float64{ref}, nil, o)
		return v[0]
	}
	require.InDelta(t, .4, at(-.5, -.9, KLOptions{}), 1e-15)
	require.InDelta(t, .08, at(-.5, -.9, KLOptions{Kind: KLK2}), 1e-15)
	require.InDelta(t, .0703200460356392, at(-.5, -.9, KLOptions{Kind: KLK3}), 1e-15)
	require.Equal(t, -29.0, at(-30, -1, KLOptions{}))
	require.Equal(t, -10.0, at(-30, -1, KLOptions{ClampOut: 10, ClampAll: true}))
	require.Equal(t, 10.0, at(-30, -1, KLOptions{Kind: KLK3, ClampIn: 20, ClampOut: 10}))
	require.InDelta(t, 3931334297114.042, at(-30, -1, KLOptions{Kind: KLK3}), 1e-2)
}

// TestKLLaws: k2, k3 and abs are not negative, all are 0 at p = q with their slopes, k3·exp(lp − sg lp) has the slope d.
func TestKLLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lp := rapid.SliceOfN(rapid.Float64Range(-30, 0), 8, 8).Draw(t, "lp")
		ref := rapid.SliceOfN(rapid.Float64Range(-30, 0), 8, 8).Draw(t, "ref")
		for i := range 4 { // small differences, where e^{−d} − 1 + d would cancel
			ref[i] = lp[i] + ref[i]*1e-9
		}
		for _, kind := range []KLKind{KLK2, KLK3, KLAbs} {
			value, grad := KL(nil, nil, lp, ref, nil, KLOptions{Kind: kind})
			for i, v := range value {
				if !(v >= 0) {
					t.Fatalf("%v is %v at lp %v, ref %v", kind, v, lp[i], ref[i])
				}
				if d := lp[i] - ref[i]; grad[i]*d < 0 {
					t.Fatalf("the slope of %v points away from ref", kind)
				}
			}
		}
		_, grad := KL(nil, nil, lp, ref, nil, KLOptions{Kind: KLK3, Grad: KLScoreFunction})
		for i := range lp {
			if d := lp[i] - ref[i]; !(math.Abs(grad[i]-d) <= 1e-14*math.Exp(math.Abs(d))) {
				t.Fatalf("k3·exp(lp − sg lp) has slope %v at d = %v", grad[i], d)
			}
		}
		for kind := KLK1; kind <= KLRatioD; kind++ {
			value, grad := KL(nil, nil, lp, lp, nil, KLOptions{Kind: kind})
			for i := range value {
				if value[i] != 0 || kind != KLK1 && kind != KLRatioD && grad[i] != 0 {
					t.Fatalf("%v at equality: %v, slope %v", kind, value[i], grad[i])
				}
			}
		}
	})
}

// TestKLKinks: on a bound the slope is 0 and the value the bound; behind an overflow the chain rule gives 0·∞.
func TestKLKinks(t *testing.T) {
	for _, c := range []struct {
		lp, ref     float64
		o           KLOptions
		value, grad float64
	}{
		{-30, -10, KLOptions{Kind: KLK1, ClampIn: 20, ClampAll: true}, -20, 0},
		{-29, -10, KLOptions{Kind: KLK1, ClampIn: 20, ClampAll: true}, -19, 1},
		{-12, -2, KLOptions{Kind: KLK1, ClampOut: 10, ClampAll: true}, -10, 0},
		{-2, -12, KLOptions{Kind: KLK1, ClampOut: 10, ClampAll: true}, 10, 0},
		{-40, -10, KLOptions{Kind: KLK1, ClampIn: 20, ClampOut: 10}, -30, 1}, // verl: k1 is not clamped
		{-2, -42, KLOptions{Kind: KLK3, ClampIn: 10, ClampInBelow: true}, 40 - 1 + math.Exp(-40), 1 - math.Exp(-40)},
		{-42, -2, KLOptions{Kind: KLK3, ClampIn: 20, ClampOut: 10, Grad: KLStraightThroughK2}, 10, -40},
		{-42, -2, KLOptions{Kind: KLK3, ClampIn: 20, ClampOut: 10, Grad: KLScoreFunction}, 10, 10},
		{-800, -1, KLOptions{Kind: KLK3, ClampOut: 10}, 10, nan},
		{-800, -1, KLOptions{Kind: KLK3, ClampOut: 10, ClampIn: 20}, 10, 0},
		{-1, -1, KLOptions{Kind: KLAbs}, 0, 0},
		{nan, -1, KLOptions{Kind: KLK3, ClampIn: 20, ClampOut: 10}, nan, nan},
	} {
		value, grad := KL(nil, nil, []float64{c.lp}, []float64{c.ref}, nil, c.o)
		require.NoError(t, off(value, []float64{c.value}, 1e-15), "%+v", c)
		require.NoError(t, off(grad, []float64{c.grad}, 1e-15), "%+v", c)
	}
}

func TestSequenceProbKL(t *testing.T) {
	lp, old := []float64{-1, -2, -3, -1}, []float64{-.5, -1, nan, -2}
	mask := []bool{true, true, false, true}
	require.PanicsWithValue(t, badOption, func() { KL(nil, nil, lp, old, nil, KLOptions{Kind: KLSeqProb}) })
	value, grad := SequenceProbKL(nil, nil, lp, old, mask, 2, 2)
	require.NoError(t, off(value, []float64{math.Exp(-1.5) * 1.5, math.Exp(-2) * -1}, 1e-15))
	require.NoError(t, off(grad, []float64{-math.Exp(-1.5), -math.Exp(-1.5), 0, -math.Exp(-2)}, 0))
}

// TestLossOptionNames: every option value of the losses reads back from its name, in the spelling of the conventions document.
func TestLossOptionNames(t *testing.T) {
	for i, s := range []string{"k1", "k2", "k3", "abs", "ratio_d", "seq_prob"} {
		k, err := ParseKLKind(s)
		require.NoError(t, err)
		require.Equal(t, KLKind(i), k)
		require.Equal(t, s, k.String())
	}
	check := func(names []string, parse func(string) (string, error)) {
		for _, s := range names {
			back, err := parse(s)
			require.NoError(t, err)
			require.Equal(t, s, back)
		}
		_, err := parse("none of them")
		require.Error(t, err)
	}
	check([]string{"schulman_1", "zero"}, func(s string) (string, error) { v, err := ParseKLIndexBase(s); return v.String(), err })
	check([]string{"naive", "score_function", "straight_through_k2", "is_corrected"}, func(s string) (string, error) { v, err := ParseKLGrad(s); return v.String(), err })
	check([]string{"token", "seq_mean", "seq_sum"}, func(s string) (string, error) { v, err := ParseRatioLevel(s); return v.String(), err })
	check([]string{"ppo", "reinforce", "cispo", "gspo", "gmpo", "sapo", "luspo", "vespo", "dppo_tv", "dppo_kl", "dro", "clip_cov", "kl_cov"},
		func(s string) (string, error) { v, err := ParseLossKind(s); return v.String(), err })
	check([]string{"token", "seq_mean_token_mean", "seq_mean_token_sum", "seq_sum_const", "luspo", "token_sum"}, func(s string) (string, error) { v, err := ParseAggKind(s); return v.String(), err })
	check([]string{"micro", "rank", "global", "constant"}, func(s string) (string, error) { v, err := ParseAggDenominator(s); return v.String(), err })
	check([]string{"excluded", "counted"}, func(s string) (string, error) { v, err := ParseAggEmptyRows(s); return v.String(), err })
	check([]string{"none", "token", "seq_sum", "seq_geo"}, func(s string) (string, error) { v, err := ParseTISLevel(s); return v.String(), err })
	check([]string{"truncate_upper", "clamp", "zero_outside", "seq_filter"}, func(s string) (string, error) { v, err := ParseTISRule(s); return v.String(), err })
	check([]string{"ratio", "binary_kl", "tv"}, func(s string) (string, error) { v, err := ParseTISGate(s); return v.String(), err })
	check([]string{"binding", "outside", "lower"}, func(s string) (string, error) { v, err := ParseClipFracKind(s); return v.String(), err })
	check([]string{"scaled", "unscaled", "monte_carlo"}, func(s string) (string, error) { v, err := ParseEntropyLogits(s); return v.String(), err })
	check([]string{"sigmoid", "hinge", "ipo"}, func(s string) (string, error) { v, err := ParseDPOKind(s); return v.String(), err })

	for number, want := range map[int]KLKind{1: KLK1, 2: KLK2, 3: KLK3} {
		k, err := KLSchulman1.Kind(number)
		require.NoError(t, err)
		require.Equal(t, want, k)
	}
	k, err := KLZero.Kind(2)
	require.NoError(t, err)
	require.Equal(t, KLK3, k)
	for _, b := range []KLIndexBase{KLSchulman1, KLZero} {
		_, err = b.Kind(4)
		require.Error(t, err)
		_, err = b.Kind(-1)
		require.Error(t, err)
	}
	_, err = KLSchulman1.Kind(0)
	require.Error(t, err)
}
