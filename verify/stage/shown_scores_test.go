package stage

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// scoreSteps are batches of 2 groups of 4 rows, whose advantages made gives of the scores and the KL of the rows of each rollout of two batches.
func scoreSteps(seed uint64, made func(s, k []float64) []float64) (steps []*dump.Batch) {
	rng := rand.New(rand.NewPCG(seed, 1))
	for range 2 {
		var s, k []float64
		for range 16 {
			s, k = append(s, float64(float32(2*rng.NormFloat64()))), append(k, float64(float32(rng.NormFloat64())))
		}
		adv := made(s, k)
		for half := range 2 {
			b := &dump.Batch{Rows: 8, Cols: 2, Mask: make([]bool, 16), Origin: make([]dump.Origin, 8), Files: []dump.FileInfo{{Name: "f", Hi: 8, Cols: 2}}, Tensors: map[string]*dump.Tensor{}}
			lp, ref, ids := make([]float64, 16), make([]float64, 16), make([]float64, 8)
			for r := range 8 {
				b.Mask[2*r] = true
				lp[2*r], ref[2*r] = -1, -1-k[8*half+r]
				ids[r] = float64(2*half + r/4)
				adv[8*half+r] = float64(float32(adv[8*half+r]))
			}
			for name, x := range map[string][]float64{"scores": s[8*half : 8*half+8], "advantages": adv[8*half : 8*half+8], "group_id": ids} {
				b.Tensors[name] = &dump.Tensor{Data: x, Layout: dump.PerRow, Width: 1, Type: format.F32, Shape: []int{8}}
			}
			for name, x := range map[string][]float64{"logp_old": lp, "logp_ref": ref} {
				b.Tensors[name] = &dump.Tensor{Data: x, Layout: dump.PerToken, Width: 1, Type: format.F32, Shape: []int{8, 2}}
			}
			steps = append(steps, b)
		}
	}
	return steps
}

// TestScoresBeforeTheBaselineAreShown takes the advantages of RLOO (TRL 1.16.0, RLOOTrainer) and of group normalisation with scores that are held in a
// range, a KL in the reward and a normalisation over a rollout of two steps, each with none of which anything is declared.
func TestScoresBeforeTheBaselineAreShown(t *testing.T) {
	clamp := func(x, c float64) float64 { return min(max(x, -c), c) }
	centred := func(x []float64, loo bool) []float64 {
		y := make([]float64, len(x))
		for i := range x {
			mean := 0.0
			for j := i - i%4; j < i-i%4+4; j++ {
				mean += x[j] / 4
			}
			if y[i] = x[i] - mean; loo {
				y[i] *= 4.0 / 3
			}
		}
		return y
	}
	deviation := func(x []float64, ddof int) float64 { return math.Sqrt(momentsOf(x, nil, ddof, 0, 0).v) }
	for _, test := range []struct {
		beta, c float64
		scale   string
		want    string
		rollout int
	}{
		{0.2, 0, "none", "adv.center=loo adv.scale=none kl.beta=0.2", 1},
		{0, 1.7, "none", "adv.center=loo adv.scale=none reward.clip_range=-1.7,1.7", 1},
		{0.3, 1.7, "none", "adv.center=loo adv.scale=none kl.beta=0.3 reward.clip_range=-1.7,1.7", 1},
		{0.3, 1.7, "batch_std", "adv.center=loo adv.ddof=1 adv.eps=1e-4 adv.scale=batch_std adv.std_of=centred kl.beta=0.3 reward.clip_range=-1.7,1.7", 2},
		{0, 2.2, "group_std", "adv.center=mean adv.ddof=1 adv.eps=1e-4 adv.scale=group_std reward.clip_range=-2.2,2.2", 1},
		{0.05, 2.2, "group_std", "adv.center=mean adv.ddof=1 adv.eps=1e-4 adv.scale=group_std kl.beta=0.05 reward.clip_range=-2.2,2.2", 1},
	} {
		t.Run(fmt.Sprint(test.scale, test.beta, test.c), func(t *testing.T) {
			var g GroupScores
			for _, b := range scoreSteps(7, func(s, k []float64) []float64 {
				r := make([]float64, len(s))
				for i := range r {
					if r[i] = s[i]; test.c > 0 {
						r[i] = clamp(s[i], test.c)
					}
					r[i] -= test.beta * k[i]
				}
				a := centred(r, test.scale != "group_std")
				for i := range a {
					switch test.scale {
					case "batch_std":
						a[i] /= deviation(centred(r, true), 1) + 1e-4
					case "group_std":
						a[i] /= deviation(r[i-i%4:i-i%4+4], 1) + 1e-4
					}
				}
				return a
			}) {
				g.Add(b)
			}
			require.NotEmpty(t, g.Changes(&convention.Set{}))
			got := texts(g.Changes(&convention.Set{})[0])
			for _, name := range []string{"adv.kind", "whiten.scope", "kl.place", "kl.kind", "kl.clamp_in", "kl.clamp_out", "reward.clip"} {
				delete(got, name)
			}
			text := ""
			for _, name := range []string{"adv.center", "adv.ddof", "adv.eps", "adv.scale", "adv.std_of", "kl.beta", "reward.clip_range"} {
				if v, there := got[name]; there {
					text += " " + name + "=" + v
				}
			}
			require.Equal(t, " "+test.want, text)
			require.Equal(t, test.rollout, g.Rollout())
		})
	}
}

