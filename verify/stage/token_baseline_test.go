package stage_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
)

// The baseline of a token is the mean of the rewards from there on of the responses to one prompt, weighted by the squared norm of their scores so far, as verl
// computes it in float32, with and without importance weights; one that leaves the weights out, or the square of them, is another.
func TestOptimalTokenBaseline(t *testing.T) {
	judged, found := 0, 0
	for seed := range cases(60) {
		tr := newTrainer(uint64(seed))
		b := tr.b
		corrected := seed%2 == 1
		level := "none"
		if corrected {
			level = "token"
		}
		set := options(t, "adv.kind=optimal_token_baseline", "whiten.scope=none", "kl.place=none", "tis.level="+level, "adv.group_by=uid")
		old := tr.grid("logp_old", func(int) float64 { return -3 * tr.r.Float64() })
		reward := tr.grid("token_rewards", func(int) float64 { return tr.r.NormFloat64() })
		square := tr.grid("sum_pi_squared", func(i int) float64 { return math.Exp(2*old[i]) + 0.02 + 0.3*tr.r.Float64() })
		weight := tr.grid("is_weights", func(int) float64 { return 0.5 + tr.r.Float64() })
		id := tr.perRow("group_id", func(r int) float64 { return float64(r / 3) })
		baseline := func(power float64) []float64 {
			n := len(b.Mask)
			togo, w, adv := make([]float32, n), make([]float32, n), make([]float64, n)
			for r := range b.Rows {
				var sum, norm float32
				for k := b.Cols - 1; k >= 0; k-- {
					if i := r*b.Cols + k; b.Mask[i] {
						sum += float32(reward[i])
						togo[i] = sum
					}
				}
				for k := range b.Cols {
					i := r*b.Cols + k
					if b.Mask[i] {
						norm += (1 - 2*tr.exp32(float32(old[i])) + float32(square[i])) * float32(math.Pow(weight[i], power))
					}
					w[i] = norm
				}
			}
			for r := range b.Rows {
				var longest, second float32 = -1, -1
				alone := 0
				for q := range b.Rows {
					if id[q] != id[r] {
						continue
					}
					alone++
					if l := length(b, q); l > longest {
						longest, second = l, longest
					} else {
						second = max(second, l)
					}
				}
				for k := range b.Cols {
					i := r*b.Cols + k
					if !b.Mask[i] {
						continue
					}
					var sum, total float32
					for q := range b.Rows {
						if j := q*b.Cols + k; id[q] == id[r] && b.Mask[j] {
							sum, total = sum+togo[j]*w[j], total+w[j]
						}
					}
					base := sum / (total + 1e-8)
					if alone < 2 || length(b, r) == longest && longest > second && float32(k) >= second {
						base = 0
					}
					adv[i] = float64(togo[i] - base)
				}
			}
			return adv
		}
		power := map[bool]float64{true: 2, false: 0}[corrected]
		tr.put("advantages", baseline(power))
		o := judged32(t, "advantage/return", b, set)
		if o.Verdict == check.Skip {
			continue
		}
		judged++
		require.Equal(t, check.Pass, o.Verdict, "%d: %s", seed, o.Lacking())
		tr.put("advantages", baseline(1))
		if judged32(t, "advantage/return", b, set).Verdict == check.Fail {
			found++
		}
	}
	require.Greater(t, judged, 10)
	require.Greater(t, 3*found, 2*judged) // the others have no two responses to one prompt with a token in one place
}
