package stage

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
)

// groupsOf is six groups of four rows whose advantages make makes of the scores of a group.
func groupsOf(seed uint64, make1 func(s []float64) []float64) *dump.Batch {
	const rows, cols = 24, 5
	rng := rand.New(rand.NewPCG(seed, 2))
	b := &dump.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Origin: make([]dump.Origin, rows), Files: []dump.FileInfo{{Name: "f", Hi: rows, Cols: cols}}, Tensors: map[string]*dump.Tensor{}}
	b.Meta.Step, b.Meta.MicroBatches, b.Meta.WorldSize = 1, 1, 1
	score, id, adv := make([]float64, rows), make([]float64, rows), make([]float64, rows)
	for r := range rows {
		score[r], id[r] = float64(float32(0.2+math.Abs(rng.NormFloat64()))), float64(r/4)
		for t := range 1 + rng.IntN(cols) {
			b.Mask[r*cols+t] = true
		}
	}
	for g := 0; g < rows; g += 4 {
		for k, a := range make1(score[g : g+4]) {
			adv[g+k] = float64(float32(a))
		}
	}
	for name, x := range map[string][]float64{"scores": score, "group_id": id, "advantages": adv} {
		b.Tensors[name] = &dump.Tensor{Data: x, Layout: dump.PerRow, Width: 1, Type: format.F32, Shape: []int{rows}}
	}
	return b
}

// Centre, scale and an ε of no table are what advantages of groups give; those that are not scaled have no ε, and are of no rarer estimator.
func TestGroupFormsAreShown(t *testing.T) {
	mean := func(s []float64) (m float64) {
		for _, x := range s {
			m += x / 4
		}
		return m
	}
	sigma := func(s []float64, ddof float64) float64 {
		var ss float64
		for _, x := range s {
			ss += (x - mean(s)) * (x - mean(s))
		}
		return math.Sqrt(ss / (4 - ddof))
	}
	each := func(f func(s []float64, x float64) float64) func(s []float64) []float64 {
		return func(s []float64) (a []float64) {
			for _, x := range s {
				a = append(a, f(s, x))
			}
			return a
		}
	}
	for _, tt := range []struct {
		make1 func(s []float64) []float64
		want  map[string]string
	}{
		{each(func(s []float64, x float64) float64 { return (x - mean(s)) / (sigma(s, 0) + 0.0037) }), map[string]string{"adv.center": "mean", "adv.scale": "group_std", "adv.ddof": "0", "adv.eps": "0.0037"}},
		{each(func(s []float64, x float64) float64 { return (x - mean(s)) / (sigma(s, 1) + 0.0021) }), map[string]string{"adv.center": "mean", "adv.scale": "group_std", "adv.ddof": "1", "adv.eps": "0.0021"}},
		{each(func(s []float64, x float64) float64 { return x - mean(s) }), map[string]string{"adv.center": "mean", "adv.scale": "none"}},
		{each(func(s []float64, x float64) float64 { return 4. / 3 * (x - mean(s)) }), map[string]string{"adv.center": "loo", "adv.scale": "none"}},
	} {
		for seed := range uint64(map[bool]int{false: 1, true: 4}[cases.All]) {
			fits, _ := Complete(Find("advantage/group"), groupsOf(seed, tt.make1), &convention.Set{})
			require.NotEmpty(t, fits)
			require.Equal(t, check.Pass, fits[0].Outcome.Verdict)
			got := texts(fits[0].Changes)
			for option, value := range tt.want {
				require.Equal(t, value, got[option], "%v", got)
			}
		}
	}
	for seed := range uint64(4) { // one σ of the batch, whose ddof and ε are each a part of the other
		b := groupsOf(seed, each(func(s []float64, x float64) float64 { return 4. / 3 * (x - mean(s)) }))
		score, adv := b.Row("scores"), b.Row("advantages")
		m := momentsOf(score, nil, 0, 0, 0)
		for r := range adv {
			adv[r] = float64(float32(adv[r] / (math.Sqrt(m.v) + 0.0024)))
		}
		fits, _ := Complete(Find("advantage/group"), b, &convention.Set{})
		require.NotEmpty(t, fits)
		got := texts(fits[0].Changes)
		require.Equal(t, []string{"loo", "batch_std", "0", "0.0024"}, []string{got["adv.center"], got["adv.scale"], got["adv.ddof"], got["adv.eps"]})
	}
	for seed := range uint64(8) { // one group tells of an ε in every form, and people write 1e-4
		b := groupsOf(seed, each(func(s []float64, x float64) float64 { return (x - mean(s)) / (sigma(s, 1) + 1e-4) }))
		for r := 4; r < b.Rows; r++ {
			b.Row("scores")[r], b.Row("advantages")[r] = 0.5, 0
		}
		fits, _ := Complete(Find("advantage/group"), b, &convention.Set{})
		require.NotEmpty(t, fits)
		got := texts(fits[0].Changes)
		require.Equal(t, []string{"mean", "group_std", "1", "1e-4"}, []string{got["adv.center"], got["adv.scale"], got["adv.ddof"], got["adv.eps"]}, "seed %d", seed)
	}
	wrong := groupsOf(1, each(func(s []float64, x float64) float64 { return (x - 1.1*mean(s)) / sigma(s, 1) }))
	fits, _ := Complete(Find("advantage/group"), wrong, &convention.Set{})
	for _, f := range fits {
		require.NotEqual(t, check.Pass, f.Outcome.Verdict)
	}
}

