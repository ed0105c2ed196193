package stage

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
)

// klFamilies draw log-probs of the policy and what separates the others from them.
var klFamilies = map[string]func(r *rand.Rand) (lp, gap float64){
	"close":     func(r *rand.Rand) (float64, float64) { return -3 * r.ExpFloat64(), 1e-3 * r.NormFloat64() },
	"apart":     func(r *rand.Rand) (float64, float64) { return -2 * r.ExpFloat64(), 0.5 * r.NormFloat64() },
	"far":       func(r *rand.Rand) (float64, float64) { return -10 * r.Float64(), 8 * r.NormFloat64() },
	"unlikely":  func(r *rand.Rand) (float64, float64) { return -1000 * r.Float64(), r.NormFloat64() },
	"identical": func(r *rand.Rand) (float64, float64) { return -r.ExpFloat64(), 0 },
}

// kl32 is the estimator in float32, in the order in which TRL, verl and OpenRLHF write it.
func kl32(r *rand.Rand, kind string, lp, ref, old float32, clampIn, clampOut float32, corrected bool) float32 {
	x := ref - lp
	if clampIn > 0 {
		x = max(min(x, clampIn), -clampIn)
	}
	var k float32
	switch kind {
	case "k1":
		k = -x
	case "k2":
		k = x * x * 0.5
	case "k3":
		if r.IntN(2) == 0 {
			k = exp32(r, x) - x - 1
		} else {
			k = exp32(r, x) - 1 - x
		}
	case "abs":
		k = float32(math.Abs(float64(x)))
	case "ratio_d":
		k = -x
	}
	if clampOut > 0 {
		k = max(min(k, clampOut), -clampOut)
	}
	if corrected || kind == "ratio_d" {
		k *= exp32(r, lp-old)
	}
	return k
}

func klBatch(r *rand.Rand, draw func(*rand.Rand) (float64, float64), rows, cols int) grid {
	g := randomGrid(r, rows, cols, true)
	n := len(g.Mask)
	lp, ref, old := make([]float64, n), make([]float64, n), make([]float64, n)
	for i := range lp {
		x, gap := draw(r)
		_, more := draw(r)
		lp[i], ref[i], old[i] = float64(f32(x)), float64(f32(x+gap)), float64(f32(x-more/10))
	}
	return g.token("logp_new", lp...).token("logp_ref", ref...).token("logp_old", old...)
}

func TestKLBound(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	w := worst{}
	for _, family := range sorted(klFamilies) {
		draw := klFamilies[family]
		for _, kind := range []string{"k1", "k2", "k3", "abs", "ratio_d"} {
			for _, opt := range []struct {
				text      string
				in, out   float32
				corrected bool
				through   bool // k + s − s, OpenRLHF's unbiased_gradient
			}{
				{"kl.clamp_in=none kl.clamp_out=none kl.grad=naive", 0, 0, false, false},
				{"kl.clamp_in=none kl.clamp_out=none kl.grad=is_corrected", 0, 0, true, false},
				{"kl.clamp_in=20 kl.clamp_out=10 kl.clamp_applies_to_k1=true kl.grad=score_function", 20, 10, false, false},
				{"kl.clamp_in=none kl.clamp_out=none kl.grad=straight_through_k2 kl.is_cap=10", 0, 0, false, true},
			} {
				if opt.through && kind == "ratio_d" { // its gradient is its own
					continue
				}
				s := set(t, "kl.place=loss ratio.level=token ratio.log_clamp=none ratio.old=stored kl.kind="+kind+" "+opt.text)
				for range 30 {
					g := klBatch(r, draw, 1+r.IntN(4), 1+r.IntN(12))
					lp, ref, old := g.Token("logp_new"), g.Token("logp_ref"), g.Token("logp_old")
					kl := make([]float64, len(lp))
					for i := range kl {
						kl[i] = float64(kl32(r, kind, f32(lp[i]), f32(ref[i]), f32(old[i]), opt.in, opt.out, opt.corrected))
						if opt.through {
							d := f32(lp[i]) - f32(ref[i])
							s := float32(min(exp32(r, f32(lp[i])-f32(old[i])), 10) * (d * d / 2)) // not fused with the sum
							sum := f32(kl[i]) + s
							kl[i] = float64(sum - s)
						}
						if !g.Mask[i] {
							kl[i] = math.NaN()
						}
					}
					if o := Judge(Find("kl/token"), g.token("kl", kl...).Batch, s); o.Tally.N+o.Exact > 0 {
						w.add(t, family, "kl/token", g.Batch, s)
					}
				}
			}
		}
	}
	w.tight(t)
}

