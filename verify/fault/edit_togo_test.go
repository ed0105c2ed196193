package fault

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// Rewards to go that are summed in the wrong direction, or by the wrong powers of the discount, are named by that.
func TestToGoEdits(t *testing.T) {
	p, _, err := convention.Lookup("verl-ppo@0.9")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"adv.kind": "rfpp", "rfpp.mode": "return_to_go", "gae.gamma": "0.97", "whiten.scope": "none", "kl.place": "token_reward", "kl.beta": "1"} {
		set = set.With(name, parsed(name, x), "test")
	}
	empty, implied := false, false // the first row has no token; the rewards of tokens are those of scores and KL, and not in the dump
	judge := func(of func(r []float64) []float64) *stage.Outcome {
		b := rolledOut(true, func(r, _, m, _ []float64, _ float64) []float64 {
			var own []float64
			for t, x := range r {
				if m[t] > 0 {
					own = append(own, x)
				}
			}
			y, a := of(own), make([]float64, len(r))
			for t, k := 0, 0; t < len(r); t++ {
				if m[t] > 0 {
					a[t] = y[k]
					k++
				}
			}
			return a
		})
		delete(b.Tensors, "values")
		delete(b.Tensors, "returns")
		for i := 0; i < b.Cols && empty; i++ {
			b.Mask[i] = false
		}
		if implied {
			b.Tensors["kl"] = b.With("kl", mapped(b.Token("token_rewards"), func(x float64) float64 { return -x })).Tensors["kl"]
			b.Tensors["scores"] = &dump.Tensor{Name: "scores", Layout: dump.PerRow, Width: 1, Shape: []int{b.Rows}, Data: make([]float64, b.Rows), Type: format.F32}
			delete(b.Tensors, "token_rewards")
		}
		return stage.Judge(stage.Find("advantage/return"), b, set)
	}
	right := func(r []float64) []float64 {
		y := make([]float64, len(r))
		var g float64
		for t := len(r) - 1; t >= 0; t-- {
			g = r[t] + testGamma*g
			y[t] = g
		}
		return y
	}
	require.Equal(t, check.Pass, judge(right).Verdict)
	forward := func(r []float64) []float64 {
		y := make([]float64, len(r))
		var g float64
		for t := range r {
			g = r[t] + testGamma*g
			y[t] = g
		}
		return y
	}
	requireName(t, judge(forward), "GAE-RECURSION", "from the first token on")
	requireName(t, judge(func(r []float64) []float64 { return append(right(r)[1:], 0) }), "GAE-SHIFT", "one token early")
	requireName(t, judge(func(r []float64) []float64 { return toGo(r, testGamma*testGamma) }), "GAE-RECURSION", "γ²")
	requireName(t, judge(func(r []float64) []float64 {
		y := right(r)
		for i, j := 0, len(y)-1; i < j; i, j = i+1, j-1 {
			y[i], y[j] = y[j], y[i]
		}
		return y
	}), "GAE-RECURSION", "not reversed")
	empty = true
	requireName(t, judge(func(r []float64) []float64 { return toGo(r, 1) }), "GAE-NO-GAMMA", "")
	empty, implied = false, true
	requireName(t, judge(forward), "GAE-RECURSION", "from the first token on")
}

// Returns that have the rewards in them which stand between the tokens of a response, as a KL of what a tool said, are told.
func TestReturnsOverGaps(t *testing.T) {
	p, _, err := convention.Lookup("verl-ppo@0.9")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"adv.kind": "rfpp", "rfpp.mode": "return_to_go", "gae.gamma": "1", "gae.hole": "carry", "whiten.scope": "none", "kl.place": "token_reward", "kl.beta": "1"} {
		set = set.With(name, parsed(name, x), "test")
	}
	for _, over := range []bool{false, true} {
		b := rolledOut(true, func(r, _, _, _ []float64, _ float64) []float64 { return make([]float64, len(r)) })
		delete(b.Tensors, "values")
		delete(b.Tensors, "returns")
		reward, adv := b.Token("token_rewards"), b.Token("advantages")
		for r := range b.Rows {
			first, last := firstLast(b.Mask[r*b.Cols : (r+1)*b.Cols])
			sum := 0.0
			for i := r*b.Cols + last; i >= r*b.Cols+first && first >= 0; i-- {
				if !b.Mask[i] {
					reward[i] = float64(float32(0.1 + 0.01*float64(i%7)))
				}
				if b.Mask[i] || over {
					sum += reward[i]
				}
				if b.Mask[i] {
					adv[i] = float64(float32(sum))
				}
			}
		}
		o := stage.Judge(stage.Find("advantage/return"), b, set)
		if !over {
			require.Equal(t, check.Pass, o.Verdict, o.Lacking())
			continue
		}
		requireName(t, o, "GAE-HOLE", "between the tokens of a response")
	}
}

