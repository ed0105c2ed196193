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

// rolledOut returns a rollout of eight rows of twelve columns, with holes or with ends of episodes, and the advantages that a program makes
// of rewards r, values v, mask m, and d, which is 1 where an episode ends after a column.
func rolledOut(holes bool, program func(r, v, m, d []float64, next float64) []float64) *dump.Batch {
	g := rand.New(rand.NewPCG(5, 8))
	const rows, cols = 8, 12
	b := &dump.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Tensors: map[string]*dump.Tensor{}, Origin: make([]dump.Origin, rows),
		Files: []dump.FileInfo{{Lo: 0, Hi: rows, Cols: cols}}}
	b.Meta.MicroBatches, b.Meta.WorldSize = 1, 1
	single := func() float64 { return float64(float32(g.NormFloat64())) }
	at := map[string][]float64{"token_rewards": nil, "values": nil, "returns": nil, "advantages": nil, "dones": nil}
	for name := range at {
		at[name] = make([]float64, rows*cols)
	}
	next := make([]float64, rows)
	for row := range rows {
		m := make([]float64, cols)
		for t := range cols {
			i := row*cols + t
			if b.Mask[i] = !holes || t < 10-row%4 && t != 4 && t != 5; b.Mask[i] {
				m[t] = 1
			}
			if b.Mask[i] {
				at["token_rewards"][i] = single()
			}
			at["values"][i] = single()
			if !holes && g.Float64() < 0.3 {
				at["dones"][i] = 1
			}
		}
		lo, hi := row*cols, (row+1)*cols
		if !holes {
			next[row] = single()
		}
		adv := program(at["token_rewards"][lo:hi], at["values"][lo:hi], m, at["dones"][lo:hi], next[row])
		for t, a := range adv {
			at["advantages"][lo+t] = float64(float32(a))
			at["returns"][lo+t] = float64(float32(a + at["values"][lo+t]))
		}
	}
	for name, x := range at {
		if name == "dones" && holes {
			continue
		}
		b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{rows, cols}, Data: x, Type: format.F32}
	}
	if !holes {
		b.Tensors["next_values"] = &dump.Tensor{Name: "next_values", Layout: dump.PerRow, Width: 1, Shape: []int{rows}, Data: next, Type: format.F32}
	}
	return b
}

const testGamma, testLambda = 0.97, 0.9

// overHoles is the recursion over all columns, with the next value and the advantage of a masked column taken by two rules.
func overHoles(value, advantage func(own, behind, m float64) float64) func(r, v, m, d []float64, next float64) []float64 {
	return func(r, v, m, _ []float64, _ float64) []float64 {
		a := make([]float64, len(r))
		var nextValue, last float64
		for t := len(r) - 1; t >= 0; t-- {
			g := r[t] + testGamma*nextValue - v[t] + testGamma*testLambda*last
			nextValue, last = value(v[t], nextValue, m[t]), advantage(g, last, m[t])
			a[t] = last
		}
		return a
	}
}

// overEnds is the recursion of an environment's steps, with two rules for which flag cuts the next value and the advantage behind.
func overEnds(next, carried func(d []float64, t int) float64) func(r, v, m, d []float64, behind float64) []float64 {
	return func(r, v, _, d []float64, behind float64) []float64 {
		a := make([]float64, len(r))
		var last float64
		for t := len(r) - 1; t >= 0; t-- {
			nextValue := behind
			if t+1 < len(r) {
				nextValue = v[t+1]
			}
			last = r[t] + testGamma*nextValue*(1-next(d, t)) - v[t] + testGamma*testLambda*(1-carried(d, t))*last
			a[t] = last
		}
		return a
	}
}

