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

// passes draws n tokens from softmax(z/T), and returns their log-probs and entropies at T and at other·T, and under rounded logits.
func passes(r *rand.Rand, n int, T, other, noise float64) (at, tilted, noisy, entropy []float64) {
	const v = 24
	for range n {
		z, w := make([]float64, v), make([]float64, v)
		for i := range z {
			z[i] = 2.5 * r.NormFloat64()
			w[i] = z[i] + noise*r.NormFloat64()
		}
		u, id := r.Float64(), v-1
		for i := range z {
			if _, lp := distribution(z, i, T); true {
				if u -= math.Exp(lp); u < 0 {
					id = i
					break
				}
			}
		}
		var h float64
		for i := range z {
			_, lp := distribution(z, i, T)
			h -= math.Exp(lp) * lp
		}
		_, a := distribution(z, id, T)
		_, b := distribution(z, id, T*other)
		_, c := distribution(w, id, T)
		at, tilted, noisy, entropy = append(at, a), append(tilted, b), append(noisy, c), append(entropy, h)
	}
	return at, tilted, noisy, entropy
}

// b − α·a lies between 0 and (α − 1)·H for every token, where α is at least 1.
func TestTemperatureIdentity(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 61))
	for _, other := range []float64{0.5, 0.7, 0.95, 1} {
		a, b, _, h := passes(r, 500, 0.9, other, 0)
		alpha := 1 / other
		for i := range a {
			rest := b[i] - alpha*a[i]
			require.True(t, rest >= -1e-12 && rest <= (alpha-1)*h[i]+1e-12, "%g: %g not within %g", other, rest, (alpha-1)*h[i])
		}
	}
}

// A temperature on one side alone is found whether it is declared or not; the rounding of logits is not taken for one.
func TestTemperatureOfOnePass(t *testing.T) {
	const rows, cols = 32, 16
	lengths := slices.Repeat([]int{cols}, rows)
	faults := func(id string, g grid, options string) (list []string) {
		o := Judge(Find(id), g.Batch, set(t, options))
		if o.Rules == nil { // another check has found it
			return nil
		}
		for _, v := range o.Rules.Violations {
			list = append(list, v.Fault)
		}
		return list
	}
	for seed := range uint64(6) {
		r := rand.New(rand.NewPCG(seed, 62))
		for _, options := range []string{"ratio.old=stored", "ratio.old=stored logp.temperature=0.7 logp.source=processed"} {
			for _, other := range []float64{0.7, 1 / 0.7, 1.25} {
				a, b, noisy, h := passes(r, rows*cols, 1, other, 0.05)
				healthy := newGrid(cols, lengths...).token("logp_old", a...).token("logp_new", a...).token("logp_gen", noisy...).token("entropy", h...)
				for _, id := range []string{"agreement/size", "agreement/temperature", "agreement/engine"} {
					require.Empty(t, faults(id, healthy, options), "%s: bfloat16", id)
				}
				for _, withH := range []bool{true, false} {
					base := newGrid(cols, lengths...).token("logp_old", a...).token("logp_new", a...)
					if withH {
						base.token("entropy", h...)
					}
					named := append(append(faults("agreement/size", base.token("logp_gen", b...), options), faults("agreement/engine", base, options)...), faults("agreement/drift", base, options)...)
					if withH || other < 1 { // a flatter engine hides behind the entropies of the contexts
						require.NotEmpty(t, named, "engine × %g, entropy %v, %s", other, withH, options)
					}
					if withH {
						require.Contains(t, faults("agreement/temperature", base.token("logp_ref", b...), options), "LOGP-TEMPERATURE", "reference × %g", other)
						require.Contains(t, faults("agreement/temperature", base.token("logp_new", b...), options), "LOGP-TEMPERATURE", "new pass × %g", other)
					}
				}
			}
		}
	}
}

// A policy that began with small logits, as a model from scratch has, leaves its reference at a tenth of its own: no temperature that anybody samples at.
func TestAReferenceThatKnowsLittle(t *testing.T) {
	const rows, cols = 32, 16
	r := rand.New(rand.NewPCG(4, 62))
	for _, c := range []struct {
		slope float64
		step  int
		want  int
	}{{0.1, 7, 0}, {0.1, 1, 1}, {0.6, 7, 1}} {
		old, ref := make([]float64, rows*cols), make([]float64, rows*cols)
		for i := range old {
			old[i] = -4 * r.Float64()
			ref[i] = -2.4 + c.slope*(old[i]+2) + 0.02*r.NormFloat64()
		}
		g := newGrid(cols, slices.Repeat([]int{cols}, rows)...).token("logp_old", old...).token("logp_new", old...).token("logp_ref", ref...)
		g.Batch.Meta.Step = c.step
		o := Judge(Find("agreement/temperature"), g.Batch, set(t, "ratio.old=stored"))
		require.NotNil(t, o.Rules)
		require.Len(t, o.Rules.Violations, c.want, "%g times the logits in step %d", c.slope, c.step)
	}
}

