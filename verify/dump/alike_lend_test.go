package dump_test

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/dump"
	plant "plumbline/verify/plant/dump"
	"plumbline/verify/plant/trainer"
	"plumbline/verify/stage"
)

// A loss that a coefficient seems to explain in its first step has the bug of its value loss, whose old values were not permuted with the rollout.
func TestLossOfAValueLossInAnotherOrder(t *testing.T) {
	const rows, cols = 8, 12
	p, _, err := convention.Lookup("trl-ppo@1.12")
	require.NoError(t, err)
	set := trainer.Complete(p, rand.New(rand.NewPCG(2, 7)))
	at := []int{5, 2, 7, 0, 13, 6, 11, 4, 9, 1, 14, 3, 12, 8, 15, 10} // the row of the rollout in each place of the two steps
	var steps dump.Batches
	rollout := make([]float64, 2*rows*cols)
	for s := range 2 {
		b, ran := trainer.Healthy(trainer.Config{Set: set, Rows: rows, Cols: cols, Files: 1, Seed: uint64(s + 3)})
		b, set = plant.Declared(b, ran), ran
		id := &dumpfile.Tensor{Name: "sample_id", Layout: dumpfile.PerRow, Width: 1, Shape: []int{rows}}
		for r, k := range at[s*rows : (s+1)*rows] {
			id.Data = append(id.Data, float64(k))
			copy(rollout[k*cols:(k+1)*cols], b.Token("values")[r*cols:])
		}
		b.Tensors["sample_id"], b.Meta.Step, b.Files[0].Step = id, s+1, s+1
		steps = append(steps, b)
	}
	for s, b := range steps {
		wrong := b.With("values", rollout[s*rows*cols:(s+1)*rows*cols])
		for _, name := range []string{"value_loss", "loss"} {
			b.PerFile(name)[0] = single(stage.Find("aggregate/" + name).Predict(stage.NewCase(wrong, set, 0)).Want[0])
		}
	}
	r, err := dump.Judge(context.Background(), steps, dump.Options{Profile: "trl-ppo@1.12", Brief: true, Selection: check.Selection{Select: []string{"aggregate/value_loss", "aggregate/loss"}}})
	require.NoError(t, err)
	require.Len(t, r.Brief.Findings, 1)
	require.Equal(t, "VALUES-OF-OTHER-ROWS", r.Brief.Findings[0].Name)
	require.Equal(t, []string{"aggregate/value_loss", "aggregate/loss"}, r.Brief.Findings[0].Seen)
}
