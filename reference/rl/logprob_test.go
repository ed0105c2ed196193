package rl

import (
	"math"
	"testing"

	"plumbline/reference/ad"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// drawLogits draws n rows of vocab logits with token ids, at most one logit of a row being −Inf.
func drawLogits(t *rapid.T) (logits []float64, ids []int, vocab int) {
	n := rapid.IntRange(1, 4).Draw(t, "n")
	vocab = rapid.IntRange(1, 9).Draw(t, "vocab")
	logits = drawCells(t, "logits", n*vocab)
	ids = rapid.SliceOfN(rapid.IntRange(0, vocab-1), n, n).Draw(t, "ids")
	return logits, ids, vocab
}

// logProbLaws checks log-probs and entropies of one draw against each other and the tape, and returns the first law broken.
func logProbLaws(lp func(logits []float64, ids []int, vocab int, o LogProbOptions) []float64,
	entropy func(logits []float64, vocab int, o EntropyOptions) []float64, logits []float64, ids []int, vocab int, o LogProbOptions) string {
	n := len(ids)
	got := lp(logits, ids, vocab, o)
	h := entropy(logits, vocab, EntropyOptions{LogProbOptions: o})

	var tape ad.Tape
	x := tape.Param(append([]float64{}, logits...), n, vocab)
	t := o.divisor()
	ls := ad.LogSoftmax(ad.Scale(x, 1/t), 1)
	want := ad.Reshape(ad.Gather(ls, 1, ids), n)
	wantH := ad.Neg(ad.Sum(ad.Mul(ad.Exp(ls), ls), false, 1))
	if closeTo(got, want.Data()) != nil {
		return "log-prob of the tape"
	}
	if closeTo(h, wantH.Data()) != nil {
		return "entropy of the tape"
	}
	for r := range n {
		all := make([]int, vocab)
		rows := make([]float64, 0, vocab*vocab)
		for j := range all {
			all[j] = j
			rows = append(rows, logits[r*vocab:(r+1)*vocab]...)
		}
		var sum, mean float64
		for _, l := range lp(rows, all, vocab, o) {
			if l > 0 {
				return "a log-prob is at most 0"
			}
			sum += math.Exp(l)
			if p := math.Exp(l); p > 0 {
				mean -= p * l
			}
		}
		if !(math.Abs(sum-1) <= 1e-13) {
			return "probabilities add up to 1"
		}
		if !(math.Abs(mean-h[r]) <= 1e-13) || h[r] < -1e-15 || h[r] > math.Log(float64(vocab))+1e-14 {
			return "entropy is the mean of −lp, between 0 and ln V"
		}
	}
	shifted := make([]float64, len(logits))
	for i, v := range logits {
		shifted[i] = v + 64 // exact for a grid of thousandths is not: bounded below
	}
	if off(lp(shifted, ids, vocab, o), got, 1e-12/min(t, 1)) != nil {
		return "shift of the logits"
	}
	return ""
}

func rightLogProbs(logits []float64, ids []int, vocab int, o LogProbOptions) []float64 {
	return LogProbs(nil, logits, ids, vocab, o)
}

func rightEntropy(logits []float64, vocab int, o EntropyOptions) []float64 {
	return Entropy(nil, logits, vocab, o)
}

func TestLogProbLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		logits, ids, vocab := drawLogits(t)
		o := LogProbOptions{Temperature: rapid.SampledFrom([]float64{0, 1, .7, 2}).Draw(t, "T"), TempEps: rapid.SampledFrom([]float64{0, 1e-7}).Draw(t, "eps")}
		if law := logProbLaws(rightLogProbs, rightEntropy, logits, ids, vocab, o); law != "" {
			t.Fatal(law)
		}
	})
}

func TestLogProbLawsReject(t *testing.T) {
	logits, ids := []float64{1, -2, .5, 3, 0, -1}, []int{2, 0}
	o := LogProbOptions{Temperature: .7}
	require.Empty(t, logProbLaws(rightLogProbs, rightEntropy, logits, ids, 3, o))
	for name, f := range map[string]func([]float64, []int, int, LogProbOptions) []float64{
		"temperature ignored": func(x []float64, ids []int, v int, o LogProbOptions) []float64 {
			return LogProbs(nil, x, ids, v, LogProbOptions{})
		},
		"temperature multiplied": func(x []float64, ids []int, v int, o LogProbOptions) []float64 {
			return LogProbs(nil, x, ids, v, LogProbOptions{Temperature: 1 / o.Temperature})
		},
		"label of the next token": func(x []float64, ids []int, v int, o LogProbOptions) []float64 {
			return LogProbs(nil, x, append(ids[1:len(ids):len(ids)], ids[0]), v, o)
		},
		"without the maximum's row": func(x []float64, ids []int, v int, o LogProbOptions) []float64 {
			y := LogProbs(nil, x, ids, v, o)
			y[0] += 1e-9
			return y
		},
	} {
		require.NotEmpty(t, logProbLaws(f, rightEntropy, logits, ids, 3, o), name)
	}
	require.NotEmpty(t, logProbLaws(rightLogProbs, func(x []float64, v int, o EntropyOptions) []float64 {
		return Entropy(nil, x, v, EntropyOptions{})
	}, logits, ids, 3, o), "entropy of the unscaled logits")
}