// A penalty for the KL of a response, subtracted from its score before the baseline, shows whatever the baseline is (TRL 1.16, RLOOTrainer).
func TestPenaltiesBeforeTheBaselineAreShown(t *testing.T) {
	for seed := range uint64(6) {
		b := groupsOf(seed, func(s []float64) []float64 { return s })
		rng := rand.New(rand.NewPCG(seed, 3))
		kl := make([]float64, len(b.Mask))
		for i := range kl {
			kl[i] = float64(float32(rng.NormFloat64()))
		}
		b.Tensors["kl"] = &dump.Tensor{Data: kl, Layout: dump.PerToken, Type: format.F32, Shape: []int{b.Rows, b.Cols}}
		reward, adv := slices.Clone(b.Row("scores")), b.Row("advantages")
		for i, m := range b.Mask {
			if m {
				reward[i/b.Cols] -= 0.037 * kl[i]
			}
		}
		for g := 0; g < b.Rows; g += 4 {
			sum := reward[g] + reward[g+1] + reward[g+2] + reward[g+3]
			for r := g; r < g+4; r++ {
				adv[r] = float64(float32(reward[r] - (sum-reward[r])/3))
			}
		}
		fits, _ := Complete(Find("advantage/group"), b, &convention.Set{})
		require.NotEmpty(t, fits, "seed %d", seed)
		require.Equal(t, check.Pass, fits[0].Outcome.Verdict)
		got := texts(fits[0].Changes)
		require.Equal(t, []string{"loo", "none", "sequence_reward_before_baseline", "0.037"}, []string{got["adv.center"], got["adv.scale"], got["kl.place"], got["kl.beta"]}, "seed %d", seed)
	}
}

// Advantages of which several are one bound are what a baseline leaves of scores, held in a range (OpenRLHF 0.11.2, compute_reward, reward.clip_range).
func TestRangesOfAdvantagesAreShown(t *testing.T) {
	held := func(c, factor float64) func(s []float64) []float64 {
		return func(s []float64) (a []float64) {
			for _, x := range s {
				a = append(a, min(max(factor*(x-(s[0]+s[1]+s[2]+s[3])/4), -c), c))
			}
			return a
		}
	}
	shown := func(c, factor float64) map[string]string {
		for _, list := range Shown(Find("advantage/group"), groupsOf(3, held(c, factor)), &convention.Set{}) {
			if got := texts(list); got["reward.clip"] == "after_baseline" {
				return got
			}
		}
		return nil
	}
	require.Equal(t, "-0.4,0.4", shown(0.4, 1)["reward.clip_range"])
	require.Equal(t, "mean", shown(0.4, 1)["adv.center"])
	require.Equal(t, "loo", shown(0.4, 4./3)["adv.center"])
	require.Nil(t, shown(99, 1), "nothing is held")
}

// One baseline for all rows is the mean of the batch, which is proposed, or that of a rollout of which the step is a part, which cannot be tried; of
// baselines of groups neither is said.
func TestBaselinesOfBatches(t *testing.T) {
	for _, tt := range []struct {
		name  string
		base  func(mean float64, row int) float64
		shown bool
		open  []string
	}{
		{"of the batch", func(mean float64, _ int) float64 { return mean }, true, []string{"adv.kind"}},
		{"of a rollout", func(mean float64, _ int) float64 { return mean + 0.1 }, false, []string{"adv.kind"}},
		{"of groups", func(mean float64, row int) float64 { return mean + 0.1*float64(row/4) }, false, nil},
	} {
		b := groupsOf(3, func(s []float64) []float64 { return s })
		mean := momentsOf(b.Row("scores"), nil, 0, 0, 0).mean
		for r, s := range b.Row("scores") {
			b.Row("advantages")[r] = float64(float32(s - tt.base(mean, r)))
		}
		require.Equal(t, tt.shown, len(batchForms(b)) == 1, tt.name)
		o := failed("advantage/group", b)
		o.Case.Set = &convention.Set{}
		require.Equal(t, tt.open, Unrefuted(o), tt.name)
		if tt.shown {
			fits, _ := Complete(Find("advantage/group"), b, &convention.Set{})
			require.NotEmpty(t, fits)
			require.Equal(t, check.Pass, fits[0].Outcome.Verdict)
		}
	}
}

