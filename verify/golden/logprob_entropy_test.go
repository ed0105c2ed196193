package golden_test

import (
	"math"
	"testing"

	"plumbline/reference/rl"

	"github.com/stretchr/testify/require"
)

// unit returns the unit roundoff of the type that an entry was computed in.
func unit(t *testing.T, dtype string) float64 {
	t.Helper()
	u, ok := map[string]float64{"float64": 0x1p-53, "float32": 0x1p-24, "bfloat16": 0x1p-8}[dtype]
	require.True(t, ok, dtype)
	return u
}

// row is one row of logits with what the bounds need, in float64.
type row struct {
	z              []float64 // logits over temperature
	p              []float64
	lse, h         float64
	largest, moved float64 // max |z| and Σ p·|z| over finite z
}

// rowsOf scales the logits and computes their softmax by its definition.
func rowsOf(x []float64, vocab int, temperature float64) []row {
	rows := make([]row, len(x)/vocab)
	for n := range rows {
		r := row{z: make([]float64, vocab), p: make([]float64, vocab)}
		top, sum := math.Inf(-1), 0.0
		for j := range r.z {
			r.z[j] = x[n*vocab+j] / temperature
			top = max(top, r.z[j])
		}
		for _, z := range r.z {
			sum += math.Exp(z - top)
		}
		r.lse = top + math.Log(sum)
		for j, z := range r.z {
			r.p[j] = math.Exp(z-top) / sum
			if !math.IsInf(z, 0) {
				r.largest = max(r.largest, math.Abs(z))
				r.moved += r.p[j] * math.Abs(z)
				r.h += r.p[j] * (r.lse - z)
			}
		}
		rows[n] = r
	}
	return rows
}

// The bounds are those of a framework that computes in a type of unit roundoff u: a sum of v terms carries v·u, exp and log
// 4u each, the division by a temperature u·|z|. With s = v·u + 4u + 2u·max|z| the relative error of Σ exp(z − max):
//
//	lp  = z_id − lse   s + u·(|z_id| + |lse| + |lp|)
//	H   = lse − Σ p·z  (lse as above) + Σ p·|z|·(s + u·(2 + v)) + u·|H|
//	p                  p·(s + u·(|lse| + 4))   since p = exp(z − lse)
//
// and gradients of H are p·(lse − z − H) with the errors of their factors.
func (r *row) sumError(u float64) float64 {
	return u * (float64(len(r.z)) + 8 + 2*r.largest)
}

func (r *row) logProbError(u float64, id int) float64 {
	return r.sumError(u) + u*(math.Abs(r.z[id])+math.Abs(r.lse)+math.Abs(r.z[id]-r.lse))
}

func (r *row) entropyError(u float64) float64 {
	s := r.sumError(u)
	return s + u*math.Abs(r.lse) + r.moved*(s+u*float64(2+len(r.z))) + u*r.h
}

