package checkpoint

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/checkpoint"
)

// Healthy folders of every family raise no alarm, not even a warning.
func TestNoFalseAlarms(t *testing.T) { alarms(t, 7, 10*len(scenes)) }

func alarms(t *testing.T, seed uint64, n int) {
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range n {
		family, in := Healthy(r, i)
		results, err := checkpoint.Suite.Run(in, check.Selection{})
		require.NoError(t, err, family)
		require.Empty(t, Alarm(family, results))
	}
}

// Every executable fault is caught by the check that ships it, is explained there as itself, and is the first finding of
// the report.
func TestFaults(t *testing.T) { plantAll(t, 1, 2) }

func plantAll(t *testing.T, from, to uint64) {
	for seed := from; seed <= to; seed++ {
		planted, err := PlantAll(seed)
		require.NoError(t, err)
		distinct, withFault := map[string]bool{}, map[string]bool{}
		for _, p := range planted {
			distinct[p.Fault.ID], withFault[p.Check] = true, true
			if !p.Caught || p.Named != p.Fault.ID || p.First != p.Fault.ID {
				t.Errorf("seed %d: %s %s (%s): caught %t, named %q, first %q, seen by %v", seed, p.Check, p.Fault.ID, p.Fault.Title, p.Caught, p.Named, p.First, p.By)
			}
			require.NotEmpty(t, p.Fault.Cause)
			require.NotEmpty(t, p.Fault.Source)
		}
		require.GreaterOrEqual(t, len(distinct), 100)
		for _, c := range checkpoint.Suite {
			require.True(t, withFault[c.Name], "%s ships no fault: a check never seen failing is no check", c.Name)
		}
	}
}