// A reference with other weights hides its temperature: it is judged at the first step of a run, where no update has made the policy sharper.
func TestTemperatureOfAReferenceWithOtherWeights(t *testing.T) {
	const rows, cols = 16, 16
	faults := func(seed uint64, other, noise float64, n, step int, entropy bool) (list []string) {
		a, tilted, noisy, h := passes(rand.New(rand.NewPCG(seed, 67)), n*cols, 1, other, noise)
		ref := make([]float64, len(a))
		for i := range a {
			ref[i] = tilted[i] + noisy[i] - a[i]
		}
		g := newGrid(cols, slices.Repeat([]int{cols}, n)...).token("logp_old", a...).token("logp_new", a...).token("logp_ref", ref...)
		if entropy {
			g.token("entropy", h...)
		}
		g.Batch.Meta.Step = step
		if o := Judge(Find("agreement/temperature"), g.Batch, set(t, "ratio.old=stored")); o.Rules != nil {
			for _, v := range o.Rules.Violations {
				list = append(list, v.Fault)
			}
		}
		return list
	}
	for seed := range uint64(8) {
		require.Equal(t, []string{"LOGP-TEMPERATURE"}, faults(seed, 0.7, 0.25, rows, 1, true), "sharper at the first step")
		require.Equal(t, []string{"LOGP-TEMPERATURE"}, faults(seed, 0.7, 0.02, 2, 1, true), "32 tokens of a reference that is the policy but for the temperature")
		require.Empty(t, faults(seed, 0.7, 0.25, rows, 7, true), "updates may have made the policy flatter")
		for _, noise := range []float64{0.05, 0.3, 1} {
			require.Empty(t, faults(seed, 1, noise, rows, 1, seed%2 == 0), "other weights alone")
		}
		require.Empty(t, faults(seed, 1/0.7, 0.3, rows, 1, true), "a policy that was trained before is sharper than its reference")
	}
}

// An engine that reports log-probs before the temperature shows the temperature of the trainer: another than the declared one is a
// convention if it is that, and not if the engine is off by another factor.
func TestTemperatureThatARawEngineShows(t *testing.T) {
	const rows, cols = 32, 16
	for _, c := range []struct {
		engine  float64 // at this times the trainer's logits
		options string
		fits    []string
	}{
		{0.7, "ratio.old=stored logp.temperature=1 logp.source=raw", []string{"0.7"}},
		{0.5, "ratio.old=stored logp.temperature=1 logp.source=raw", nil},
		{1 / 0.7, "ratio.old=stored logp.temperature=1 logp.source=raw", nil},
		{0.7, "ratio.old=stored logp.temperature=1 logp.source=processed", nil},
	} {
		a, b, _, h := passes(rand.New(rand.NewPCG(9, 66)), rows*cols, 1, 1/c.engine, 0.05)
		g := newGrid(cols, slices.Repeat([]int{cols}, rows)...).token("logp_old", a...).token("logp_new", a...).token("logp_gen", b...).token("entropy", h...)
		o := rules(t, "agreement/size", g.Batch, set(t, c.options))
		require.Equal(t, check.Fail, o.Verdict, "× %g, %s", c.engine, c.options)
		found, _ := Conventions(o)
		var fits []string
		for _, f := range found {
			fits = append(fits, f.Changes[0].To.String())
		}
		require.Equal(t, c.fits, fits, "× %g, %s", c.engine, c.options)
	}
}

