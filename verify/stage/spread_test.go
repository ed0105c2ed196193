package stage

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// What earlier predictions did not read is a guess: it changes no bound, where it is right and where it is wrong.
func TestSpreadDoesNotHangOnWhatWasReadBefore(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 5))
	b := &dump.Batch{Rows: 4, Cols: 8, Tensors: map[string]*dump.Tensor{}}
	names := []string{"advantages", "kl", "logp_new", "logp_old", "returns", "values"}
	for _, name := range names {
		x := &dump.Tensor{Name: name, Type: format.BF16, Width: 1, Data: make([]float64, 32)}
		for i := range x.Data {
			x.Data[i] = r.NormFloat64()
		}
		b.Tensors[name] = x
	}
	reader := func(reads ...string) func(*Case) *Prediction {
		return func(c *Case) *Prediction {
			p := &Prediction{Want: make([]float64, 32), Bound: make([]float64, 32)}
			for n, name := range reads {
				for i, x := range c.B.Tensors[name].Data {
					p.Want[i] += float64(n+1) * x * x
				}
			}
			return p
		}
	}
	set := &convention.Set{}
	shared := NewCase(b, set, 0)
	for _, reads := range [][]string{
		{"kl", "logp_old"}, {"kl", "logp_old"}, {"kl"}, {}, {"advantages", "values"}, {"kl", "logp_old"}, {"logp_new", "logp_old"}, names[:5],
	} {
		predict := reader(reads...)
		alone, again := NewCase(b, set, 0), shared.Of(b, set)
		want := Spread("output", predict, alone, predict(alone))
		require.Equal(t, want, Spread("output", predict, again, predict(again)), "%v", reads)
	}
	runs := 0
	counting := func(c *Case) *Prediction { runs++; return reader("kl")(c) }
	fresh := NewCase(b, set, 0)
	p := reader("kl")(fresh)
	Spread("output", reader("kl"), fresh, p)
	Spread("output", counting, fresh, p)
	require.Equal(t, 8+2, runs, "eight runs of what is read, two of all that is not")
}
