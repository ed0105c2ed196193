package dump

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// Where nothing is declared the gradients of values are judged before a loss that holds their loss.
func TestGradientsOfValuesComeBeforeTheLoss(t *testing.T) {
	s := &session{}
	for _, id := range []string{"gae/advantage", "gae/returns", "aggregate/loss", "gradient/dlogp", "gradient/dvalues"} {
		s.tracks = append(s.tracks, &track{check: stage.Find(id)})
	}
	order := func(names ...string) (ids []string) {
		b := &dump.Batch{Tensors: map[string]*dump.Tensor{}}
		for _, name := range names {
			b.Tensors[name] = &dump.Tensor{}
		}
		for _, t := range s.order(b) {
			ids = append(ids, t.check.ID)
		}
		return ids
	}
	require.Equal(t, []string{"gae/advantage", "gae/returns", "gradient/dvalues", "aggregate/loss", "gradient/dlogp"}, order("dvalues"))
	require.Equal(t, []string{"gae/advantage", "gae/returns", "aggregate/loss", "gradient/dlogp", "gradient/dvalues"}, order("dvalues", "value_loss"))
	s.profile = convention.Profiles()[0]
	require.Equal(t, "aggregate/loss", order("dvalues")[2])
}