// Returns that were normalised are the right ones on a line.
func TestNormalisedReturns(t *testing.T) {
	p, _, err := convention.Lookup("verl-ppo@0.9")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"gae.gamma": "0.97", "gae.lambda": "0.9", "whiten.scope": "none"} {
		set = set.With(name, parsed(name, x), "test")
	}
	passedBy := func(own, behind, m float64) float64 { return own*m + (1-m)*behind }
	b := rolledOut(true, overHoles(passedBy, passedBy))
	c := stage.Find("gae/returns")
	require.Equal(t, check.Pass, stage.Judge(c, b, set).Verdict)
	ret := b.Token("returns")
	for i := range ret {
		ret[i] = float64(float32((ret[i] - 0.31) / 1.7))
	}
	requireName(t, stage.Judge(c, b, set), "OTHER-FORM", "the returns are normalised")
	b = rolledOut(true, overHoles(passedBy, passedBy))
	for i, v := range b.Token("values") {
		b.Token("returns")[i] = float64(float32((b.Token("returns")[i]-v+0.22)/0.7 + v))
	}
	requireName(t, stage.Judge(c, b, set), "GAE-RETURNS-AFTER-WHITENING", "normalised advantages")
	// Advantages that were whitened, beside returns that were not, are on such a line, too: without rewards no number tells which are the right ones.
	b = rolledOut(true, overHoles(passedBy, passedBy))
	adv := b.Token("advantages")
	require.NotNil(t, adv)
	for i, v := range b.Token("values") {
		adv[i] = float64(float32((b.Token("returns")[i] - v - 0.22) / 0.7))
	}
	delete(b.Tensors, "token_rewards")
	o := stage.Judge(c, b, set)
	require.Equal(t, check.Fail, o.Verdict)
	for _, e := range Explain(o) {
		require.NotEqual(t, "GAE-RETURNS-AFTER-WHITENING", e.Hypothesis.ID)
	}
}

// A loop from the first token on, where it should run from the last one back.
func TestRecursionFromFirst(t *testing.T) {
	p, _, err := convention.Lookup("verl-ppo@0.9")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"gae.gamma": "0.97", "gae.lambda": "0.9", "whiten.scope": "none"} {
		set = set.With(name, parsed(name, x), "test")
	}
	b := rolledOut(true, func(r, v, m, _ []float64, _ float64) []float64 {
		a := make([]float64, len(r))
		var before, last float64
		for t := range r {
			if m[t] > 0 {
				last = r[t] + testGamma*before - v[t] + testGamma*testLambda*last
				before = v[t]
			}
			a[t] = last
		}
		return a
	})
	requireName(t, stage.Judge(stage.Find("gae/returns"), b, set), "GAE-RECURSION", "A and V of the token before")
}

// Returns A + V' of the values of the next states are told by these, that of the last token included.
func TestReturnsOfTheNextValues(t *testing.T) {
	p, _, err := convention.Lookup("cleanrl@020cf0e")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"gae.gamma": "0.97", "gae.lambda": "0.9", "whiten.scope": "none"} {
		set = set.With(name, parsed(name, x), "test")
	}
	right := func(d []float64, t int) float64 { return d[t] }
	b := rolledOut(false, overEnds(right, right))
	v, ret, next := b.Token("values"), b.Token("returns"), b.Row("next_values")
	for i := range ret {
		behind := next[i/b.Cols]
		if (i+1)%b.Cols > 0 {
			behind = v[i+1]
		}
		ret[i] = float64(float32(ret[i] - v[i] + behind))
	}
	requireName(t, stage.Judge(stage.Find("gae/returns"), b, set), "OTHER-FORM", "the value of the next state")
}
