package golden_test

import (
	"testing"

	"plumbline/reference/rl"

	"github.com/stretchr/testify/require"
)

func TestValueLoss(t *testing.T) {
	compared := map[string]int{}
	for _, e := range load(t, "value_loss") {
		v, old, returns := e.input(t, "vpreds").Data, e.input(t, "values").Data, e.input(t, "returns").Data
		mask := e.input(t, "response_mask")
		rows, cols := mask.dims(t)
		var o rl.ValueOptions
		switch e.Peer {
		case "verl":
			o.Clip, _ = e.num(t, "cliprange_value")
			o.Agg = verlAgg(t, e, e.str(t, "loss_agg_mode"))
		case "openrlhf":
			o.Clip, _ = e.num(t, "clip_eps")
			o.Agg = openrlhfAgg(t, e)
		}
		var r rl.ValueResult
		require.NoError(t, rl.ValueLoss(&r, v, old, returns, mask.bools(), rows, cols, o))
		requireNear(t, e, "loss", []float64{r.Loss}, e.output(t, "loss").Data, exact)
		requireNear(t, e, "dloss_dvpred", r.DValue, e.output(t, "dloss_dvpred").Data, exact)
		if e.Peer == "verl" {
			frac, err := rl.MaskedMean(rl.ValueClipped(nil, v, old, returns, o.Clip), mask.bools(), rl.MeanOptions{Eps: 1e-8})
			require.NoError(t, err)
			requireNear(t, e, "clipfrac", []float64{frac}, e.output(t, "clipfrac").Data, exact)
		}
		compared[e.Peer]++
	}
	require.Equal(t, map[string]int{"verl": 30, "openrlhf": 18}, compared)
}
