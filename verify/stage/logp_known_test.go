package stage

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/reference/rl"
)

// What is remembered of one temperature, mask or batch is not taken for another's, and nobody's changes reach it.
func TestKnownEntropies(t *testing.T) {
	logits, mask := []float64{1, 2, 3, 4}, []bool{true, true}
	x := knownEntropies{logits: logits, mask: mask, rows: []int{0, 1}, cols: 1, unit: 0x1p-24, o: rl.LogProbOptions{Temperature: 0.7}}
	var e entropies
	require.Nil(t, e.get(x))
	p := &Prediction{Want: []float64{1, 2}, Bound: []float64{0, 0}, Judge: []bool{true, true}, Scale: 1}
	e.put(x, p)
	p.Want[0] = 9
	got := e.get(x)
	require.Equal(t, []float64{1, 2}, got.Want)
	got.Want[1] = 9
	require.Equal(t, []float64{1, 2}, e.get(x).Want)
	for _, change := range []func(*knownEntropies){
		func(x *knownEntropies) { x.logits = []float64{1, 2, 3, 4} }, func(x *knownEntropies) { x.mask = []bool{true, true} }, func(x *knownEntropies) { x.o.Temperature = 1 },
		func(x *knownEntropies) { x.rows = []int{1, 0} }, func(x *knownEntropies) { x.unit = 0x1p-8 }, func(x *knownEntropies) { x.cols = 2 },
	} {
		y := x
		change(&y)
		require.Nil(t, e.get(y))
	}
	for range mostEntropies {
		y := x
		y.mask = []bool{true, true}
		e.put(y, p)
	}
	require.Nil(t, e.get(x), "the oldest gives way")
	require.Nil(t, (*entropies)(nil).get(x))
}
