package fault

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// weightedBy returns a step whose importance weights a program makes of the log-ratios d of the tokens of each row, of which the cells before the last one
// that are not tokens have a log-ratio, too.
func weightedBy(of func(d []float64, mask []bool) []float64) *dump.Batch {
	b := updated(func(float64, float64) float64 { return 0 })
	delete(b.Tensors, "token_loss")
	r := rand.New(rand.NewPCG(11, 12))
	old := b.Token("logp_old")
	gen, w := make([]float64, len(old)), make([]float64, len(old))
	for i := range old {
		gen[i] = float64(float32(old[i] + 0.4*r.NormFloat64()))
		b.Mask[i] = i%b.Cols != 2 && i%b.Cols < 4+i/b.Cols%3 // a hole, and rows of unequal lengths
	}
	for row := range b.Rows {
		lo, hi := row*b.Cols, (row+1)*b.Cols
		d := make([]float64, b.Cols)
		for t := range d {
			d[t] = old[lo+t] - gen[lo+t]
		}
		for t, x := range of(d, b.Mask[lo:hi]) {
			if b.Mask[lo+t] {
				w[lo+t] = float64(float32(x))
			}
		}
	}
	for name, x := range map[string][]float64{"logp_gen": gen, "is_weights": w} {
		b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: x, Type: format.F32}
	}
	return b
}

// eachWeight makes a weight of every log-ratio by itself, wholeWeight one of those of the tokens of a row.
func eachWeight(of func(d float64) float64) func(d []float64, mask []bool) []float64 {
	return func(d []float64, _ []bool) []float64 { return mapped(d, of) }
}

func wholeWeight(of func(d []float64) float64) func(d []float64, mask []bool) []float64 {
	return func(d []float64, mask []bool) []float64 {
		var own []float64
		for t, in := range mask {
			if in {
				own = append(own, d[t])
			}
		}
		return mapped(d, func(float64) float64 { return of(own) })
	}
}

func weightSet(t *testing.T, options ...string) *convention.Set {
	t.Helper()
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for i := 0; i < len(options); i += 2 {
		set = set.With(options[i], parsed(options[i], options[i+1]), "test")
	}
	return set
}

