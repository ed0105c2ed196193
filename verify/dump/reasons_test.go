package dump

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/convention"
	"plumbline/verify/fault"
	"plumbline/verify/stage"
)

// What a profile that nobody declared says is no declaration: of fits that change it, what is left of their changes is told, and the one
// that contradicts the fewest declarations leads.
func TestFitsOfARunWithoutAProfile(t *testing.T) {
	change := func(option, from, to string) stage.Change {
		c := stage.Change{Option: option}
		var err error
		c.From, err = convention.Parse(option, from)
		require.NoError(t, err)
		c.To, err = convention.Parse(option, to)
		require.NoError(t, err)
		return c
	}
	place, scope := change("whiten.eps_place", "add_std", "no_std"), change("whiten.scope", "minibatch", "none")
	undeclared := change("rewards.whiten", "shift_mean_false", "no")
	set := (&convention.Set{}).With(place.Option, place.From, "the dump").With(scope.Option, scope.From, "the dump").
		With(undeclared.Option, undeclared.From, "oai@2019")
	tr := &track{first: &stage.Outcome{Case: stage.NewCase(nil, set, 0)}}
	fits := tr.declared([]stage.Fit{{Changes: []stage.Change{place, scope}}, {Changes: []stage.Change{undeclared, scope}}, {Changes: []stage.Change{scope}}})
	require.Len(t, fits, 2)
	require.Equal(t, []stage.Change{scope}, fits[0].Changes)
	require.Equal(t, []stage.Change{place, scope}, fits[1].Changes)
	require.Len(t, tr.declared([]stage.Fit{{Changes: []stage.Change{undeclared}}}), 1, "what nothing else explains stays")
	name, ok := fault.OfChange(change("gae.lambda", "0.95", "1"))
	require.True(t, ok)
	require.Equal(t, "GAE-NO-LAMBDA", name.ID)
}
