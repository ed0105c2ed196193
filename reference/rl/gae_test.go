package rl

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestGAEHoles is one row for which every rule of gae.hole has another answer.
func TestGAEHoles(t *testing.T) {
	value := []float64{-.1, -.3, .2, .6, -.2, .1}
	mask := []bool{true, false, false, true, true, false}
	for _, c := range []struct {
		hole  Hole
		score ScoreIndex
		value ValueMask
		want  []float64
	}{
		{HoleCarry, ScoreLastResponse, ValueResponse, []float64{1.21888, .804, 2.2}},
		{HoleZeroStep, ScoreLastResponse, ValueResponse, []float64{.680027392, .804, 2.2}},
		{HoleCut, ScoreLastResponse, ValueResponse, []float64{.046, .804, 2.2}},
		{HoleCutNext, ScoreLastResponse, ValueResponse, []float64{.1, .804, 2.2}},
		{HoleNone, ScoreEOSPlus1, ValueP1, []float64{.50629109248, .41376, 1.658}},
	} {
		r := TokenRewards(nil, []float64{2}, nil, mask, nil, 1, 6, RewardOptions{Index: c.score})
		adv, _ := GAE(nil, nil, Rollout{Rows: 1, Cols: 6, Reward: r, Value: value, Mask: mask},
			GAEOptions{Gamma: .9, Lambda: .8, Hole: c.hole, Value: c.value})
		require.NoError(t, off(pick(adv, mask), c.want, 1e-12), c.hole)
	}
}

// TestGAESystem has the worked examples of the PPO system: −kl per token, the score at the last token, cut_next.
func TestGAESystem(t *testing.T) {
	for _, c := range []struct {
		score          float64
		kl, value      []float64
		mask           []bool
		gamma, lambda  float64
		adv, ret, want []float64
	}{
		{10, []float64{.1, .2}, []float64{1, 2}, []bool{true, true}, .9, .9,
			[]float64{7.018, 7.8}, []float64{8.018, 9.8}, []float64{-1, 1}},
		{1, []float64{.005, -.01, .02, 0}, []float64{.2, .1, .4, 0}, []bool{true, true, true, false}, .99, .95,
			[]float64{.694826345, .85149, .58, 0}, []float64{.894826345, .95149, .98, 0}, nil},
		{10, []float64{.1, .2}, []float64{1, 2}, []bool{true, false}, .9, .9, []float64{8.9, nan}, []float64{9.9, 0}, nil},
	} {
		n := len(c.kl)
		r := TokenRewards(nil, []float64{c.score}, c.kl, c.mask, nil, 1, n, RewardOptions{Beta: 1})
		adv, ret := GAE(nil, nil, Rollout{Rows: 1, Cols: n, Reward: r, Value: c.value, Mask: c.mask},
			GAEOptions{Gamma: c.gamma, Lambda: c.lambda, Hole: HoleCutNext, Returns: ReturnsMasked})
		require.NoError(t, off(pick(adv, c.mask), pick(c.adv, c.mask), 1e-12))
		require.NoError(t, off(ret, c.ret, 1e-12))
		if c.want != nil {
			white, err := Whiten(nil, adv, c.mask, 1, n, own)
			require.NoError(t, err)
			require.NoError(t, off(white, c.want, 1e-7)) // ε = 1e-8 beside v = .153
		}
	}
}

// drawRollout draws rewards and values with a mask that has holes.
func drawRollout(t *rapid.T) (b Rollout, o GAEOptions) {
	b.Reward, b.Mask, b.Rows, b.Cols = drawBatch(t, 1)
	b.Value = drawCells(t, "value", len(b.Reward))
	// on a grid, since a tiny γλ makes subnormal products, for which scaling by 2 is not exact
	o = GAEOptions{Gamma: float64(rapid.IntRange(0, 100).Draw(t, "100γ")) / 100, Lambda: float64(rapid.IntRange(0, 100).Draw(t, "100λ")) / 100,
		Hole: Hole(rapid.IntRange(0, 4).Draw(t, "hole")), Value: ValueMask(rapid.IntRange(0, 1).Draw(t, "value mask")),
		Returns: ReturnsMask(rapid.IntRange(0, 2).Draw(t, "returns"))}
	return b, o
}

func gaeOf(b Rollout, o GAEOptions) []float64 {
	adv, _ := GAE(nil, nil, b, o)
	return adv
}

