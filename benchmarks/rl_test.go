package benchmarks

import (
	"math"
	"testing"

	"plumbline/reference/rl"
)

// The batch of the RL benchmarks: 1,048,576 tokens, whose row i is a response of 768 + 37·i mod 257 tokens. The numbers are
// those of peers/gae.py, so that both sides can be compared: ΣA is a metric of the lines.
const rlRows, rlCols = 1024, 1024

type rlBatch struct {
	reward, value, adv, lp, old, ref []float64
	mask                             []bool
}

func newRLBatch() rlBatch {
	const n = rlRows * rlCols
	fill := func(salt int) []float64 {
		x := make([]float64, n)
		for i := range x {
			x[i] = float64((i+salt)*7919%1009-504) / 331
		}
		return x
	}
	b := rlBatch{reward: fill(1), value: fill(2), adv: fill(3), lp: fill(4), old: fill(5), ref: fill(6), mask: make([]bool, n)}
	for i := range b.mask {
		b.mask[i] = i%rlCols < 768+37*(i/rlCols)%257
		b.lp[i], b.old[i], b.ref[i] = b.lp[i]/4-2, b.old[i]/4-2, b.ref[i]/4-2
	}
	return b
}

// sum is Σ x over the true cells.
func (b *rlBatch) sum(x []float64) (s float64) {
	for i, m := range b.mask {
		if m {
			s += x[i]
		}
	}
	return s
}

// perToken reports the rate and what both sides must agree on.
func perToken(b *testing.B, name string, sum float64) {
	b.ReportMetric(rlRows*rlCols*float64(b.N)/1e6/b.Elapsed().Seconds(), "Mtok/s")
	b.ReportMetric(sum, name)
}

// BenchmarkGAE is advantages and returns under the two loops that frameworks run: none (TRL) and carry (verl).
func BenchmarkGAE(b *testing.B) {
	x := newRLBatch()
	adv, ret := make([]float64, len(x.reward)), make([]float64, len(x.reward))
	for _, hole := range []rl.Hole{rl.HoleNone, rl.HoleCarry, rl.HoleCutNext} {
		b.Run(hole.String(), func(b *testing.B) {
			batch := rl.Rollout{Rows: rlRows, Cols: rlCols, Reward: x.reward, Value: x.value, Mask: x.mask}
			o := rl.GAEOptions{Gamma: .99, Lambda: .95, Hole: hole}
			rl.GAE(adv, ret, batch, o) // touches the pages of adv and ret
			b.ReportAllocs()
			for b.Loop() {
				rl.GAE(adv, ret, batch, o)
			}
			perToken(b, "ΣA", x.sum(adv))
		})
	}
}

// BenchmarkPPO is the clipped token loss with a KL term (k3) and its gradient with respect to the log-probs.
func BenchmarkPPO(b *testing.B) {
	x := newRLBatch()
	var r rl.PolicyResult
	o := rl.PolicyOptions{Clip: rl.ClipOptions{Low: .2, High: .2}, KLBeta: .05, KL: rl.KLOptions{Kind: rl.KLK3}, Agg: rl.AggOptions{Outside: rl.OutsideIgnore}}
	batch := rl.PolicyBatch{Rows: rlRows, Cols: rlCols, LogProbs: x.lp, Old: x.old, Ref: x.ref, Adv: x.adv, Mask: x.mask}
	if err := rl.Policy(&r, batch, o); err != nil { // allocates the slices of r
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := rl.Policy(&r, batch, o); err != nil {
			b.Fatal(err)
		}
	}
	norm := 0.0
	for _, g := range r.DLogp {
		norm += g * g
	}
	b.ReportMetric(math.Sqrt(norm), "|∂L|")
	perToken(b, "L", r.Loss)
}

// BenchmarkWhiten is advantage whitening over the whole batch.
func BenchmarkWhiten(b *testing.B) {
	x := newRLBatch()
	dst := make([]float64, len(x.adv))
	o := rl.WhitenOptions{Scope: rl.ScopeGlobal, Eps: 1e-8, Remask: true, Var: rl.VarOptions{DDof: 1}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := rl.Whiten(dst, x.adv, x.mask, rlRows, rlCols, o); err != nil {
			b.Fatal(err)
		}
	}
	perToken(b, "ΣA²", x.sum(squares(dst)))
}

// BenchmarkGroupAdvantage is 1,048,576 rewards in groups of eight, whose samples are neighbours or dealt out.
func BenchmarkGroupAdvantage(b *testing.B) {
	r := newRLBatch().reward
	adv := make([]float64, len(r))
	dealt := make([]int, len(r))
	for i := range dealt {
		dealt[i] = i % (len(r) / 8)
	}
	for _, c := range []struct {
		name  string
		group []int
	}{{"blocks", rl.GroupBlocks(len(r), 8)}, {"dealt", dealt}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := rl.GroupAdvantage(adv, r, c.group, rl.GroupOptions{Scale: rl.ScaleGroupStd, DDof: 1, Eps: 1e-6}); err != nil {
					b.Fatal(err)
				}
			}
			var s float64
			for _, v := range squares(adv) {
				s += v
			}
			perToken(b, "ΣA²", s)
		})
	}
}

func squares(x []float64) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = v * v
	}
	return y
}