// Rounded advantages are those of no penalty.
func TestNoPenaltyIsShown(t *testing.T) {
	for seed := range uint64(200) {
		b := groupsOf(seed, func(s []float64) (a []float64) {
			for k := range s {
				a = append(a, s[k]-(s[0]+s[1]+s[2]+s[3]-s[k])/3)
			}
			return a
		})
		kl := make([]float64, b.Rows)
		for i, x := range rand.New(rand.NewPCG(seed, 4)).Perm(b.Rows) {
			kl[i] = float64(x)
		}
		groups := map[float64][]int{}
		for r, g := range b.Row("group_id") {
			groups[g] = append(groups[g], r)
		}
		require.Zero(t, penaltyOf(b.Row("scores"), kl, b.Row("advantages"), groups), "all groups, seed %d", seed)
		for g, ids := range groups {
			require.Zero(t, penaltyOf(b.Row("scores"), kl, b.Row("advantages"), map[float64][]int{g: append(ids, ids...)}), "one group, seed %d", seed)
		}
	}
}

// clipped is a batch of which the gradients are those of a surrogate with bounds 0.177, 0.0625 and 1.31, and the advantages what of makes of normal
// numbers.
func clipped(seed uint64, of func(x float64) float64) *dump.Batch {
	const rows, cols = 16, 24
	rng := rand.New(rand.NewPCG(seed, 4))
	b := &dump.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Origin: make([]dump.Origin, rows), Files: []dump.FileInfo{{Name: "f", Hi: rows, Cols: cols}}, Tensors: map[string]*dump.Tensor{}}
	lp, old, adv, g := make([]float64, rows*cols), make([]float64, rows*cols), make([]float64, rows), make([]float64, rows*cols)
	for i := range lp {
		b.Mask[i], old[i] = true, -3*rng.Float64()
		lp[i] = old[i] + 0.25*rng.NormFloat64()
		if i%cols == 0 {
			adv[i/cols] = of(rng.NormFloat64())
		}
		a, rho := adv[i/cols], math.Exp(lp[i]-old[i])
		if !(a > 0 && rho > 1.177 || a < 0 && (rho < 1-0.0625 || rho > 1.31)) {
			g[i] = -a * rho / (rows * cols)
		}
	}
	for name, x := range map[string][]float64{"logp_new": lp, "logp_old": old, "dlogp": g} {
		b.Tensors[name] = &dump.Tensor{Data: x, Layout: dump.PerToken, Width: 1, Type: format.F32, Shape: []int{rows, cols}}
	}
	b.Tensors["advantages"] = &dump.Tensor{Data: adv, Layout: dump.PerRow, Width: 1, Type: format.F32, Shape: []int{rows}}
	return b
}

// The bounds of a surrogate lie between the gradients that are 0 and those that are not.
func TestGradientClipsAreShown(t *testing.T) {
	for _, of := range []func(x float64) float64{unchanged, func(x float64) float64 { return math.Copysign(1, x) }} {
		got := map[string]float64{}
		for _, a := range gradientClips(clipped(4, of), nil, nil) {
			got[a.option] = a.value.Num()
		}
		require.InDelta(t, 0.177, got["clip.high"], 0.02)
		require.InDelta(t, 0.0625, got["clip.low"], 0.02)
		require.InDelta(t, 1.31, got["clip.dual"], 0.05)
	}
}

func unchanged(x float64) float64 { return x }

// Several steps leave less between the gradients that are 0 and those that are not than one does.
func TestGradientClipsOfSeveralSteps(t *testing.T) {
	var steps []Step
	for seed := range uint64(12) {
		b := clipped(seed, unchanged)
		b.Meta.Step = int(seed)
		steps = append(steps, Step{B: b, Set: &convention.Set{}})
	}
	shown := ShownTogether(Find("gradient/dlogp"), steps)
	require.NotEmpty(t, shown)
	for _, c := range shown[0] {
		want, there := map[string]float64{"clip.high": 0.177, "clip.low": 0.0625, "clip.dual": 1.31}[c.Option]
		require.True(t, there)
		require.InDelta(t, want, c.To.Num(), 0.004, c.Option)
	}
	require.Empty(t, ShownTogether(Find("gradient/dlogp"), steps[:1]), "one step")
	require.Empty(t, ShownTogether(Find("logp/new"), steps))
}