// An engine with other weights is further away than rounding, and its numbers are in every outcome; weights that correct for it are no
// reason to fail, but where they leave less than a tenth of the tokens nobody says why that should be so.
func TestSizeOfTheEngine(t *testing.T) {
	const rows, cols = 16, 16
	r := rand.New(rand.NewPCG(3, 63))
	a, _, stale, _ := passes(r, rows*cols, 1, 1, 1.2)
	g := newGrid(cols, slices.Repeat([]int{cols}, rows)...).token("logp_old", a...).token("logp_new", a...).token("logp_gen", stale...)
	o := rules(t, "agreement/size", g.Batch, set(t, "ratio.old=stored"))
	require.Equal(t, check.Fail, o.Verdict)
	require.Contains(t, o.Rules.Note, "effective sample size")
	weighted := set(t, "ratio.old=stored tis.level=token")
	require.Equal(t, check.Undetermined, rules(t, "agreement/size", g.Batch, weighted).Verdict)
	declared := *g.Batch
	declared.Meta.Options = []dump.Option{{Name: "max_staleness", Value: 1.0}}
	require.Equal(t, check.Pass, rules(t, "agreement/size", &declared, weighted).Verdict)
	require.Equal(t, check.Pass, rules(t, "agreement/size", &declared, set(t, "ratio.old=stored")).Verdict, "older weights that are declared, and nothing that corrects for them")
	_, _, other, _ := passes(rand.New(rand.NewPCG(3, 63)), rows*cols, 1, 1, 6)
	far := *newGrid(cols, slices.Repeat([]int{cols}, rows)...).token("logp_old", a...).token("logp_new", a...).token("logp_gen", other...).Batch
	far.Meta.Options = declared.Meta.Options
	require.Equal(t, check.Fail, rules(t, "agreement/size", &far, set(t, "ratio.old=stored")).Verdict, "another model is no older one")
	_, _, near, _ := passes(rand.New(rand.NewPCG(3, 63)), rows*cols, 1, 1, 0.7)
	require.Equal(t, check.Pass, rules(t, "agreement/size", g.token("logp_gen", near...).Batch, weighted).Verdict)
	require.Equal(t, check.Fail, rules(t, "agreement/size", g.Batch, set(t, "ratio.old=stored")).Verdict)
	g.token("logp_gen", stale...)
	// Without logp_old the policy is that of the update: after the first of several epochs it has moved away from the engine's.
	moved := newGrid(cols, slices.Repeat([]int{cols}, rows)...).token("logp_new", a...).token("logp_gen", stale...)
	for epochs, want := range map[string]check.Verdict{"1": check.Fail, "3": check.Pass} {
		require.Equal(t, want, rules(t, "agreement/size", moved.Batch, set(t, "ratio.old=stopgrad_new optim.epochs="+epochs)).Verdict, "%s epochs", epochs)
	}
	require.Equal(t, check.Skip, Judge(Find("agreement/size"), moved.Batch, set(t, "ratio.old=stopgrad_new")).Verdict, "epochs that nobody declares")
	// So it has behind the first of several mini-batches, into whatever policy, but not at the first step of a run.
	strayed := newGrid(cols, slices.Repeat([]int{cols}, rows)...).token("logp_new", a...).token("logp_gen", other...)
	for step, want := range map[int]check.Verdict{1: check.Fail, 2: check.Pass} {
		strayed.Meta.Step = step
		several := set(t, "ratio.old=engine optim.epochs=1").WithFact("num_mini_batches", 2.0)
		failed := slices.ContainsFunc([]string{"agreement/size", "agreement/drift"}, func(id string) bool { return Judge(Find(id), strayed.Batch, several).Verdict == check.Fail })
		require.Equal(t, want == check.Fail, failed, "step %d", step)
		require.Equal(t, check.Fail, rules(t, "agreement/size", strayed.Batch, set(t, "ratio.old=engine optim.epochs=1")).Verdict, "one update a rollout")
	}
	o = rules(t, "agreement/size", g.token("logp_gen", a...).Batch, set(t, "ratio.old=stored"))
	require.Equal(t, check.Pass, o.Verdict)
	require.Contains(t, o.Rules.Note, "not two measurements")
}