// forward is GAE of rows without masked cells as a sum, A_t = Σ_k (γλ)^k·δ_{t+k}.
func forward(b Rollout, o GAEOptions) []float64 {
	adv := make([]float64, len(b.Reward))
	for i := range b.Rows {
		for t := range b.Cols {
			weight := 1.0
			for s := t; s < b.Cols; s++ {
				k := i*b.Cols + s
				end := b.Done != nil && b.Done[k]
				next := 0.0
				switch {
				case end:
				case s+1 < b.Cols:
					next = b.Value[k+1]
				case o.Bootstrap == BootstrapValue && (b.Truncated == nil || b.Truncated[i]):
					next = b.Next[i]
				}
				adv[i*b.Cols+t] += float64(weight * (b.Reward[k] + float64(o.Gamma*next) - b.Value[k]))
				if end {
					break
				}
				weight *= o.Gamma * o.Lambda
			}
		}
	}
	return adv
}

// gaeFunc is GAE, or a wrong version of it.
type gaeFunc func(b Rollout, o GAEOptions) []float64

// gaeLaws checks on one batch the laws that hold for every rule of holes, on rows without masked cells, and returns the
// first that f breaks.
func gaeLaws(f gaeFunc, b Rollout, o GAEOptions) string {
	b.Mask, o.Value = nil, ValueResponse
	const tol = 1e-9
	n := len(b.Reward)
	adv := f(b, o)
	if off(adv, forward(b, o), tol) != nil {
		return "forward view"
	}
	delta, td := make([]float64, n), o
	td.Lambda = 0
	for k := range n {
		delta[k] = b.Reward[k] - b.Value[k]
		if (k+1)%b.Cols != 0 {
			delta[k] += float64(o.Gamma * b.Value[k+1])
		}
	}
	if off(f(b, td), delta, tol) != nil {
		return "λ = 0 is the TD error"
	}
	mc := o
	mc.Lambda = 1
	g := RewardToGo(nil, b.Reward, nil, b.Rows, b.Cols, o.Gamma, HoleCarry)
	for k := range g {
		g[k] -= b.Value[k]
	}
	if off(f(b, mc), g, tol) != nil {
		return "λ = 1 is the discounted return minus V"
	}
	double, shifted := b, b
	double.Reward, double.Value = make([]float64, n), make([]float64, n)
	shifted.Value, shifted.Next = make([]float64, n), make([]float64, b.Rows)
	for k := range n {
		double.Reward[k], double.Value[k] = 2*b.Reward[k], 2*b.Value[k]
		shifted.Value[k] = b.Value[k] + 3
	}
	for k, a := range f(double, o) {
		if a != 2*adv[k] {
			return "scale 2"
		}
	}
	// potential shaping: r_t += γΦ_{t+1} − Φ_t and V_t −= Φ_t, with Φ = 3 − … the bootstrap V = −Φ after the end
	boot, base := o, b
	boot.Bootstrap = BootstrapValue
	base.Next = make([]float64, b.Rows)
	shaped := base
	shaped.Reward, shaped.Value, shaped.Next = make([]float64, n), make([]float64, n), make([]float64, b.Rows)
	phi := func(t int) float64 { return float64(t%3) - .5 }
	for k := range n {
		t := k % b.Cols
		shaped.Reward[k] = b.Reward[k] + float64(o.Gamma*phi(t+1)) - phi(t)
		shaped.Value[k] = b.Value[k] - phi(t)
	}
	for i := range b.Rows {
		shaped.Next[i] = -phi(b.Cols)
	}
	if off(f(shaped, boot), f(base, boot), tol) != nil {
		return "potential shaping"
	}
	// a constant added to V and to the bootstrap
	for i := range b.Rows {
		shifted.Next[i] = 3
	}
	was := f(base, boot)
	for k, a := range f(shifted, boot) {
		sum, weight := 0.0, 1.0
		for s := k % b.Cols; s < b.Cols; s++ {
			sum += weight
			weight *= o.Gamma * o.Lambda
		}
		if !(math.Abs(a-(was[k]-(1-o.Gamma)*3*sum)) <= tol) {
			return "constant added to V"
		}
	}
	// a done flag isolates; what is before it depends on nothing after it
	at := b.Cols / 2
	cut, junk := b, b
	cut.Done = make([]bool, n)
	for i := range b.Rows {
		cut.Done[i*b.Cols+at] = true
	}
	junk.Done, junk.Reward = cut.Done, append([]float64{}, b.Reward...)
	for k := range n {
		if k%b.Cols > at {
			junk.Reward[k] = 1e6
		}
	}
	here, there := f(cut, o), f(junk, o)
	for k := range n {
		if k%b.Cols <= at && here[k] != there[k] {
			return "done isolates"
		}
	}
	if off(here, forward(cut, o), tol) != nil {
		return "forward view with done"
	}
	// suffix: A from t on depends on inputs from t on
	junk = b
	junk.Reward = append([]float64{}, b.Reward...)
	for k := range n {
		if k%b.Cols < at {
			junk.Reward[k] = nan
		}
	}
	there = f(junk, o)
	for k := range n {
		if k%b.Cols >= at && adv[k] != there[k] {
			return "suffix"
		}
	}
	zero := b
	zero.Reward, zero.Value = make([]float64, n), make([]float64, n)
	for _, a := range f(zero, o) {
		if a != 0 {
			return "zero gives zero"
		}
	}
	return ""
}

func TestGAELaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, o := drawRollout(t)
		if law := gaeLaws(gaeOf, b, o); law != "" {
			t.Fatal(law)
		}
	})
}

func TestGAELawsReject(t *testing.T) {
	faults := map[string]func(b Rollout, o GAEOptions) []float64{
		"γ left out":      func(b Rollout, o GAEOptions) []float64 { o.Gamma = 1; return gaeOf(b, o) },
		"λ left out":      func(b Rollout, o GAEOptions) []float64 { o.Lambda = 1; return gaeOf(b, o) },
		"γ² for γλ":       func(b Rollout, o GAEOptions) []float64 { o.Lambda = o.Gamma; return gaeOf(b, o) },
		"done ignored":    func(b Rollout, o GAEOptions) []float64 { b.Done = nil; return gaeOf(b, o) },
		"bootstrap lost":  func(b Rollout, o GAEOptions) []float64 { o.Bootstrap = BootstrapNone; return gaeOf(b, o) },
		"left to right":   func(b Rollout, o GAEOptions) []float64 { return reversed(gaeOf(flipped(b), o), b.Cols) },
		"V of the row":    func(b Rollout, o GAEOptions) []float64 { b.Value = b.Reward; return gaeOf(b, o) },
		"returns for adv": func(b Rollout, o GAEOptions) []float64 { _, r := GAE(nil, nil, b, o); return r },
		"row follows row": func(b Rollout, o GAEOptions) []float64 {
			b.Rows, b.Cols = 1, b.Rows*b.Cols
			b.Next = b.Next[:min(1, len(b.Next))]
			return gaeOf(b, o)
		},
	}
	b := Rollout{Rows: 2, Cols: 4, Reward: []float64{1, 0, 2, -1, .5, .25, 3, 1}, Value: []float64{.1, .2, -.3, .4, 1, -1, .5, .7}}
	o := GAEOptions{Gamma: .9, Lambda: .7}
	require.Empty(t, gaeLaws(gaeOf, b, o))
	for name, f := range faults {
		require.NotEmpty(t, gaeLaws(f, b, o), name)
	}
}

// flipped and reversed turn the rows around.
func flipped(b Rollout) Rollout {
	b.Reward, b.Value = reversed(b.Reward, b.Cols), reversed(b.Value, b.Cols)
	return b
}

func reversed(x []float64, cols int) []float64 {
	y := make([]float64, len(x))
	for k := range x {
		y[k] = x[k-k%cols+cols-1-k%cols]
	}
	return y
}