func TestLogProbEntropy(t *testing.T) {
	compared, worst := map[string]int{}, map[string]float64{}
	// within demands |got − want| ≤ bound per element, and notes the largest quotient.
	within := func(e *entry, what string, got, want, bound []float64) {
		t.Helper()
		require.Len(t, got, len(want), e.name())
		for i, w := range want {
			if math.IsNaN(w) && math.IsNaN(got[i]) || w == got[i] {
				continue
			}
			if !(math.Abs(got[i]-w) <= bound[i]) {
				t.Errorf("%s: %s: element %d is %v, want %v within %.3g", e.name(), what, i, got[i], w, bound[i])
				return
			}
			key := what + " " + e.str(t, "dtype")
			worst[key] = max(worst[key], math.Abs(got[i]-w)/bound[i])
		}
	}
	for _, e := range load(t, "logprob_entropy") {
		logits, ids := e.input(t, "logits"), []int{}
		for _, id := range e.input(t, "ids").Data {
			ids = append(ids, int(id))
		}
		vocab := logits.Shape[len(logits.Shape)-1]
		lo := rl.LogProbOptions{Temperature: option(t, e, "temperature", 1)}
		rows := rowsOf(logits.Data, vocab, lo.Temperature)
		u := unit(t, e.str(t, "dtype"))
		eo := rl.EntropyOptions{LogProbOptions: lo, ZeroTimesInf: true}
		keep := make([]float64, len(ids))
		for i := range keep {
			keep[i] = 1
		}
		if m, ok := e.In["row_mask"]; ok {
			keep = m.Data
		}

		if out, ok := e.Out["logp"]; ok {
			got := rl.LogProbs(nil, logits.Data, ids, vocab, lo)
			bound := make([]float64, len(got))
			for i := range got {
				if keep[i] == 0 {
					got[i] = 0 // selected away
				}
				bound[i] = rows[i].logProbError(u, ids[i])
			}
			within(e, "logp", got, out.Data, bound)
		}
		if out, ok := e.Out["entropy"]; ok {
			ue := max(u, unit(t, out.DType)) // a result may be stored in less
			got := rl.Entropy(nil, logits.Data, vocab, eo)
			bound := make([]float64, len(got))
			for i := range got {
				if keep[i] == 0 {
					got[i] = 0
				}
				bound[i] = rows[i].entropyError(ue)
			}
			within(e, "entropy", got, out.Data, bound)
		}
		if out, ok := e.Out["dsum_dlogits"]; ok {
			ones := make([]float64, len(ids))
			for i := range ones {
				ones[i] = 1
			}
			bound := make([]float64, len(logits.Data))
			var got []float64
			what := "dlogp"
			if _, ok := e.Out["logp"]; ok {
				got = rl.LogProbsBackward(nil, ones, logits.Data, ids, vocab, lo)
				for i := range bound {
					r := &rows[i/vocab]
					bound[i] = r.p[i%vocab]*(r.sumError(u)+u*(math.Abs(r.lse)+4)) + u
				}
			} else {
				got, what = rl.EntropyBackward(nil, ones, logits.Data, vocab, eo), "dentropy"
				if _, chunked := e.Out["entropy"]; chunked && e.Out["entropy"].DType == "float32" {
					u = max(u, unit(t, "float32"))
				}
				for i := range bound {
					r := &rows[i/vocab]
					p, z := r.p[i%vocab], r.z[i%vocab]
					if math.IsInf(z, 0) {
						continue
					}
					ep := p * (r.sumError(u) + u*(math.Abs(r.lse)+4))
					if u > 0x1p-53 { // float32 underflows
						ep += 0x1p-126
						p += 0x1p-126
					}
					bound[i] = ep*math.Abs(r.lse-z-r.h) + p*(r.entropyError(u)+u*(math.Abs(r.lse)+math.Abs(z))) + u*p*math.Abs(z)
				}
			}
			within(e, what, got, out.Data, bound)
		}
		if out, ok := e.Out["sum_pi_squared"]; ok {
			got := rl.SumPiSquared(nil, logits.Data, vocab, lo)
			bound := make([]float64, len(got))
			for i := range got {
				r := &rows[i]
				bound[i] = got[i]*(2*r.sumError(u)+u*(2*math.Abs(r.lse)+float64(vocab)+8)) + u*got[i]
			}
			within(e, "sum_pi_squared", got, out.Data, bound)
		}
		compared[e.Peer+" "+e.Function]++
	}
	// An error far below its bound would mean that the bound says nothing.
	for what, w := range worst {
		require.Greater(t, w, 0.02, what)
	}
	require.Equal(t, map[string]int{
		"verl logprobs_from_logits": 15, "verl logprobs_from_logits_naive": 15, "openrlhf log_probs_from_logits": 30,
		"trl selective_log_softmax": 30, "verl entropy_from_logits": 15, "verl entropy_from_logits_with_chunking": 15,
		"openrlhf compute_entropy": 15, "trl entropy_from_logits": 15, "verl calculate_sum_pi_squared_from_logits": 15,
		"trl selective_log_softmax_and_entropy": 15,
	}, compared)
}
