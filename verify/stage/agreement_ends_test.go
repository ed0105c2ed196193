package stage

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
)

// A log-prob of 0 at the end of responses, where another pass or the entropy says that the token is not certain, was filled in.
func TestZeroAtTheEndOfResponses(t *testing.T) {
	r := rand.New(rand.NewPCG(69, 2))
	lengths := []int{5, 8, 3, 8, 6, 7, 4, 8}
	draw := func() grid {
		g := newGrid(8, lengths...)
		lp := g.fill("logp_new", dump.PerToken, func() float64 { return -0.6 - r.ExpFloat64() })
		near := func() []float64 {
			x := slices.Clone(lp)
			for i := range x {
				x[i] = float64(float32(x[i] * (1 + 1e-3*r.NormFloat64())))
			}
			return x
		}
		return g.token("logp_old", near()...).token("logp_gen", near()...).token("logp_ref", near()...)
	}
	ends := func(x []float64, rows ...int) {
		for _, row := range rows {
			x[row*8+lengths[row]-1] = 0
		}
	}
	all := []int{0, 1, 2, 3, 4, 5, 6, 7}
	s := set(t, "")
	require.Equal(t, check.Pass, rules(t, "agreement/ends", draw().Batch, s).Verdict)
	for _, name := range logpNames {
		g := draw()
		ends(g.Tensors[name].Data, all...)
		o := rules(t, "agreement/ends", g.Batch, s)
		require.Equal(t, check.Fail, o.Verdict, name)
		require.Equal(t, "LOGP-END-ZERO", o.Rules.Violations[0].Fault, name)
		require.Contains(t, o.Rules.Violations[0].Reason, name)
		g.Tensors[name].Data[1], g.Tensors[name].Data[9] = 0, 0
		require.Equal(t, check.Pass, rules(t, "agreement/ends", g.Batch, s).Verdict, "%s: zeros at other tokens, too", name)
	}
	g := draw()
	ends(g.Tensors["logp_gen"].Data, 0, 1)
	require.Equal(t, check.Pass, rules(t, "agreement/ends", g.Batch, s).Verdict, "two rows may be chance")
	g = draw()
	ends(g.Tensors["logp_ref"].Data, 0, 1, 2, 3)
	require.Equal(t, check.Pass, rules(t, "agreement/ends", g.Batch, s).Verdict, "a reference may be sure of some ends")
	// One tensor alone: the entropy says that the token is not certain.
	alone := func(entropy float64) check.Verdict {
		g := draw()
		for _, name := range []string{"logp_old", "logp_gen", "logp_ref"} {
			delete(g.Tensors, name)
		}
		ends(g.Tensors["logp_new"].Data, all...)
		g.fill("entropy", dump.PerToken, func() float64 { return entropy * (1 + 0.1*r.Float64()) })
		return rules(t, "agreement/ends", g.Batch, s).Verdict
	}
	require.Equal(t, check.Fail, alone(0.8))
	require.Equal(t, check.Pass, alone(1e-6), "EOS is certain")
}

// What was filled in at the ends of responses is the only finding, and is no sign of the engine.
func TestSilentEndsAreNoSignOfTheEngine(t *testing.T) {
	const rows, cols = 32, 6
	r := rand.New(rand.NewPCG(61, 62))
	own, _, _ := policies(r, rows*cols, 1)
	gen := make([]float64, rows*cols)
	for i, x := range own.tempered {
		gen[i] = math.Min(0, x+1e-3*r.NormFloat64())
		if i%cols == cols-1 {
			gen[i] = 0
		}
	}
	g := newGrid(cols, slices.Repeat([]int{cols}, rows)...).token("logp_new", own.tempered...).token("logp_old", own.tempered...).token("logp_gen", gen...)
	require.Empty(t, named(t, g, "ratio.old=stored logp.temperature=1 logp.source=processed"))
	require.Empty(t, rules(t, "agreement/size", g.Batch, set(t, "ratio.old=stored logp.temperature=1")).Rules.Violations)
	require.Equal(t, "LOGP-END-ZERO", rules(t, "agreement/ends", g.Batch, set(t, "ratio.old=stored")).Rules.Violations[0].Fault)
}