// A recursion over holes or ends of episodes with one rule wrong is named by that rule, and a right one passes.
func TestRecursionEdits(t *testing.T) {
	passedBy := func(own, behind, m float64) float64 { return own*m + (1-m)*behind }
	raw := func(own, _, _ float64) float64 { return own }
	decays := func(by float64) func(own, behind, m float64) float64 {
		return func(own, behind, m float64) float64 { return own*m + by*(1-m)*behind }
	}
	reset := func(own, _, m float64) float64 { return own * m }
	right := func(d []float64, t int) float64 { return d[t] }
	none := func([]float64, int) float64 { return 0 }
	someOf := func(d []float64, t int) float64 { return d[t] * float64(t%2) }
	before := func(d []float64, t int) float64 {
		switch {
		case t == len(d)-1:
			return d[t]
		case t == 0:
			return 0
		}
		return d[t-1]
	}
	ofBefore := func(d []float64, t int) float64 {
		if t == 0 {
			return 0
		}
		return d[t-1]
	}
	traced := func(own, delta float64, short bool) func(r, v, m, d []float64, behind float64) []float64 {
		return func(r, v, _, d []float64, behind float64) []float64 {
			a := make([]float64, len(r))
			var last float64
			for t := len(r) - 1; t >= 0; t-- {
				next := behind
				if t+1 < len(r) {
					next = v[t+1]
				}
				δ := delta * (r[t] + testGamma*next*(1-d[t]) - own*v[t])
				a[t] = δ + testGamma*testLambda*(1-d[t])*last
				if last = a[t]; short {
					last = δ
				}
			}
			return a
		}
	}
	behindIt := func(d []float64, t int) float64 {
		if t+1 < len(d) {
			return d[t+1]
		}
		return 0
	}
	turnedRound := func(program func(r, v, m, d []float64, next float64) []float64) func(r, v, m, d []float64, next float64) []float64 {
		return func(r, v, m, d []float64, next float64) []float64 {
			a := program(r, v, m, d, next)
			for i, j := 0, len(a)-1; i < j; i, j = i+1, j-1 {
				a[i], a[j] = a[j], a[i]
			}
			return a
		}
	}
	own := func(t, _ int) int { return t }
	steps := func(gamma, carry float64, reward func(t, n int) int) func(r, v, m, d []float64, behind float64) []float64 {
		return func(r, v, _, d []float64, behind float64) []float64 {
			a := make([]float64, len(r))
			var last float64
			for t := len(r) - 1; t >= 0; t-- {
				next := behind
				if t+1 < len(r) {
					next = v[t+1]
				}
				last = r[reward(t, len(r))] + gamma*next*(1-d[t]) - v[t] + carry*(1-d[t])*last
				a[t] = last
			}
			return a
		}
	}
	movedTo := func(to func(t, n int) int) func(r, v, m, d []float64, behind float64) []float64 {
		return func(r, v, m, d []float64, behind float64) []float64 {
			a, y := steps(testGamma, testGamma*testLambda, own)(r, v, m, d, behind), make([]float64, len(r))
			for t := len(a) - 1; t >= 0; t-- {
				if k := to(t, len(a)); k >= 0 && k < len(y) {
					y[k] = a[t]
				}
			}
			return y
		}
	}
	for _, c := range []struct {
		name, profile, id, words string
		holes                    bool
		of                       func(r, v, m, d []float64, next float64) []float64
	}{
		{"a mask for the next value", "verl-ppo@0.9", "GAE-RECURSION", "the next value is 1", true, overHoles(func(_, behind, m float64) float64 { return m + (1-m)*behind }, passedBy)},
		{"value of a hole", "verl-ppo@0.9", "GAE-HOLE", "taken as the next value", true, overHoles(raw, passedBy)},
		{"cut at a hole", "verl-ppo@0.9", "GAE-HOLE", "A_{t+1} is 0 there", true, overHoles(passedBy, reset)},
		{"a trace that decays in holes", "verl-ppo@0.9", "GAE-HOLE", "A_{t+1} decays by γλ at every", true, overHoles(passedBy, decays(testGamma*testLambda))},
		{"steps of γ in holes", "verl-ppo@0.9", "GAE-HOLE", "A_{t+1} decays by γλ, and the next value by γ", true, overHoles(decays(testGamma), decays(testGamma*testLambda))},
		{"a value that decays in holes", "verl-ppo@0.9", "GAE-HOLE", "the next value decays by γ at every", true, overHoles(decays(testGamma), passedBy)},
		{"over padding", "verl-ppo@0.9", "GAE-PADS", "A of masked columns", true, overHoles(passedBy, raw)},
		{"not reversed", "verl-ppo@0.9", "GAE-RECURSION", "reverse order", true, turnedRound(overHoles(passedBy, passedBy))},
		{"right over holes", "verl-ppo@0.9", "", "", true, overHoles(passedBy, passedBy)},
		{"flag of the step before", "cleanrl@020cf0e", "GAE-DONES", "one token late", false, overEnds(before, before)},
		{"flag of the step before, for the last one, too", "cleanrl@020cf0e", "GAE-DONES", "that of the last token, too", false, overEnds(ofBefore, ofBefore)},
		{"a trace of two steps", "cleanrl@020cf0e", "GAE-RECURSION", "δ of the next token is carried", false, traced(1, 1, true)},
		{"own value discounted", "cleanrl@020cf0e", "GAE-RECURSION", "γ multiplies the own value", false, traced(testGamma, 1, false)},
		{"λ before δ", "cleanrl@020cf0e", "GAE-RECURSION", "λ multiplies δ, too", false, traced(1, testLambda, false)},
		{"the same recursion", "cleanrl@020cf0e", "", "", false, traced(1, 1, false)},
		{"flag of the step behind", "cleanrl@020cf0e", "GAE-DONES", "one token early", false, overEnds(behindIt, behindIt)},
		{"not in δ", "cleanrl@020cf0e", "GAE-DONES", "the next value is taken over the end", false, overEnds(none, right)},
		{"not carried", "cleanrl@020cf0e", "GAE-DONES", "A_{t+1} is carried over", false, overEnds(right, none)},
		{"over every other end", "cleanrl@020cf0e", "GAE-DONES", "over some ends of episodes", false, overEnds(someOf, someOf)},
		{"γ not before the next value", "cleanrl@020cf0e", "GAE-NO-GAMMA", "γ is missing before the next value", false, steps(1, testGamma*testLambda, own)},
		{"γλ squared", "cleanrl@020cf0e", "GAE-RECURSION", "carried with (γλ)²", false, steps(testGamma, math.Pow(testGamma*testLambda, 2), own)},
		{"a sum for a product", "cleanrl@020cf0e", "GAE-RECURSION", "carried with γ + λ − 1", false, steps(testGamma, testGamma+testLambda-1, own)},
		{"another square", "cleanrl@020cf0e", "GAE-RECURSION", "discounted by λ²", false, steps(testLambda*testLambda, testGamma*testLambda, own)},
		{"γ twice wherever it stands", "cleanrl@020cf0e", "GAE-RECURSION", "γ is γ² in both places", false, steps(testGamma*testGamma, testGamma*testGamma*testLambda, own)},
		{"γ nowhere", "cleanrl@020cf0e", "GAE-NO-GAMMA", "in both", false, steps(1, testLambda, own)},
		{"the next value subtracted", "cleanrl@020cf0e", "GAE-RECURSION", "the sign of the next value", false, func(r, v, _, d []float64, behind float64) []float64 {
			a := make([]float64, len(r))
			var last float64
			for t := len(r) - 1; t >= 0; t-- {
				next := behind
				if t+1 < len(r) {
					next = -v[t+1]
				}
				last = r[t] + testGamma*next*(1-d[t]) - v[t] + testGamma*testLambda*(1-d[t])*last
				a[t] = last
			}
			return a
		}},
		{"rewards of the next step", "cleanrl@020cf0e", "GAE-REWARD-EARLY", "of the last one its own", false, steps(testGamma, testGamma*testLambda, func(t, n int) int { return min(t+1, n-1) })},
		{"rewards rolled", "cleanrl@020cf0e", "GAE-REWARD-SHIFT", "rolled", false, steps(testGamma, testGamma*testLambda, func(t, n int) int { return (t + n - 1) % n })},
		{"one column early", "cleanrl@020cf0e", "GAE-SHIFT", "of the last column 0", false, movedTo(func(t, _ int) int { return t - 1 })},
		{"one column early, within the row", "cleanrl@020cf0e", "GAE-SHIFT", "written over", false, movedTo(func(t, _ int) int { return max(t-1, 0) })},
		{"one column late", "cleanrl@020cf0e", "GAE-SHIFT", "of the first one 0", false, movedTo(func(t, n int) int { return (t + 1) })},
		{"one column late, round the row", "cleanrl@020cf0e", "GAE-SHIFT", "rolled", false, movedTo(func(t, n int) int { return (t + 1) % n })},
		{"from the first step on", "cleanrl@020cf0e", "GAE-RECURSION", "A of the token before", false, func(r, v, _, d []float64, behind float64) []float64 {
			a := make([]float64, len(r))
			var last float64
			for t := range r {
				nextValue := behind
				if t+1 < len(r) {
					nextValue = v[t+1]
				}
				last = r[t] + testGamma*nextValue*(1-d[t]) - v[t] + testGamma*testLambda*(1-d[t])*last
				a[t] = last
			}
			return a
		}},
		{"right over ends", "cleanrl@020cf0e", "", "", false, overEnds(right, right)},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, _, err := convention.Lookup(c.profile)
			require.NoError(t, err)
			set := convention.FromProfile(p)
			for name, x := range map[string]string{"gae.gamma": "0.97", "gae.lambda": "0.9", "whiten.scope": "none"} {
				set = set.With(name, parsed(name, x), "test")
			}
			for _, id := range []string{"gae/returns", "gae/advantage"} {
				o := stage.Judge(stage.Find(id), rolledOut(c.holes, c.of), set)
				if c.id == "" {
					require.Equal(t, check.Pass, o.Verdict, id)
				} else {
					requireName(t, o, c.id, c.words)
				}
			}
		})
	}
	t.Run("noise", func(t *testing.T) {
		p, _, err := convention.Lookup("verl-ppo@0.9")
		require.NoError(t, err)
		noise := rand.New(rand.NewPCG(1, 2))
		requireNoName(t, stage.Judge(stage.Find("gae/returns"), rolledOut(true, func(r, _, _, _ []float64, _ float64) []float64 {
			a := make([]float64, len(r))
			for t := range a {
				a[t] = noise.NormFloat64()
			}
			return a
		}), convention.FromProfile(p)))
	})
}

