package stage

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// entropyCells are the tokens of one micro-batch whose losses are −A·ρ where the entropy reaches the quantile 1 − share, as float64 has it, else 0.
func entropyCells(file int, share float64, h ...float64) (cells []lossCell) {
	sorted := slices.Sorted(slices.Values(h))
	rank := (1 - share) * float64(len(h)-1)
	k := int(rank)
	limit := sorted[k] + (rank-float64(k))*(sorted[min(k+1, len(h)-1)]-sorted[k])
	for _, x := range h {
		c := lossCell{adv: 1, rho: 1, lp: -1, w: 1, u: 1e-7, file: file, h: x}
		if x >= limit {
			c.loss = -1
		}
		cells = append(cells, c)
	}
	return cells
}

func TestShareOfHighEntropyIsReadOffTheTokensThatAreKept(t *testing.T) {
	in := func(share float64, cells ...[]lossCell) {
		v := topEntropy(slices.Concat(cells...), 0, "")
		require.True(t, v.n > 0 && v.lo <= share && share <= v.hi, "%v of %v", share, v)
	}
	apart := entropyCells(0, 0.4, 3.1, 3.2, 3.3, 3.4, 3.5, 3.6, 3.7, 3.8, 3.9, 4)
	in(0.4, apart)
	in(0.4, apart, entropyCells(1, 0.4, 3, 3.1, 3.2, 3.3, 3.4, 3.5, 3.5, 3.5, 3.9, 4)) // first tokens of one prompt have one entropy
	faint := slices.Clone(apart)
	faint[9].adv, faint[9].loss = 1e-9, 0.25 // the KL term alone shows
	faint[9].k, faint[9].u = 2.5, 1e-4
	v := topEntropy(faint, 0.1, "outside")
	require.True(t, v.n > 0 && v.lo <= 0.4 && 0.4 <= v.hi, "a token whose term is too small to show is neither kept nor left out: %v", v)
	odd := slices.Clone(apart)
	odd[9].loss = 0
	require.Zero(t, topEntropy(odd, 0, "").n)
}
