package fault_test

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/bug"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/fault"
	"plumbline/verify/plant/trainer"
	"plumbline/verify/stage"
)

// planted returns a batch of the independent trainer with a bug that shows.
func planted(t *testing.T, profile, id string, c trainer.Config) (*dump.Batch, *convention.Set) {
	p, _, err := convention.Lookup(profile)
	require.NoError(t, err)
	for seed := range uint64(20) {
		c.Set, c.Seed = trainer.Complete(p, rand.New(rand.NewPCG(seed, 7))), seed
		if !trainer.FindPlant(id).Applies(c.Set) {
			continue
		}
		if b, set, shows := trainer.Faulty(c, id); shows {
			return b, set
		}
	}
	t.Fatalf("%s does not show under %s", id, profile)
	return nil, nil
}

func names(list []fault.Explanation) (ids []string) {
	for _, e := range list {
		ids = append(ids, e.Hypothesis.ID+e.Factor)
	}
	return ids
}

// What is found does not depend on how many processors look for it.
func TestExplainOnAnyNumberOfProcessors(t *testing.T) {
	if testing.Short() {
		t.Skip("a batch that is large enough to be shared out")
	}
	b, set := planted(t, "verl-ppo@0.9", "GAE-LAST-INDEX", trainer.Config{Rows: 320, Cols: 224})
	o := stage.Judge(stage.Find("gae/advantage"), b, set)
	require.Equal(t, check.Fail, o.Verdict)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	one := fault.Explain(o)
	require.Contains(t, names(one), "GAE-LAST-INDEX")
	for _, n := range []int{2, 5} {
		runtime.GOMAXPROCS(n)
		many := fault.Explain(o)
		require.Equal(t, names(one), names(many))
		for i := range many {
			require.Equal(t, one[i].Worst, many[i].Worst)
			require.Equal(t, one[i].Cells, many[i].Cells)
		}
	}
}

// Bugs in what is stored in bf16 are judged as the output is: with the errors of rounded inputs, and named only if their numbers
// are further from the right ones than both can be off.
func TestExplainRoundedCopies(t *testing.T) {
	for _, c := range []struct{ profile, plant, check string }{
		{"verl-ppo@0.9", "GAE-NO-LAMBDA", "gae/advantage"},
		{"verl-ppo@0.9", "KL-REVERSED", "kl/token"},
		{"trl-grpo@1.16", "CLIP-MIN-MAX", "token_loss/policy"},
		{"trl-grpo@1.16", "LOSS-MASK-SHIFT", "gradient/dlogp"},
		{"trl-grpo@1.16", "METRIC-LOCAL-OVER-GLOBAL", "scalars/completions_clipped_ratio"},
	} {
		b, set := planted(t, c.profile, c.plant, trainer.Config{Rows: 48, Cols: 24, Files: 2, DType: format.BF16})
		o := stage.Judge(stage.Find(c.check), b, set)
		require.Equal(t, check.Fail, o.Verdict, c.plant)
		require.True(t, o.Half(), c.plant)
		found := fault.Explain(o)
		require.Contains(t, names(found), c.plant)
		for _, e := range found {
			require.False(t, e.Lead, c.plant)
			require.Greater(t, e.Apart, float64(stage.ToldHalf), "%s explained by %s", c.plant, e.Hypothesis.ID)
			require.Zero(t, e.Outcome.Tally.Failed, "%s explained by %s", c.plant, e.Hypothesis.ID)
		}
	}
}

// A factor that several counts give is named by all of them: the number of ranks beside that of accumulation steps.
func TestFactorsThatTie(t *testing.T) {
	b, set := planted(t, "trl-grpo@1.16", "FACTOR-WORLD-SIZE", trainer.Config{Rows: 48, Cols: 24, Files: 2, Ranks: 2})
	o := stage.Judge(stage.Find("aggregate/pg_loss"), b, set)
	require.Equal(t, check.Fail, o.Verdict)
	found := names(fault.Explain(o))
	require.Contains(t, found, "FACTOR× 1/(world_size) (0.5)")
	require.Contains(t, found, "FACTOR× 1/(gradient_accumulation_steps) (0.5)")
	// A bug that is no common factor of the right numbers is not said to be one.
	b, set = planted(t, "trl-grpo@1.16", "AGG-PAD-DENOMINATOR", trainer.Config{Rows: 48, Cols: 24, Files: 2, Ranks: 2})
	for _, id := range names(fault.Explain(stage.Judge(stage.Find("gradient/dlogp"), b, set))) {
		require.NotContains(t, id, "FACTOR×", id)
	}
}

// A hypothesis is relative to a declaration where the registry says so, and only there, but for variants that no program has.
func TestRelativeIsTheRegistrysWord(t *testing.T) {
	relative := 0
	for _, h := range fault.All() {
		against := bug.MustFind(h.ID).Against
		require.Equal(t, against != "" && !h.Foreign, h.Relative, h.ID)
		require.True(t, against != "" || !h.Foreign, "%s: no variant of it is relative", h.ID)
		if h.Relative {
			relative++
		}
	}
	require.Greater(t, relative, 10)
	require.False(t, fault.Find("OLD-RECOMPUTED").Relative)
	require.True(t, fault.Find("KL-ABSENT").Relative)
}