// TestScoresOfGroupsThatAreCutOverStepsAreShown shuffles the rows of a rollout over its two steps, as TRL 1.16.0 does: the size of a group, by which the mean of the
// others is told, is that in both steps, with a row that has no token.
func TestScoresOfGroupsThatAreCutOverStepsAreShown(t *testing.T) {
	const empty = 5
	steps := scoreSteps(7, func(s, k []float64) []float64 {
		k[empty] = 0
		a := make([]float64, len(s))
		for i := range a {
			for j := i - i%4; j < i-i%4+4; j++ {
				a[i] -= (min(max(s[j], -1.7), 1.7) - 0.3*k[j]) / 3
			}
			a[i] += (min(max(s[i], -1.7), 1.7) - 0.3*k[i]) * 4 / 3
		}
		return a
	})
	var alone GroupScores
	together := GroupScores{Over: 2}
	for n := 0; n < 4; n += 2 {
		all := dump.Join(steps[n], steps[n+1])
		all.Mask[2*empty] = false
		perm := rand.New(rand.NewPCG(2, 2)).Perm(16)
		for half := range 2 {
			b := all.Select(perm[8*half : 8*half+8])
			b.Meta.Step = n + half + 1
			together.Add(b)
			alone.Add(b)
		}
	}
	got := texts(together.Changes(&convention.Set{})[0])
	require.Equal(t, []string{"loo", "none", "0.3", "-1.7,1.7"}, []string{got["adv.center"], got["adv.scale"], got["kl.beta"], got["reward.clip_range"]})
	require.Equal(t, 1, together.Rollout())
	require.Empty(t, alone.Changes(&convention.Set{}))
}

// TestScoresOfOtherFormulasShowNothing takes advantages that no such form makes.
func TestScoresOfOtherFormulasShowNothing(t *testing.T) {
	for name, made := range map[string]func(s, k []float64) []float64{
		"noise": func(s, k []float64) []float64 { return k },
		"squares": func(s, k []float64) []float64 {
			a := make([]float64, len(s))
			for i := range a {
				a[i] = s[i] * s[i]
			}
			return a
		},
		"scores of 0 and 1, each divided by its own number": func(s, k []float64) []float64 {
			a := make([]float64, len(s))
			for i := range a {
				s[i] = math.Round(min(max(math.Abs(s[i])/2, 0), 1))
				a[i] = s[i] / (2 + math.Abs(k[i]))
			}
			return a
		},
	} {
		var g GroupScores
		for _, b := range scoreSteps(8, made) {
			g.Add(b)
		}
		require.Empty(t, g.Changes(&convention.Set{}), name)
		require.Equal(t, 1, g.Rollout(), name)
	}
}

// Two rows of one score that are held at a bound agree on what their group does not subtract, where a third one is as it was.
func TestEqualScoresThatAreHeldAreShown(t *testing.T) {
	var g GroupScores
	for _, b := range scoreSteps(7, func(s, k []float64) []float64 {
		for i := 0; i < len(s); i += 8 {
			s[i], s[i+1], s[i+2], s[i+3] = 4.5, 4.5, 0.25, 6
		}
		a := make([]float64, len(s))
		for i := range a {
			for j := i - i%4; j < i-i%4+4; j++ {
				a[i] -= (min(s[j], 3.5) - 0.3*k[j]) / 3
			}
			a[i] += (min(s[i], 3.5) - 0.3*k[i]) * 4 / 3
		}
		return a
	}) {
		g.Add(b)
	}
	require.NotEmpty(t, g.Changes(&convention.Set{}))
	got := texts(g.Changes(&convention.Set{})[0])
	require.Equal(t, "loo 0.3 3.5", got["adv.center"]+" "+got["kl.beta"]+" "+got["reward.clip_range"][strings.IndexByte(got["reward.clip_range"], ',')+1:])
}

// A KL that is added to the scores shows its coefficient with the other sign.
func TestScoresWithAnAddedKLShowItsCoefficient(t *testing.T) {
	steps := scoreSteps(7, func(s, k []float64) []float64 {
		a := make([]float64, len(s))
		for i := range a {
			for j := i - i%4; j < i-i%4+4; j++ {
				a[i] -= (s[j] + 0.3*k[j]) / 3
			}
			a[i] += (s[i] + 0.3*k[i]) * 4 / 3
		}
		return a
	})
	shown := ScoresUnder(steps[0], &convention.Set{})
	require.NotEmpty(t, shown)
	require.Equal(t, "0.3", texts(shown[0])["kl.beta"])
}
