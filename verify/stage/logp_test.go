package stage

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
)

// logp32 and entropy32 are those of one row of logits in float32.
func logp32(r *rand.Rand, x []float32, id int, temperature float32) (lp, entropy float32) {
	z := make([]float32, len(x))
	top := f32(math.Inf(-1))
	for i, v := range x {
		z[i] = v / temperature
		top = max(top, z[i])
	}
	e := make([]float32, len(z))
	for i, v := range z {
		e[i] = exp32(r, v-top)
	}
	sum := sums32(r)(e)
	lse := top + log32(r, sum)
	lp = z[id] - lse
	terms := make([]float32, len(z))
	switch r.IntN(3) {
	case 0: // ln Σ − Σ p·z
		for i, v := range z {
			terms[i] = e[i] / sum * v
		}
		return lp, lse - sums32(r)(terms)
	case 1: // −Σ p·ln p
		for i, v := range z {
			terms[i] = exp32(r, v-lse) * (v - lse)
		}
		return lp, -sums32(r)(terms)
	}
	lp = (z[id] - top) - log32(r, sum)
	for i, v := range z {
		terms[i] = e[i] / sum * (v - top)
	}
	return lp, log32(r, sum) - sums32(r)(terms)
}

var logitFamilies = map[string]func(r *rand.Rand) float64{
	"flat":   func(r *rand.Rand) float64 { return 0.1 * r.NormFloat64() },
	"normal": func(r *rand.Rand) float64 { return 4 * r.NormFloat64() },
	"offset": func(r *rand.Rand) float64 { return 500 + r.NormFloat64() },
	"peaked": func(r *rand.Rand) float64 { return math.Exp(2 * r.NormFloat64()) },
}

func logitBatch(r *rand.Rand, draw func(*rand.Rand) float64, vocab int, temperature float32) grid {
	g := randomGrid(r, 1+r.IntN(3), 1+r.IntN(4), true)
	n := len(g.Mask)
	x := make([]float64, n*vocab)
	for i := range x {
		x[i] = float64(f32(draw(r)))
	}
	ids, lp, h := make([]float64, n), make([]float64, n), make([]float64, n)
	for i := range ids {
		id := r.IntN(vocab)
		a, b := logp32(r, narrow(x[i*vocab:(i+1)*vocab]), id, temperature)
		ids[i], lp[i], h[i] = float64(id), float64(a), float64(b)
	}
	return g.token("logits", x...).token("response_ids", ids...).token("logp_new", lp...).token("entropy", h...)
}

func TestLogpBound(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 1))
	logp, entropy := worst{}, worst{}
	for _, family := range sorted(logitFamilies) {
		draw := logitFamilies[family]
		for _, text := range []string{"1", "0.7"} {
			temperature := map[string]float32{"1": 1, "0.7": 0.7}[text]
			s := set(t, "entropy.logits=scaled logp.temp_eps=0 logp.temperature="+text)
			for range 300 {
				g := logitBatch(r, draw, 1+r.IntN(60), temperature)
				if o := Judge(Find("logp/new"), g.Batch, s); o.Tally.N+o.Exact == 0 {
					continue
				}
				logp.add(t, family, "logp/new", g.Batch, s)
				entropy.add(t, family, "logp/entropy", g.Batch, s)
				require.Equal(t, check.Pass, Judge(Find("logp/range"), g.Batch, s).Verdict)
				require.Equal(t, check.Pass, Judge(Find("logp/entropy_range"), g.Batch, s).Verdict, family)
			}
		}
	}
	logp.tight(t)
	entropy.tight(t)
}