// TestLogProbGradients: the gradients with respect to the logits equal the tape's.
func TestLogProbGradients(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		logits, ids, vocab := drawLogits(t)
		n := len(ids)
		o := LogProbOptions{Temperature: .7, TempEps: 1e-7}
		g := drawCells(t, "g", n)

		var tape ad.Tape
		x := tape.Param(append([]float64{}, logits...), n, vocab)
		ls := ad.LogSoftmax(ad.Scale(x, 1/o.divisor()), 1)
		ad.Backward(ad.Reshape(ad.Gather(ls, 1, ids), n), g)
		got := LogProbsBackward(nil, g, logits, ids, vocab, o)
		if err := closeTo(got, x.Grad()); err != nil {
			t.Fatalf("log-prob: %v", err)
		}
		for r := range n { // a gradient with respect to logits sums to 0
			var sum float64
			for _, v := range got[r*vocab : (r+1)*vocab] {
				sum += v
			}
			if !(math.Abs(sum) <= 1e-13) {
				t.Fatalf("row %d sums to %v", r, sum)
			}
		}
		x.ZeroGrad()
		ad.Backward(ad.Neg(ad.Sum(ad.Mul(ad.Exp(ls), ls), false, 1)), g)
		if err := closeTo(EntropyBackward(nil, g, logits, vocab, EntropyOptions{LogProbOptions: o}), x.Grad()); err != nil {
			t.Fatalf("entropy: %v", err)
		}
		// Both add into what is there.
		sum := EntropyBackward(append([]float64{}, got...), g, logits, vocab, EntropyOptions{LogProbOptions: o})
		for i, v := range x.Grad() {
			if !(math.Abs(sum[i]-got[i]-v) <= 1e-12) {
				t.Fatal("the backward passes do not add")
			}
		}
	})
}

func TestEntropyEdges(t *testing.T) {
	inf := math.Inf(1)
	x := []float64{0, 0, -inf, 0}
	require.InDelta(t, math.Log(3), Entropy(nil, x, 4, EntropyOptions{})[0], 1e-15)
	require.True(t, math.IsNaN(Entropy(nil, x, 4, EntropyOptions{ZeroTimesInf: true})[0]), "0·(−∞)")
	require.Equal(t, math.Inf(-1), LogProbs(nil, x, []int{2}, 4, LogProbOptions{})[0])
	require.InDelta(t, -math.Log(3), LogProbs(nil, x, []int{1}, 4, LogProbOptions{})[0], 1e-15)
	for i, g := range EntropyBackward(nil, []float64{1}, x, 4, EntropyOptions{}) {
		require.InDelta(t, 0, g, 1e-15, "%d", i)
	}
	for _, g := range EntropyBackward(nil, []float64{1}, x, 4, EntropyOptions{ZeroTimesInf: true}) {
		require.True(t, math.IsNaN(g))
	}
	for _, bad := range [][]float64{{-inf, -inf}, {inf, 0}, {nan, 0}} {
		require.True(t, math.IsNaN(LogProbs(nil, bad, []int{0}, 2, LogProbOptions{})[0]), "%v", bad)
	}
	far := []float64{1e4, 1e4 + 1, 1e4 + 2} // no overflow, no cancellation
	require.Equal(t, Entropy(nil, []float64{0, 1, 2}, 3, EntropyOptions{}), Entropy(nil, far, 3, EntropyOptions{}))
	require.InDelta(t, 1./3, SumPiSquared(nil, x, 4, LogProbOptions{})[0], 1e-15)
	require.Panics(t, func() { LogProbs(nil, x, []int{4}, 4, LogProbOptions{}) })
	require.Panics(t, func() { LogProbs(nil, x, []int{-1}, 4, LogProbOptions{}) })
	require.Panics(t, func() { LogProbs(nil, x, []int{0}, 3, LogProbOptions{}) })
}

func TestEntropyOfTokens(t *testing.T) {
	mask := []bool{true, true, true, true, false}
	h := []float64{1, 2, 3, 4, 99}
	require.Equal(t, []float64{0, 0, 1, 1, 0}, HighEntropyMask(nil, h, mask, .5)) // threshold 2.5
	require.Equal(t, []float64{0, 1, 1, 1, 0}, HighEntropyMask(nil, h, mask, 2./3))
	require.Equal(t, []float64{1, 1, 1, 1, 0}, HighEntropyMask(nil, h, mask, 1))
	require.Equal(t, []float64{0, 0, 0, 1, 0}, HighEntropyMask(nil, h, mask, 0), "the maximum is at least itself")
	require.Equal(t, []float64{0, 0}, HighEntropyMask(nil, h[:2], []bool{false, false}, .5))

	loss, dh, err := EntropyBonus(nil, h, mask, 1, 5, .1, AggOptions{})
	require.NoError(t, err)
	require.InDelta(t, -.25, loss, 1e-15)
	require.NoError(t, off(dh, []float64{-.025, -.025, -.025, -.025, 0}, 1e-15))

	// Sampling under p itself, enumerated: Σ p·(−ln p) with weight 1.
	lp := []float64{math.Log(.5), math.Log(.5)}
	require.InDelta(t, math.Ln2, MonteCarloEntropy(lp, lp, nil, 0), 1e-15)
	gen := []float64{math.Log(.25), nan}
	require.InDelta(t, 2*math.Ln2, MonteCarloEntropy(lp, gen, []bool{true, false}, 0), 1e-15)
}
