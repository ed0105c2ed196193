package dump_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
)

// A run that declares one option and has another value of it is told so, whatever stands in for what nobody declares.
func TestOneOptionAgainstItsDeclaration(t *testing.T) {
	for _, r := range silent(t, func(b *dumpfile.Batch) {
		b.Meta.Options = []dumpfile.Option{{Name: "adv.scale", Value: "none"}}
		score, group, adv := b.Row("scores"), b.Row("group_id"), b.Row("advantages")
		for r := range score { // so small that whitened rewards are nearer to the advantages than centred ones
			score[r] = single(0.2 * math.Sin(float64(3*r*r+b.Meta.Step)))
		}
		delete(b.Tensors, "rewards_per_func")
		for r := range adv {
			var n, sum, square float64
			for k := range score {
				if group[k] == group[r] {
					n, sum, square = n+1, sum+score[k], square+score[k]*score[k]
				}
			}
			mean := sum / n
			adv[r] = single((score[r] - mean) / (math.Sqrt((square-n*mean*mean)/(n-1)) + 1e-6)) // an ε of another profile than the files have
		}
	}, "advantage/group") {
		if r.Check == "advantage/group" {
			require.Equal(t, check.Convention, r.Verdict, r.Reason)
			require.Equal(t, "ADV-SPREAD", r.Explanations[0].Fault)
			require.Len(t, r.Explanations[0].Options, 1)
		}
	}
}