// A pass without the attention mask differs on rows with left padding alone.
func TestPassWithoutAttentionMask(t *testing.T) {
	const rows, cols = 8, 16
	r := rand.New(rand.NewPCG(4, 64))
	a, _, _, _ := passes(r, rows*cols, 1, 1, 0)
	mask, wrong, right := make([]float64, rows*4), slices.Clone(a), slices.Clone(a)
	for row := range rows {
		for t := range 4 {
			if t >= row%3 {
				mask[row*4+t] = 1
			}
		}
		for i := row * cols; i < (row+1)*cols; i++ {
			right[i] += 0.02 * r.NormFloat64() * min(1, float64(row%3))
			if row%3 > 0 {
				wrong[i] -= 0.5 * r.ExpFloat64()
			}
		}
	}
	g := newGrid(cols, slices.Repeat([]int{cols}, rows)...).token("logp_old", a...).token("logp_new", right...).put("attention_mask", dump.PerRow, mask...)
	require.Equal(t, check.Pass, rules(t, "agreement/padding", g.Batch, set(t, "")).Verdict, "other kernels for padded rows")
	o := rules(t, "agreement/padding", g.token("logp_new", wrong...).Batch, set(t, ""))
	require.Equal(t, "OLD-OTHER-PASS", o.Rules.Violations[0].Fault)
	for i := range a {
		if i/cols%3 > 0 && i%9 == 0 {
			wrong[i] -= 9 // far enough for another token's
		}
	}
	misread := g.token("logp_old", wrong...).token("logp_gen", a...).Without("logp_new")
	require.Equal(t, check.Fail, rules(t, "agreement/padding", misread, set(t, "")).Verdict)
	for _, id := range []string{"agreement/engine", "agreement/drift"} {
		require.Equal(t, check.Pass, rules(t, id, misread, set(t, "")).Verdict, "%s: what padding explains is not the engine's", id)
	}
}

// A pass whose log-probs follow another's not at all, or backwards, is no pass at another temperature, however much of their difference a line
// through them explains.
func TestNoTemperatureTurnsADistributionRound(t *testing.T) {
	d := Discrepancy{Tokens: 1000, Slope: 0.7, SlopeZ: 90, Explains: 0.95, Scale: 1}
	require.True(t, d.tilted(0.9))
	for _, slope := range []float64{-0.0085, 0, 0.03} {
		d.Slope = slope
		require.False(t, d.tilted(0.9), "%g", slope)
	}
}

// Left padding tells rows apart where some rows have it and some have none.
func TestPaddingOfRows(t *testing.T) {
	for _, c := range []struct {
		mask []float64 // of three rows of four cells
		want []int
	}{
		{[]float64{1, 1, 1, 1, 0, 1, 1, 1, 0, 0, 1, 0}, []int{0, 1, 2}},
		{[]float64{0, 1, 1, 1, 0, 1, 1, 1, 0, 0, 1, 1}, nil},
		{[]float64{1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 0, 0}, nil},
		{[]float64{1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1}, []int{0, 4, 0}},
	} {
		g := newGrid(2, 2, 2, 2)
		g.Tensors["attention_mask"] = &dump.Tensor{Name: "attention_mask", Layout: dump.PerRow, Width: 4, Data: c.mask}
		require.Equal(t, c.want, NewCase(g.Batch, set(t, ""), 0).padding())
	}
}

// A difference of temperature explains nine tenths of what two passes differ by, or four fifths where it is by about the declared one: 2, or ½ of its
// inverse, and 1 is none.
func TestShareThatATemperatureExplains(t *testing.T) {
	d := func(slope, explains float64) Discrepancy {
		return Discrepancy{Tokens: 1000, Slope: slope, SlopeZ: 90, Explains: explains, Scale: 1}
	}
	for _, c := range []struct {
		temperature     string
		slope, explains float64
		want            bool
	}{
		{"2", 2, 0.85, true}, {"2", 0.5, 0.85, true}, {"2", 0.5, 0.79, false}, {"2", 3, 0.85, false}, {"2", 3, 0.95, true},
		{"0.7", 0.7, 0.85, true}, {"0.7", 1 / 0.7, 0.85, true}, {"1", 1.5, 0.85, false}, {"1", 1.5, 0.95, true},
	} {
		got := NewCase(newGrid(1, 1).Batch, set(t, "logp.temperature="+c.temperature), 0).tempered(d(c.slope, c.explains))
		require.Equal(t, c.want, got, "%+v", c)
	}
}

// How old an engine may be is read from the options of the files and from what is declared beside them (--set, --config): the oldest counts.
func TestLagIsDeclared(t *testing.T) {
	b := newGrid(1, 1).Batch
	said := &convention.Set{}
	require.False(t, Asynchronous(b, said))
	require.False(t, Asynchronous(b, said.WithFact("one_step_off", false)))
	require.Equal(t, 1.0, Lag(b, said.WithFact("async_rollout", true)))
	require.Equal(t, 2.0, Lag(b, said.WithFact("async_rollout", true).WithFact("max_staleness", 2.0)))
	require.False(t, Asynchronous(b, said.WithFact("num_generations", 8.0)))
	b.Meta.Options = []dump.Option{{Name: "rollout.max_staleness", Value: 3.0}}
	require.Equal(t, 3.0, Lag(b, said.WithFact("async_rollout", true)))
}