// A recursion over all columns, with values up to the token behind a response, as TRL's PPOTrainer has it, is named by its slip.
func TestRecursionOverColumns(t *testing.T) {
	p, _, err := convention.Lookup("trl-ppo@1.12")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"gae.gamma": "0.97", "gae.lambda": "0.9"} {
		set = set.With(name, parsed(name, x), "test")
	}
	recursion := func(carry float64, last func(v []float64) float64) func(r, v []float64) []float64 {
		return func(r, v []float64) []float64 {
			a, gae := make([]float64, len(r)), 0.0
			for t := len(r) - 1; t >= 0; t-- {
				next := last(v)
				if t+1 < len(r) {
					next = v[t+1]
				}
				gae = r[t] + testGamma*next - v[t] + carry*gae
				a[t] = gae
			}
			return a
		}
	}
	none := func([]float64) float64 { return 0 }
	for _, c := range []struct {
		id, words string
		of        func(r, v []float64) []float64
	}{
		{"", "", recursion(testGamma*testLambda, none)},
		{"GAE-NO-GAMMA", "with λ, without γ", recursion(testLambda, none)},
		{"GAE-TRUNCATED-BOOTSTRAP", "from its own value", recursion(testGamma*testLambda, func(v []float64) float64 { return v[len(v)-1] })},
		{"GAE-RECURSION", "reversed as if it ran back", func(r, v []float64) []float64 {
			a, gae := make([]float64, len(r)), 0.0
			for t := range r {
				next := 0.0
				if t+1 < len(r) {
					next = v[t+1]
				}
				gae = r[t] + testGamma*next - v[t] + testGamma*testLambda*gae
				a[len(r)-1-t] = gae
			}
			return a
		}},
		{"GAE-PADS", "", nil},
	} {
		g := rand.New(rand.NewPCG(71, 72))
		const rows, cols = 8, 9
		b := rolledOut(true, func(r, _, _, _ []float64, _ float64) []float64 { return r })
		b.Cols, b.Mask = cols, make([]bool, rows*cols)
		b.Files[0].Cols = cols
		x := map[string][]float64{"token_rewards": make([]float64, rows*cols), "values": make([]float64, rows*cols), "returns": make([]float64, rows*cols)}
		for r := range rows {
			lo, n := r*cols, 3+r%7
			for t := range min(n+1, cols) { // the token behind the response has a value and the score
				b.Mask[lo+t] = t < n
				x["values"][lo+t], x["token_rewards"][lo+t] = float64(float32(g.NormFloat64())), float64(float32(g.NormFloat64()))
			}
			of := c.of
			if of == nil { // of values that are not cut off
				of = recursion(testGamma*testLambda, none)
				for t := min(n+1, cols); t < cols; t++ {
					x["values"][lo+t] = float64(float32(g.NormFloat64()))
				}
			}
			for t, a := range of(x["token_rewards"][lo:lo+cols], x["values"][lo:lo+cols]) {
				x["returns"][lo+t] = float64(float32(a + x["values"][lo+t]))
			}
		}
		b.Tensors = map[string]*dump.Tensor{}
		for name, data := range x {
			b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{rows, cols}, Data: data, Type: format.F32}
		}
		o := stage.Judge(stage.Find("gae/returns"), b, set)
		if c.id == "" {
			require.Equal(t, check.Pass, o.Verdict)
			continue
		}
		requireName(t, o, c.id, c.words)
	}
}

