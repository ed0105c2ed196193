package fault

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// Masked cells that are steps with values which are not dumped show in what crosses the gaps alone; numbers that are wrong elsewhere, too, have no name.
func TestGapsWithValuesOfTheirOwn(t *testing.T) {
	p, _, err := convention.Lookup("verl-ppo@0.9")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"gae.gamma": "0.97", "gae.lambda": "0.9", "gae.hole": "carry"} {
		set = set.With(name, parsed(name, x), "test")
	}
	passedBy := func(own, behind, m float64) float64 { return own*m + (1-m)*behind }
	right := overHoles(passedBy, passedBy)
	for name, off := range map[string]float64{"right": 0, "gaps": 0, "elsewhere": 0.01} {
		g := rand.New(rand.NewPCG(4, 4))
		b := rolledOut(true, func(r, v, m, d []float64, next float64) []float64 {
			if name == "right" {
				return right(r, v, m, d, next)
			}
			hidden := append([]float64(nil), v...)
			for i := range hidden {
				if m[i] == 0 && i < 6 { // the cells of the gap
					hidden[i] = g.NormFloat64()
				}
			}
			every := append([]float64(nil), m...)
			for i := range every {
				if i < 6 {
					every[i] = 1
				}
			}
			a := right(r, hidden, every, d, next)
			a[1] += off
			return a
		})
		o := stage.Judge(stage.Find("gae/returns"), b, set)
		switch name {
		case "right":
			require.Equal(t, check.Pass, o.Verdict, o.Lacking())
		case "gaps":
			requireName(t, o, "GAE-HOLE", "each gap between tokens")
		default:
			requireNoName(t, o)
		}
	}
}

// Rewards of turns that a recursion does not read where they stand are named, and are not what crosses a gap.
func TestRewardsOfTurns(t *testing.T) {
	p, _, err := convention.Lookup("verl-ppo@0.9")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"gae.gamma": "0.97", "gae.lambda": "0.9", "gae.hole": "carry", "kl.place": "none"} {
		set = set.With(name, parsed(name, x), "test")
	}
	passedBy := func(own, behind, m float64) float64 { return own*m + (1-m)*behind }
	for words, of := range map[string]func(first, last float64) (float64, float64){
		"the rewards of all turns but the last are lost": func(_, last float64) (float64, float64) { return 0, last },
		"the reward of the last turn is lost":            func(first, _ float64) (float64, float64) { return first, 0 },
		"the last turn has the rewards of all turns":     func(first, last float64) (float64, float64) { return 0, first + last },
		"": func(first, last float64) (float64, float64) { return 1.7 * first, last },
	} {
		b := rolledOut(true, func(r, v, m, d []float64, next float64) []float64 {
			y := append([]float64(nil), r...)
			_, last := firstLast(mappedMask(m))
			y[3], y[last] = of(r[3], r[last])
			return overHoles(passedBy, passedBy)(y, v, m, d, next)
		})
		o := stage.Judge(stage.Find("gae/returns"), b, set)
		if words != "" {
			requireName(t, o, "SCORE-LOST", words)
			continue
		}
		for _, e := range Explain(o) {
			require.NotEqual(t, "GAE-HOLE", e.Hypothesis.ID)
		}
	}
}

func mappedMask(m []float64) (mask []bool) {
	for _, x := range m {
		mask = append(mask, x != 0)
	}
	return mask
}