// Two rows exchanged among many are found where all others agree.
func TestTwoRowsExchangedAmongMany(t *testing.T) {
	const rows, cols = 16, 12
	r := rand.New(rand.NewPCG(63, 64))
	own, _, _ := policies(r, rows*cols, 1)
	old := slices.Clone(own.tempered)
	for c := range cols {
		old[3*cols+c], old[9*cols+c] = old[9*cols+c], old[3*cols+c]
	}
	g := newGrid(cols, slices.Repeat([]int{cols}, rows)...).token("logp_new", own.tempered...).token("logp_old", old...)
	v := rules(t, "agreement/old", g.Batch, set(t, "ratio.old=stored logp.temperature=1")).Rules.Violations
	require.Len(t, v, 1)
	require.Equal(t, "ROWS-SWAPPED", v[0].Fault)
}

// Old log-probs that are the engine's are named at the first update, where the trainer has its own by its profile.
func TestOldLogProbsOfTheEngine(t *testing.T) {
	const rows, cols = 4, 6
	r := rand.New(rand.NewPCG(65, 66))
	own, _, _ := policies(r, rows*cols, 1)
	gen := make([]float64, rows*cols)
	for i, x := range own.tempered {
		gen[i] = math.Min(0, x+0.02*math.Expm1(x)*r.NormFloat64())
	}
	g := newGrid(cols, slices.Repeat([]int{cols}, rows)...).token("logp_new", own.tempered...).token("logp_old", gen...).token("logp_gen", gen...)
	for name, fault := range map[string]string{"trl-grpo@1.16": "OLD-IS-GEN", "verl-grpo@0.9": ""} {
		p, _, err := convention.Lookup(name)
		require.NoError(t, err)
		a := OldIsNew(NewCase(g.Batch, convention.FromProfile(p).With("tis.level", set(t, "tis.level=none").Value("tis.level"), "test").WithFact("first_update", FirstUpdate), 0x1p-24))
		if fault == "" {
			require.True(t, a == nil || len(a.Violations) == 0, name)
			continue
		}
		require.NotNil(t, a, name)
		require.Equal(t, fault, a.Violations[0].Fault, name)
	}
}

// Weights of 1 between old log-probs that are the engine's and the engine correct nothing; weights of the new log-probs do.
func TestWeightsThatCorrectNothing(t *testing.T) {
	const rows, cols = 4, 6
	r := rand.New(rand.NewPCG(67, 68))
	own, _, _ := policies(r, rows*cols, 1)
	gen, ones, weights := make([]float64, rows*cols), make([]float64, rows*cols), make([]float64, rows*cols)
	for i, x := range own.tempered {
		gen[i] = math.Min(0, x+0.02*math.Expm1(x)*r.NormFloat64())
		ones[i], weights[i] = 1, math.Exp(x-gen[i])
	}
	grid := newGrid(cols, slices.Repeat([]int{cols}, rows)...).token("logp_new", own.tempered...).token("logp_old", gen...).token("logp_gen", gen...)
	p, _, err := convention.Lookup("verl-grpo@0.9")
	require.NoError(t, err)
	declared := convention.FromProfile(p).With("tis.level", set(t, "tis.level=token").Value("tis.level"), "test")
	judge := func(w []float64, set *convention.Set) *Assertion {
		return OldIsNew(NewCase(grid.token("is_weights", w...).Batch, set.WithFact("first_update", FirstUpdate), 0x1p-24))
	}
	a := judge(ones, declared)
	require.NotNil(t, a)
	require.Equal(t, "OLD-IS-GEN", a.Violations[0].Fault)
	require.Nil(t, judge(weights, declared))
	require.Nil(t, judge(ones, declared.With("ratio.old", set(t, "ratio.old=engine").Value("ratio.old"), "test")))
}
