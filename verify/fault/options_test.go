package fault_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/fault"
)

// What a bug would be is told in options: other words of one, several that stand together, and the written ranges that some scores are outside of.
func TestConfiguredAs(t *testing.T) {
	b := &dump.Batch{Rows: 3, Cols: 1, Mask: []bool{true, true, true}, Tensors: map[string]*dump.Tensor{"scores": {Name: "scores", Layout: dump.PerRow, Width: 1, Data: []float64{-1, 0.25, 0.75}}}}
	text := func(id string) (list []string) {
		for _, changes := range fault.ConfiguredAs(id, b, &convention.Set{}) {
			line := ""
			for _, c := range changes {
				line += c.Option + "=" + c.To.String() + " "
			}
			list = append(list, line)
		}
		return list
	}
	require.Equal(t, []string{"adv.scale=none ", "whiten.eps_place=no_std "}, text("ADV-NOT-SCALED"))
	require.Contains(t, text("REWARD-CLIP-MISSING"), "reward.clip=before_baseline reward.clip_range=-0.5,0.5 ")
	require.NotContains(t, text("REWARD-CLIP-MISSING"), "reward.clip=before_baseline reward.clip_range=-2,2 ", "nothing is outside")
	require.Contains(t, text("KL-OF-NEW"), "kl.place=none kl.kind=k3 ")
	require.Contains(t, text("KL-OF-NEW"), "kl.place=loss kl.kind=k1 kl.grad=straight_through_k2 kl.is_cap=10 ")
	require.Contains(t, text("ADV-NORMALISED-TWICE"), "whiten.scope=global whiten.mask=response whiten.shift_mean=true whiten.remask=false whiten.eps_place=no_std ")
	require.Empty(t, text("LOSS-SIGN"))
}