// Weights of another set of tokens, under another rule or in 16 bits are named by that.
func TestWeightEdits(t *testing.T) {
	ch := stage.Find("ratio/is_weights")
	token := weightSet(t, "tis.level", "token", "tis.rule", "truncate_upper", "tis.high", "1.6", "tis.low", "none")
	band := weightSet(t, "tis.level", "token", "tis.rule", "zero_outside", "tis.high", "1.3", "tis.low", "0.8")
	sum := weightSet(t, "tis.level", "seq_sum", "tis.rule", "zero_outside", "tis.high", "3", "tis.low", "none")
	mean := weightSet(t, "tis.level", "seq_geo", "tis.rule", "truncate_upper", "tis.high", "2", "tis.low", "none")
	zeroAbove := func(x, hi float64) float64 {
		if x > hi {
			return 0
		}
		return x
	}
	filter := weightSet(t, "tis.level", "seq_geo", "tis.rule", "seq_filter", "tis.high", "1.15", "tis.low", "0.9")
	filtered := func(of func(w, x float64) float64) func(d []float64, mask []bool) []float64 {
		return func(d []float64, mask []bool) []float64 {
			x := wholeWeight(func(d []float64) float64 { return math.Exp(total(d) / float64(len(d))) })(d, mask)
			for i := range x {
				x[i] = of(math.Exp(d[i]), x[i])
			}
			return x
		}
	}
	meanOf := func(x []float64) float64 { return total(x) / float64(len(x)) }
	for _, c := range []struct {
		set       *convention.Set
		id, words string // "" is a program without a bug
		of        func(d []float64, mask []bool) []float64
	}{
		{token, "", "", eachWeight(func(d float64) float64 { return math.Min(math.Exp(d), 1.6) })},
		{token, "IS-BOUND-FORM", "at least 1, and at most tis.high", eachWeight(func(d float64) float64 { return math.Min(math.Max(math.Exp(d), 1), 1.6) })},
		{token, "IS-BOUND-FORM", "at least 1/tis.high", eachWeight(func(d float64) float64 { return math.Min(math.Max(math.Exp(d), 1/1.6), 1.6) })},
		{token, "IS-BOUND-FORM", "tis.high − 1", eachWeight(func(d float64) float64 { return math.Exp(math.Min(d, 1.6-1)) })},
		{band, "IS-BOUND-FORM", "not bounded from above", eachWeight(func(d float64) float64 { return math.Exp(d) * float64(boolToInt(math.Exp(d) >= 0.8)) })},
		{token, "IS-NORMALISED", "times one number", eachWeight(func(d float64) float64 { return math.Min(math.Exp(d), 1.6) * 0.973 })},
		{token, "IS-LEVEL", "the mean of those of its tokens", wholeWeight(func(d []float64) float64 { return math.Min(meanOf(mapped(d, math.Exp)), 1.6) })},
		{token, "IS-LEVEL", "up to the token", func(d []float64, mask []bool) []float64 {
			y, at := make([]float64, len(d)), 0.0
			for i := range d {
				if mask[i] {
					at += d[i]
				}
				y[i] = math.Min(math.Exp(at), 1.6)
			}
			return y
		}},
		{token, "IS-CLAMP-MISSING", "not bounded", eachWeight(math.Exp)},
		{token, "RATIO-FORM", "e to the −3d", eachWeight(func(d float64) float64 { return math.Min(math.Exp(-3*d), 1.6) })},
		{token, "RATIO-FORM", "e to the 2d/3", eachWeight(func(d float64) float64 { return math.Min(math.Exp(d*2/3), 1.6) })},
		{token, "IS-LEVEL", "all cells up to the token", func(d []float64, _ []bool) []float64 {
			return mapped(sumsUpTo(d), func(x float64) float64 { return math.Min(math.Exp(x), 1.6) })
		}},
		{filter, "", "", filtered(func(w, x float64) float64 { return w * float64(boolToInt(0.9 <= x && x <= 1.15)) })},
		{filter, "IS-BOUND-FORM", "inverted", filtered(func(w, x float64) float64 { return w * float64(boolToInt(x < 0.9 || x > 1.15)) })},
		{filter, "IS-BOUND-FORM", "1 outside", filtered(func(w, x float64) float64 {
			if 0.9 <= x && x <= 1.15 {
				return w
			}
			return 1
		})},
		{band, "", "", eachWeight(func(d float64) float64 { return zeroAbove(math.Exp(d), 1.3) * float64(boolToInt(math.Exp(d) >= 0.8)) })},
		{band, "IS-BOUND-FORM", "inverted", eachWeight(func(d float64) float64 {
			return math.Exp(d) * float64(boolToInt(math.Exp(d) < 0.8 || math.Exp(d) > 1.3))
		})},
		{band, "IS-BOUND-FORM", "1 outside", eachWeight(func(d float64) float64 {
			if x := math.Exp(d); x >= 0.8 && x <= 1.3 {
				return x
			}
			return 1
		})},
		{band, "IS-BF16", "both in bfloat16", eachWeight(func(d float64) float64 {
			x := inHalf(math.Exp(inHalf(d)))
			return zeroAbove(x, 1.3) * float64(boolToInt(x >= 0.8))
		})},
		{sum, "", "", wholeWeight(func(d []float64) float64 { return zeroAbove(math.Exp(total(d)), 3) })},
		{sum, "IS-LEVEL", "first token", wholeWeight(func(d []float64) float64 { return zeroAbove(math.Exp(d[0]), 3) })},
		{mean, "", "", wholeWeight(func(d []float64) float64 { return math.Min(math.Exp(meanOf(d)), 2) })},
		{mean, "IS-LEVEL", "the largest", wholeWeight(func(d []float64) float64 {
			most := math.Inf(-1)
			for _, x := range d {
				most = math.Max(most, x)
			}
			return math.Min(math.Exp(most), 2)
		})},
		{mean, "IS-LEVEL", "tokens of tools", func(d []float64, mask []bool) []float64 {
			first, last := firstLast(mask)
			w := math.Min(math.Exp(meanOf(d[first:last+1])), 2)
			return mapped(d, func(float64) float64 { return w })
		}},
	} {
		t.Run(c.words, func(t *testing.T) {
			o := stage.Judge(ch, weightedBy(c.of), c.set)
			if c.id == "" {
				require.Equal(t, check.Pass, o.Verdict, o.Lacking())
				return
			}
			requireName(t, o, c.id, c.words)
		})
	}
	for words, sign := range map[string]float64{"negative are not bounded": -1, "positive are not bounded": 1} {
		t.Run(words, func(t *testing.T) {
			row := -1
			b := weightedBy(func(d []float64, _ []bool) []float64 {
				row++
				adv := updated(func(float64, float64) float64 { return 0 }).Row("advantages")[row]
				return mapped(d, func(d float64) float64 {
					x := math.Exp(d)
					return x * float64(boolToInt(adv*sign > 0 || x >= 0.8 && x <= 1.3))
				})
			})
			requireName(t, stage.Judge(ch, b, band), "IS-BOUND-FORM", words)
		})
	}
	noise := rand.New(rand.NewPCG(5, 6))
	t.Run("noise", func(t *testing.T) {
		requireNoName(t, stage.Judge(ch, weightedBy(eachWeight(func(float64) float64 { return noise.Float64() + 0.5 })), band))
	})
}

// What the tokens of tools are taken for is a program's own choice, unless the engine has no log-probs there: a fill is nobody's.
func TestWeightsOfFilledTokens(t *testing.T) {
	ch := stage.Find("ratio/is_weights")
	for _, fill := range []bool{false, true} {
		b := weightedBy(eachWeight(math.Exp))
		gen := b.Token("logp_gen")
		for i := range gen {
			if fill && !b.Mask[i] {
				gen[i] = 0
			}
		}
		set := weightSet(t, "tis.level", "seq_sum", "tis.rule", "zero_outside", "tis.high", "3", "tis.low", "none")
		var own []bool
		for _, e := range weightEdits(stage.Judge(ch, b, set)) {
			if strings.HasSuffix(e.title, "tokens of tools included") {
				own = append(own, e.own)
			}
		}
		require.Equal(t, []bool{!fill, !fill}, own)
	}
}
