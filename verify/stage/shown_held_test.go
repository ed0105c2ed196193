package stage

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// Advantages that are held in a range behind a division by the deviation of their group show both, also where the scores of some group are equal (OpenRLHF 0.11.2,
// group_norm and reward.clip_range).
func TestRangesBehindTheDeviation(t *testing.T) {
	for ddof := range 2 {
		score, id, adv := []float64{1, 0, 0, 0, 3, 1, 2, 0, 1, 1, 1, 1}, make([]float64, 12), make([]float64, 12)
		for g := 0; g < 12; g += 4 {
			m := momentsOf(score[g:g+4], nil, ddof, 0, 0)
			for r := g; r < g+4; r++ {
				id[r] = float64(g)
				adv[r] = float64(float32(min(max((score[r]-m.mean)/(math.Sqrt(m.v)+1e-9), -0.8), 0.8)))
			}
		}
		b := &dump.Batch{Rows: 12, Cols: 1, Mask: make([]bool, 12), Origin: make([]dump.Origin, 12), Files: []dump.FileInfo{{Name: "f", Hi: 12, Cols: 1}}, Tensors: map[string]*dump.Tensor{}}
		for r := range b.Mask {
			b.Mask[r] = true
		}
		for name, x := range map[string][]float64{"scores": score, "group_id": id, "advantages": adv} {
			b.Tensors[name] = &dump.Tensor{Name: name, Data: x, Layout: dump.PerRow, Width: 1, Type: format.F32, Shape: []int{12}}
		}
		shown := Shown(Find("advantage/group"), b, &convention.Set{})
		require.NotEmpty(t, shown)
		got := texts(shown[0])
		require.Equal(t, []string{"group_std", "after_baseline", "-0.8,0.8"}, []string{got["adv.scale"], got["reward.clip"], got["reward.clip_range"]}, "%v", shown)
		require.Equal(t, map[int]string{0: "0", 1: "1"}[ddof], got["adv.ddof"])
	}
}
