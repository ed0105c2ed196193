package stage_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/tol"
)

// sunken draws log-probs whose weights are subnormal numbers of float32 in about half of the rows: ratios of e^−86 to e^−103, of vespo
// row sums near 3.8, where exp(λ·(1 − W)) is as small.
func (t *trainer) sunken(f *family) {
	t.logprobs(0)
	lp, b := t.b.Token("logp_new"), t.b
	depth := make([]float64, b.Rows)
	for r := range depth {
		switch {
		case t.r.IntN(2) == 0:
		case f.name == "vespo":
			depth[r] = -(3.7 + 0.3*t.r.Float64()) / float64(max(counted(b.Mask[r*b.Cols:(r+1)*b.Cols]), 1))
		default:
			depth[r] = 86 + 17*t.r.Float64()
		}
	}
	t.grid("logp_old", func(i int) float64 { return lp[i] + depth[i/b.Cols] })
	t.grid("advantages", func(int) float64 { return 3 * t.r.ExpFloat64() })
	t.grid("is_weights", func(int) float64 { return math.Exp(t.r.NormFloat64()) })
}

func counted(mask []bool) (n int) {
	for _, m := range mask {
		if m {
			n++
		}
	}
	return n
}

func TestLossesWhoseWeightsUnderflow(t *testing.T) {
	all := reductions()
	subnormal := 0
	for k, f := range families() {
		if f.name == "dro" || f.name == "reinforce" || f.beta != 0 { // no exponential; a KL term hides what underflows
			continue
		}
		for seed := range cases(200) {
			tr := newTrainer(uint64(seed))
			tr.sunken(&f)
			a := all[(seed+k)%len(all)]
			if a.kind == "luspo" && f.level != "token" {
				a = all[0]
			}
			set := a.set(t, f.set(t))
			token, rho, n := tr.losses(&f)
			tr.backward(&f, token, rho, n, a.weights(tr.b, tr.micro))
			for _, id := range []string{"token_loss/policy", "gradient/dlogp"} {
				o := judged32(t, id, tr.b, set)
				require.NotEqual(t, check.Fail, o.Verdict, "%s, %s, seed %d: %+v", f.name, id, seed, o.Tally)
				for i, x := range o.Pred.Want {
					if tr.b.Mask[i] && x != 0 && math.Abs(x) < 0x1p-126 {
						subnormal++
						require.Less(t, o.Pred.Bound[i], 1e4*tol.Eta32, "%s, %s, seed %d, element %d", f.name, id, seed, i)
					}
				}
			}
		}
	}
	require.Greater(t, subnormal, 1000)
}

// What underflows is far below what a token of a lost weight would be: the bound does not hide one.
func TestAWeightThatIsNoneIsSeenAmongThoseThatUnderflow(t *testing.T) {
	for _, f := range families() {
		if f.name != "vespo" && f.name != "cispo" {
			continue
		}
		tr := newTrainer(5)
		tr.sunken(&f)
		tr.losses(&f)
		loss := tr.b.Token("token_loss")
		at := slices.IndexFunc(loss, func(x float64) bool { return x != 0 && math.Abs(x) < 0x1p-126 })
		require.GreaterOrEqual(t, at, 0, f.name)
		loss[at] -= 1e-30
		require.Equal(t, check.Fail, judged32(t, "token_loss/policy", tr.b, f.set(t)).Verdict, f.name)
	}
}
