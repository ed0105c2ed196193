package fault_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/stage"
)

// Groups of other rows are named in advantages of scores, of rewards with their KL, and of what is whitened thereafter.
func TestOtherGroupsOfRewards(t *testing.T) {
	const g, n = 4, 6
	kl := make([]float64, g*n)
	for r := range kl {
		kl[r] = float64(float32(math.Abs(noise(r))))
	}
	rewards := map[string]struct {
		beta  float64
		white bool
		set   []string
	}{
		"scores":         {0, false, nil},
		"with their KL":  {0.5, false, []string{"kl.place", "sequence_reward_before_baseline", "kl.beta", "0.5", "kl.kind", "k1"}},
		"whitened after": {0, true, []string{"whiten.scope", "global", "whiten.mask", "response", "whiten.ddof", "1", "whiten.eps", "0", "whiten.eps_place", "add_std", "whiten.shift_mean", "true"}},
	}
	bugs := map[string]struct {
		id, words string
		of, from  func(k int) int // the set of an answer, and the answer whose mean it is given
		at        func(k int) int // the answer whose advantage it is given
	}{
		"":           {"", "", func(k int) int { return k / g }, nil, nil},
		"blocks":     {"ADV-GROUPS-INTERLEAVED", "the axes of the table are exchanged", func(k int) int { return k / n }, nil, nil},
		"two":        {"ADV-WRONG-GROUPS", "", func(k int) int { return k / (2 * g) }, nil, nil},
		"half":       {"ADV-OTHER-GROUP", "half of each group", func(k int) int { return k / (g / 2) }, nil, nil},
		"transposed": {"ADV-GROUPS-INTERLEAVED", "every n-th answer; and the advantages are taken from a table", func(k int) int { return k % n }, nil, func(k int) int { return k%g*n + k/g }},
		"before":     {"ADV-OTHER-GROUP", "baselines are those of the group before", func(k int) int { return k / g }, func(k int) int { return (k + g*n - g) % (g * n) }, nil},
	}
	for kind, of := range rewards {
		for name, bug := range bugs {
			b := grouped([]int{g, g, g, g, g, g}, func(r, id []float64) []float64 {
				slices.Sort(id)
				x, sets, adv := make([]float64, len(r)), make([]float64, len(r)), make([]float64, len(r))
				for k := range r {
					x[k], sets[k] = r[k]-of.beta*kl[k], float64(bug.of(k))
				}
				m, _ := groupMoments(x, sets)
				for k := range adv {
					from := k
					if bug.from != nil {
						from = bug.from(k)
					}
					adv[k] = x[k] - m[from]
				}
				if bug.at != nil {
					was := slices.Clone(adv)
					for k := range adv {
						adv[k] = was[bug.at(k)]
					}
				}
				if of.white {
					m, s := groupMoments(adv, make([]float64, len(adv)))
					for k := range adv {
						adv[k] = (adv[k] - m[k]) / s[k]
					}
				}
				return adv
			})
			b.Tensors["kl"] = &dump.Tensor{Name: "kl", Layout: dump.PerToken, Width: 1, Shape: []int{g * n, 1}, Data: kl, Type: format.F32}
			if of.white {
				b.Tensors["advantages"].Layout, b.Tensors["advantages"].Shape = dump.PerToken, []int{g * n, 1}
			}
			o := stage.Judge(stage.Find("advantage/group"), b, groupSet(t, append([]string{"adv.scale", "none"}, of.set...)...))
			if name == "" {
				require.Equal(t, check.Pass, o.Verdict, kind, o.Lacking())
				continue
			}
			if kind == "scores" && name == "before" { // as the catalogue says it
				bug.words = ""
			}
			if of.beta == 0 && name == "transposed" { // scores of other rows have the right groups
				bug.id, bug.words = "REWARD-OF-OTHER-ROW", ""
			}
			requireFirst(t, o, bug.id, bug.words)
		}
	}
}