// TestGAEMasked has the laws of masked cells.
func TestGAEMasked(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, o := drawRollout(t)
		o.Value, o.Returns = ValueResponse, ReturnsRaw
		adv, ret := GAE(nil, nil, b, o)

		// padding of any content after a row leaves its true cells bitwise; the length mask of none would let it in
		padded := Rollout{Rows: b.Rows, Cols: b.Cols + 2}
		for i := range b.Rows {
			padded.Reward = append(append(padded.Reward, row(b.Reward, i, b.Cols)...), nan, 1e6)
			padded.Value = append(append(padded.Value, row(b.Value, i, b.Cols)...), nan, -1e6)
			padded.Mask = append(append(padded.Mask, row(b.Mask, i, b.Cols)...), false, false)
		}
		if o.Hole != HoleNone {
			more, moreRet := GAE(nil, nil, padded, o)
			if !sameBits(pick(more, padded.Mask), pick(adv, b.Mask)) || !sameBits(pick(moreRet, padded.Mask), pick(ret, b.Mask)) {
				t.Fatal("padding")
			}
		}

		bad := b
		bad.Reward, bad.Value = poison(b.Reward, b.Mask), poison(b.Value, b.Mask)
		dirty := gaeOf(bad, o)
		switch o.Hole {
		case HoleCarry:
			if !sameBits(dirty, adv) {
				t.Fatal("contamination under carry")
			}
			for i := range b.Rows { // a row with holes is the row without them
				m := row(b.Mask, i, b.Cols)
				r, v := pick(row(b.Reward, i, b.Cols), m), pick(row(b.Value, i, b.Cols), m)
				if !sameBits(gaeOf(Rollout{Rows: 1, Cols: len(r), Reward: r, Value: v}, o), pick(row(adv, i, b.Cols), m)) {
					t.Fatal("compressed row")
				}
			}
		case HoleZeroStep:
			if !sameBits(pick(dirty, b.Mask), pick(adv, b.Mask)) || !sameBits(dirty, adv) {
				t.Fatal("contamination under zero_step")
			}
		case HoleCutNext:
			if !sameBits(pick(dirty, b.Mask), pick(adv, b.Mask)) {
				t.Fatal("contamination under cut_next")
			}
		case HoleCut:
			for i := range b.Rows { // only the true cell before a hole may see it, and what it hands on to the left
				last := lastTrue(row(b.Mask, i, b.Cols), b.Cols)
				for k := i*b.Cols + last; last >= 0 && k >= i*b.Cols && b.Mask[k]; k-- {
					if dirty[k] != adv[k] {
						t.Fatal("contamination of the last run under cut")
					}
				}
			}
		}

		// returns, and GAE in place
		for k := range ret {
			if ret[k] != adv[k]+b.Value[k] {
				t.Fatal("returns = A + V")
			}
		}
		o.Returns = ReturnsMasked
		_, masked := GAE(nil, nil, b, o)
		for k, m := range b.Mask {
			if m && masked[k] != ret[k] || !m && masked[k] != 0 {
				t.Fatal("returns.remask")
			}
		}
		if !sameBits(Returns(nil, adv, b, o), masked) {
			t.Fatal("Returns of raw advantages")
		}
		copied := b
		copied.Reward, copied.Value = append([]float64{}, b.Reward...), append([]float64{}, b.Value...)
		if a, r := GAE(copied.Reward, copied.Value, copied, o); !sameBits(a, adv) || !sameBits(r, masked) {
			t.Fatal("in place")
		}
	})
}

// GAE is the recursion over the steps, bit by bit, whether a row has holes or not.
func TestGAEIsItsSteps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows, cols := rapid.IntRange(1, 3).Draw(t, "rows"), rapid.IntRange(1, 9).Draw(t, "cols")
		n := rows * cols
		numbers := func(name string, n int) []float64 {
			return rapid.SliceOfN(rapid.Float64Range(-3, 3), n, n).Draw(t, name)
		}
		b := Rollout{Rows: rows, Cols: cols, Reward: numbers("reward", n), Next: numbers("next", rows)}
		if rapid.Bool().Draw(t, "critic") {
			b.Value = numbers("value", n)
		}
		switch rapid.IntRange(0, 2).Draw(t, "mask") {
		case 1:
			b.Mask = rapid.SliceOfN(rapid.Bool(), n, n).Draw(t, "holes")
		case 2:
			b.Mask = make([]bool, n)
			for i := range rows {
				for c := range rapid.IntRange(0, cols).Draw(t, "length") {
					b.Mask[i*cols+c] = true
				}
			}
		}
		if rapid.IntRange(0, 3).Draw(t, "packed") == 0 {
			b.Done = rapid.SliceOfN(rapid.Bool(), n, n).Draw(t, "done")
		}
		o := GAEOptions{Gamma: rapid.SampledFrom([]float64{1, .99}).Draw(t, "gamma"), Lambda: rapid.SampledFrom([]float64{1, .95, 0}).Draw(t, "lambda"), Alpha: .05,
			Hole: Hole(rapid.IntRange(0, len(holes.names)-1).Draw(t, "hole")), Value: ValueMask(rapid.IntRange(0, 1).Draw(t, "value mask")),
			LambdaPolicy: LambdaPolicy(rapid.IntRange(0, 1).Draw(t, "policy")), Bootstrap: Bootstrap(rapid.IntRange(0, 1).Draw(t, "bootstrap")),
			Returns: ReturnsMask(rapid.IntRange(0, 2).Draw(t, "returns"))}
		adv, ret := GAE(nil, nil, b, o)
		want := make([]float64, n)
		for s := range o.Steps(b) {
			var a float64
			if s.Next >= 0 {
				a = want[s.Next]
			}
			if s.Step {
				gl := s.Gamma * s.Lambda
				a = s.R + float64(s.Gamma*s.NextV) - s.V + float64(gl*a)
			}
			want[s.Cell] = a
			require.Equal(t, returnAt(a, s.Raw, s.True, s.Value, o.Returns), ret[s.Cell])
		}
		require.Equal(t, want, adv)
	})
}