// A recursion that begins with another number than 0 is named by that number, or by what all tokens but the last one show of it.
func TestRecursionNotReset(t *testing.T) {
	p, _, err := convention.Lookup("openrlhf-ppo@0.11")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"gae.gamma": "0.97", "gae.lambda": "0.9", "whiten.scope": "none", "gae.hole": "carry"} {
		set = set.With(name, parsed(name, x), "test")
	}
	begin := func(start func(r, v []float64) float64) *dump.Batch {
		b := rolledOut(true, func(r, v, m, _ []float64, _ float64) []float64 {
			a := make([]float64, len(r))
			nextValue, last := 0.0, start(r, v)
			for t := len(r) - 1; t >= 0; t-- {
				if a[t] = last; m[t] == 0 {
					continue
				}
				last = r[t] + testGamma*nextValue - v[t] + testGamma*testLambda*last
				nextValue, a[t] = v[t], last
			}
			return a
		})
		return b
	}
	for _, id := range []string{"gae/advantage", "gae/returns"} {
		judge := func(start func(r, v []float64) float64) *stage.Outcome {
			return stage.Judge(stage.Find(id), begin(start), set)
		}
		require.Equal(t, check.Pass, judge(func(_, _ []float64) float64 { return 0 }).Verdict, id)
		requireName(t, judge(func(r, _ []float64) float64 { return total(r) / float64(len(r)) }), "GAE-NOT-RESET", "over its columns")
		left := 0.0
		requireName(t, judge(func(r, _ []float64) float64 { left += 1.7 + r[1]*r[0]; return left }), "GAE-NOT-RESET", "in every row another number")
	}
}
