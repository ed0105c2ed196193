package convention

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// However many values are changed and taken away, sets that branch from one another hold what a map of each would.
func TestSetsOfManyChanges(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 8))
	options := Options()[:7]
	sets, kept := []*Set{{}}, []map[string]Value{{}}
	for i := range 2000 {
		of, name := r.IntN(len(sets)), options[r.IntN(len(options))].Name
		v, want := Value{}, maps.Clone(kept[of])
		delete(want, name)
		if r.IntN(3) > 0 {
			v = NumberValue(float64(i))
			want[name] = v
		}
		s := sets[of].With(name, v, "changed")
		sets, kept = append(sets, s), append(kept, want)
	}
	weak := (&Set{}).With(options[0].Name, NumberValue(-1), "weak").With(options[1].Name, NumberValue(-1), "weak")
	for i, s := range sets {
		require.ElementsMatch(t, slices.Collect(maps.Keys(kept[i])), s.Names())
		require.Equal(t, (&Set{values: s.all()}).Text(), s.Text())
		over, changed := weak.Over(s)
		for n, o := range options {
			want, has := kept[i][o.Name]
			require.Equal(t, want, s.Value(o.Name))
			require.Equal(t, has, s.Origin(o.Name) == "changed")
			if !has && n < 2 {
				want = NumberValue(-1)
			}
			require.Equal(t, want, over.Value(o.Name))
		}
		for _, c := range changed {
			require.Equal(t, kept[i][c.Option], c.To)
		}
	}
}