func TestKLOfSequences(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 3))
	w := worst{}
	s := set(t, "kl.place=sequence_reward_before_baseline kl.kind=k1 kl.clamp_in=none kl.clamp_out=none kl.reduce=sequence_sum")
	for range 2000 {
		g := klBatch(r, klFamilies["apart"], 1+r.IntN(4), 1+r.IntN(40))
		kl := make([]float64, g.Rows)
		for i := range kl {
			var d []float32
			for k := i * g.Cols; k < (i+1)*g.Cols; k++ {
				if g.Mask[k] {
					d = append(d, f32(g.Token("logp_old")[k])-f32(g.Token("logp_ref")[k]))
				}
			}
			kl[i] = float64(sums32(r)(d))
		}
		w.add(t, "sums", "kl/token", g.row("kl", kl...).Batch, s)
	}
	w.tight(t)
}

func TestKLFindsFaults(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 4))
	const right = "kl.place=loss ratio.level=token ratio.log_clamp=none ratio.old=stored kl.kind=k3 kl.clamp_in=none kl.clamp_out=none kl.grad=naive"
	g := klBatch(r, klFamilies["apart"], 4, 12)
	lp, ref, old := g.Token("logp_new"), g.Token("logp_ref"), g.Token("logp_old")
	wrong := func(f func(i int) float64) *dump.Batch {
		kl := make([]float64, len(lp))
		for i := range kl {
			kl[i] = f(i)
		}
		return g.token("kl", kl...).Batch
	}
	k3 := func(d float64) float64 { return math.Exp(-d) - 1 + d }
	s := set(t, right)
	fails(t, "kl/token", wrong(func(i int) float64 { return k3(ref[i] - lp[i]) }), s)
	fails(t, "kl/token", wrong(func(i int) float64 { return k3(old[i] - ref[i]) }), s)
	fails(t, "kl/token", wrong(func(i int) float64 { return lp[i] - ref[i] }), s)
	fails(t, "kl/token", wrong(func(i int) float64 { return k3(lp[i]-ref[i]) * math.Exp(lp[i]-old[i]) }), s)
	fails(t, "kl/token", wrong(func(i int) float64 { return k3(lp[i]-ref[i]) + 3e-6 }), s)
	fails(t, "kl/token", wrong(func(i int) float64 { return math.NaN() }), s)
	fails(t, "kl/token", wrong(func(i int) float64 { return k3(lp[i] - ref[i]) }), set(t, "kl.grad=is_corrected "+right).With("kl.grad", mustParse(t, "kl.grad", "is_corrected"), "test"))
	o := Judge(Find("kl/token"), wrong(func(i int) float64 { return k3(lp[i] - ref[i]) }), s)
	require.Equal(t, check.Pass, o.Verdict)
	require.Less(t, o.Tally.Resolution(), 1e-6)
}

func TestKLNeeds(t *testing.T) {
	g := klBatch(rand.New(rand.NewPCG(1, 5)), klFamilies["apart"], 2, 4)
	g.token("kl", make([]float64, 8)...)
	lacks(t, "kl/token", g.Batch, set(t, ""), "kl.place")
	lacks(t, "kl/token", g.Batch, set(t, "kl.place=loss"), "kl.kind")
	lacks(t, "kl/token", g.Batch, set(t, "kl.place=token_reward kl.kind=seq_prob"), "per sequence")
	lacks(t, "kl/token", g.Without("logp_ref"), set(t, "kl.place=token_reward kl.kind=k1 kl.clamp_in=none kl.clamp_out=none"), "logp_ref")
	// Overflow: float32 holds +Inf, and so should the reference.
	g = newGrid(1, 1).token("logp_old", -1).token("logp_ref", 120).token("kl", math.Inf(1))
	o := Judge(Find("kl/token"), g.Batch, set(t, "kl.place=token_reward kl.kind=k3 kl.clamp_in=none kl.clamp_out=none"))
	require.Equal(t, check.Pass, o.Verdict)
	require.Equal(t, 1, o.Exact)
}
