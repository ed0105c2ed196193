package stage

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// Groups of two show a range of scores that both of its ends hold, and a step most of whose rows are held is told by the ends that others show. RLOO of TRL 1.16.0
// with normalize_advantages and reward_clip_range.
func TestBoundsOfGroupsOfTwo(t *testing.T) {
	for _, beta := range []float64{0, 0.05} {
		g := GroupScores{}
		for step, s := range [][]float64{{0.1, 0.4, -0.2, 0.3, 0.05, 0.9, 0.66, 1.01}, {0.4, 0.7, 0.36, -0.35, -0.7, 0.44, -0.12, 0.07}, {0.2, 0.5, -0.1, 0.35, 0.31, 0.8, 0, -0.9}} {
			k, a := make([]float64, len(s)), make([]float64, len(s))
			held := func(i int) float64 { return min(max(s[i], -0.3), 0.6) - beta*k[i] }
			for i := range s {
				s[i], k[i] = float64(float32(s[i])), float64(float32(0.7*math.Sin(float64(5*i*i+step))))
			}
			for i := range s {
				a[i] = held(i) - held(i^1)
			}
			sigma := math.Sqrt(momentsOf(a, nil, 1, 0, 0).v)
			for i := range a {
				a[i] = float64(float32(a[i] / (sigma + 1e-4)))
			}
			b := &dump.Batch{Rows: 8, Cols: 1, Mask: make([]bool, 8), Origin: make([]dump.Origin, 8), Files: []dump.FileInfo{{Name: "f", Hi: 8, Cols: 1}}, Tensors: map[string]*dump.Tensor{}}
			b.Meta.Step = step
			for i := range b.Mask {
				b.Mask[i] = true
			}
			for name, x := range map[string][]float64{"scores": s, "advantages": a, "kl": k, "group_id": {0, 0, 1, 1, 2, 2, 3, 3}} {
				b.Tensors[name] = &dump.Tensor{Name: name, Data: x, Layout: dump.PerRow, Width: 1, Type: format.F32, Shape: []int{8}}
			}
			g.Add(b)
		}
		shown := g.Changes(&convention.Set{})
		require.NotEmpty(t, shown, "%v", beta)
		got := texts(shown[0])
		require.Equal(t, "-0.3,0.6 batch_std 1e-4", got["reward.clip_range"]+" "+got["adv.scale"]+" "+got["adv.eps"], "%v", beta)
		if beta > 0 {
			require.Equal(t, "0.05", got["kl.beta"])
		}
	}
}