func TestLogpFindsFaults(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 2))
	g := logitBatch(r, logitFamilies["normal"], 20, 1)
	for len(g.Mask) < 6 || !g.Mask[0] || !g.Mask[1] {
		g = logitBatch(r, logitFamilies["normal"], 20, 1)
	}
	s := set(t, "entropy.logits=scaled logp.temp_eps=0 logp.temperature=1")
	hot := set(t, "entropy.logits=scaled logp.temp_eps=0 logp.temperature=0.9")
	fails(t, "logp/new", g.Batch, hot)
	fails(t, "logp/entropy", g.Batch, hot)
	require.Equal(t, check.Pass, Judge(Find("logp/entropy"), g.Batch, set(t, "entropy.logits=unscaled")).Verdict)
	lacks(t, "logp/entropy", g.Batch, set(t, "entropy.logits=monte_carlo"), "monte_carlo")
	lacks(t, "logp/entropy", g.Batch, set(t, ""), "entropy.logits")
	lacks(t, "logp/new", g.Batch, set(t, ""), "logp.temperature")
	lacks(t, "logp/new", g.Without("response_ids"), s, "response_ids")
	lp := g.Token("logp_new")
	shifted := append(append([]float64(nil), lp[1:]...), lp[0])
	fails(t, "logp/new", g.With("logp_new", shifted), s)
	lp[0] += 1e-4
	fails(t, "logp/new", g.Batch, s)

	// Logits of some rows only: the others are not judged.
	g = logitBatch(r, logitFamilies["normal"], 5, 1)
	for g.Rows < 2 || !g.Mask[(g.Rows-1)*g.Cols] {
		g = logitBatch(r, logitFamilies["normal"], 5, 1)
	}
	x := g.Token("logits")
	g.Token("logp_new")[0] = -77
	g.Tensors["logits"] = &dump.Tensor{Name: "logits", Layout: dump.Slice, Width: 5, Rows: []int{g.Rows - 1}, Data: x[(g.Rows-1)*g.Cols*5:]}
	require.Equal(t, check.Pass, Judge(Find("logp/new"), g.Batch, s).Verdict)
}

func TestLogpRanges(t *testing.T) {
	g := newGrid(3, 2).token("logp_old", -1, 0, 1).token("entropy", 0.5, 1.3, -1)
	s := set(t, "").WithFact("vocab_size", 4.0)
	require.Equal(t, check.Pass, Judge(Find("logp/range"), g.Batch, s).Verdict, "what is outside the mask is not looked at")
	require.Equal(t, check.Pass, Judge(Find("logp/entropy_range"), g.Batch, s).Verdict)
	g.token("logp_old", -1, 1, 0)
	o := Judge(Find("logp/range"), g.Batch, s)
	require.Equal(t, check.Fail, o.Verdict)
	require.Equal(t, Violation{Reason: "logp_old is a log-probability above 0", Row: 0, Col: 1, Got: 1}, o.Rules.Violations[0])
	for _, h := range []float64{-1e-3, math.Log(4) + 1e-3} {
		require.Equal(t, check.Fail, Judge(Find("logp/entropy_range"), g.token("entropy", 0.5, h, 0).Batch, s).Verdict)
	}
	require.Equal(t, check.Pass, Judge(Find("logp/entropy_range"), g.Batch, set(t, "")).Verdict, "no bound from above without a vocabulary")
	below := newGrid(most+1, most+1)
	note := assertEntropyRange(NewCase(below.token("entropy", slices.Repeat([]float64{-1}, len(below.Mask))...).Batch, set(t, ""), 0)).Note
	require.Regexp(t, "asserted; [0-9]+ entropies out of range$", note)
	require.Equal(t, check.NotSeen, Judge(Find("logp/entropy_range"), g.Without("entropy"), s).Verdict)
}

// Entropies below 0 are another number than an entropy where they are many; all of them at the size of the log-probs lack their minus. A few that are next to
// 0 are of rounding, and have no name.
func TestEntropiesBelowZero(t *testing.T) {
	g := newGrid(8, 8, 8)
	g.token("logp_new", slices.Repeat([]float64{-1.5, -2.5}, 8)...)
	s := set(t, "")
	fault := func(h ...float64) Violation {
		o := Judge(Find("logp/entropy_range"), g.token("entropy", slices.Repeat(h, 16/len(h))...).Batch, s)
		if o.Verdict != check.Fail {
			return Violation{}
		}
		return o.Rules.Violations[0]
	}
	require.Empty(t, fault(2, 1.9))
	require.Equal(t, "ENTROPY-FORM", fault(-2, -1.9).Fault)
	require.Contains(t, fault(-2, -1.9).Reason, "the minus is missing")
	require.Equal(t, "ENTROPY-FORM", fault(-2, 1.9).Fault)
	require.Contains(t, fault(-2, 1.9).Reason, "which no distribution has")
	require.Equal(t, "", fault(1e-4, -1e-3).Fault)
}

// Whether logits are divided is read off the temperature, and a check that asks says so.
func TestUndividedReadsTheTemperature(t *testing.T) {
	for text, want := range map[string]bool{"": false, "logp.temperature=1": true, "logp.temperature=0.7": false, "logp.temperature=1 logp.temp_eps=1e-6": false} {
		c := NewCase(newGrid(1, 1).Batch, set(t, text), 0)
		require.Equal(t, want, c.undivided(), text)
		require.Equal(t, text != "", slices.Contains(c.Read, "logp.temperature"), text)
	}
}
