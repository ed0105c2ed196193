package fault

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// A slip of the moments that whitening takes is named by itself, and is wrong whatever the run declares; moments of other rows are a form that a program may have.
func TestMomentsOfWhitening(t *testing.T) {
	p, _, err := convention.Lookup("verl-ppo@0.9")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"gae.gamma": "0.97", "gae.lambda": "0.9"} {
		set = set.With(name, parsed(name, x), "test")
	}
	passedBy := func(own, behind, m float64) float64 { return own*m + (1-m)*behind }
	cut := false // into two micro-batches, behind the whitening
	white := func(of func(rows [][]float64, n, cells, mean, square float64) (m, s float64)) *stage.Outcome {
		b, set := rolledOut(true, overHoles(passedBy, passedBy)), set
		if cut {
			b.Files = []dump.FileInfo{{Hi: 4, Cols: b.Cols}, {Lo: 4, Hi: b.Rows, Cols: b.Cols, MicroBatch: 1}}
			for r := 4; r < b.Rows; r++ {
				b.Origin[r].File = 1
			}
			b.Meta.MicroBatches, set = 2, set.With("whiten.scope", parsed("whiten.scope", "minibatch"), "test")
		}
		adv := b.Token("advantages")
		rows := make([][]float64, b.Rows)
		var n, sum, square float64
		for i, in := range b.Mask {
			if in {
				rows[i/b.Cols] = append(rows[i/b.Cols], adv[i])
				n, sum = n+1, sum+adv[i]
			}
		}
		for i, in := range b.Mask {
			if in {
				square += (adv[i] - sum/n) * (adv[i] - sum/n)
			}
		}
		m, s := of(rows, n, float64(len(b.Mask)), sum/n, square)
		for i, in := range b.Mask {
			if adv[i] = 0; in {
				adv[i] = float64(float32((b.Token("returns")[i] - b.Token("values")[i] - m) / s))
			}
		}
		return stage.Judge(stage.Find("gae/advantage"), b, set)
	}
	for _, c := range []struct {
		words string
		of    func(rows [][]float64, n, cells, mean, square float64) (m, s float64)
	}{
		{"by the number of tokens", func(_ [][]float64, n, cells, mean, square float64) (m, s float64) {
			return mean, math.Sqrt((square + (cells-n)*mean*mean) / n)
		}},
		{"number of rows, R/(R − 1)", func(rows [][]float64, n, _, mean, square float64) (m, s float64) {
			return mean, math.Sqrt(square / n * float64(len(rows)) / float64(len(rows)-1))
		}},
		{"behind the division", func(_ [][]float64, n, _, mean, square float64) (m, s float64) {
			s = math.Sqrt(square / (n - 1))
			return mean * s, s
		}},
		{"multiplied by (n − 1)/n", func(_ [][]float64, n, _, mean, square float64) (m, s float64) {
			return mean, math.Sqrt(square / n * (n - 1) / n)
		}},
		{"divided by the mean absolute deviation", func(rows [][]float64, n, _, mean, _ float64) (m, s float64) {
			return mean, total(mapped(slices.Concat(rows...), func(x float64) float64 { return math.Abs(x - mean) })) / n * math.Sqrt(n/(n-1))
		}},
		{"divided by the deviation of the returns", func(_ [][]float64, n, _, mean, _ float64) (m, s float64) {
			var returns []float64
			b := rolledOut(true, overHoles(passedBy, passedBy))
			for i := range b.Tokens() {
				returns = append(returns, b.Token("returns")[i])
			}
			return mean, math.Sqrt(squares(returns) / (n - 1))
		}},
		{"those of the first half of the responses", func(rows [][]float64, _, _, _, _ float64) (m, s float64) {
			half := slices.Concat(rows[:len(rows)/2]...)
			return meanOf(half), math.Sqrt(squares(half) / float64(len(half)-1))
		}},
		{"the deviation of all is that of the second half", func(rows [][]float64, _, _, mean, _ float64) (m, s float64) {
			half := slices.Concat(rows[len(rows)/2:]...)
			return mean, math.Sqrt(squares(half) / float64(len(half)-1))
		}},
		{"those of the first tokens of the responses", func(rows [][]float64, _, _, _, _ float64) (m, s float64) {
			first := oneOfRows(rows, func(row []float64) float64 { return row[0] })
			return meanOf(first), math.Sqrt(squares(first) / float64(len(first)))
		}},
		{"the mean of all is that of the last tokens of the responses", func(rows [][]float64, n, _, _, square float64) (m, s float64) {
			return meanOf(oneOfRows(rows, func(row []float64) float64 { return row[len(row)-1] })), math.Sqrt(square / n)
		}},
		{"n/(n − 1) times the mean square", func(_ [][]float64, n, _, mean, square float64) (m, s float64) {
			return mean, math.Sqrt((square + n*mean*mean) / (n - 1))
		}},
		{"root of the deviation", func(_ [][]float64, n, _, mean, square float64) (m, s float64) {
			return mean, math.Sqrt(math.Sqrt(square / (n - 1)))
		}},
	} {
		o := white(c.of)
		id := "WHITEN-FORM"
		if strings.Contains(c.words, "half") || strings.Contains(c.words, "tokens of the responses") {
			id = "WHITEN-SCOPE"
		}
		requireName(t, o, id, c.words)
		require.False(t, Explain(o)[0].Hypothesis.Relative, c.words)
	}
	holed := white(func(_ [][]float64, n, _, mean, square float64) (m, s float64) {
		return mean, math.Sqrt(square / (n - 1))
	})
	seen := count(attendedCells(holed.Case.B))
	require.Greater(t, seen, count(holed.Case.B.Mask))
	for _, all := range []bool{true, false} {
		requireName(t, white(func(_ [][]float64, n, _, mean, square float64) (m, s float64) {
			m = mean * n / seen
			if square += n * (mean - m) * (mean - m); all {
				return m, math.Sqrt(square / seen)
			}
			return m, math.Sqrt(square / (n - 1))
		}), "WHITEN-FORM", map[bool]string{true: "sums over the tokens are divided by the number of all that attention shows", false: "the mean is the sum over the tokens by the number of all that attention shows"}[all])
	}
	cut = true
	requireName(t, white(func(_ [][]float64, n, cells, mean, square float64) (m, s float64) {
		m = mean * n / cells
		return m, math.Sqrt((square + n*(mean-m)*(mean-m)) / n)
	}), "WHITEN-FORM", "by the number of all cells")
	cut = false
	of := white(func(_ [][]float64, n, _, mean, square float64) (m, s float64) {
		return mean, math.Sqrt(square/n*(n-1)/n) + 1e-4
	})
	requireName(t, of, "WHITEN-FORM", "multiplied by (n − 1)/n") // a profile says what ε is, and another may be meant
	said := of.Case.Set.With("whiten.eps", of.Case.Set.Value("whiten.eps"), "test")
	requireName(t, stage.Judge(of.Check, of.Case.B, said), "WHITEN-FORM", "another mean")
	o := white(func(_ [][]float64, n, _, mean, square float64) (m, s float64) {
		return mean + 0.0123, 1.07 * math.Sqrt(square/n)
	})
	requireName(t, o, "WHITEN-FORM", "another mean")
	require.True(t, Explain(o)[0].Hypothesis.Relative)
}

func oneOfRows(rows [][]float64, of func(row []float64) float64) (x []float64) {
	for _, row := range rows {
		x = append(x, of(row))
	}
	return x
}

// Moments over more cells than the tokens are named by the cells and by what stands in them. Padding is in those of no program that has a mask, gaps may be.
func TestMomentsOverOtherCells(t *testing.T) {
	p, _, err := convention.Lookup("verl-ppo@0.9")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"gae.gamma": "0.97", "gae.lambda": "0.9"} {
		set = set.With(name, parsed(name, x), "test")
	}
	passedBy := func(own, behind, m float64) float64 { return own*m + (1-m)*behind }
	for words, take := range map[string]func(t, last, cols int) (in bool, x float64){
		"mean and variance are over all cells up to the last token, gaps between tokens included, with 0": func(t, last, _ int) (bool, float64) { return t < last, 0 },
		"all cells, padding included, with the dumped returns less the values":                            func(t, _, _ int) (bool, float64) { return true, 0.3 + 0.1*float64(t) },
		"the tokens and the cell behind the last of them":                                                 func(t, last, _ int) (bool, float64) { return t == last+1, 0.3 + 0.1*float64(t) },
	} {
		b := rolledOut(true, overHoles(passedBy, passedBy))
		adv, ret, v := b.Token("advantages"), b.Token("returns"), b.Token("values")
		var n, sum, square float64
		var all []float64
		for r := range b.Rows {
			_, last := firstLast(b.Mask[r*b.Cols : (r+1)*b.Cols])
			for t := range b.Cols {
				i := r*b.Cols + t
				in, x := take(t, last, b.Cols)
				if b.Mask[i] {
					in, x = true, ret[i]-v[i]
				} else {
					ret[i] = float64(float32(v[i] + x))
				}
				if in {
					all, n, sum = append(all, x), n+1, sum+x
				}
			}
		}
		for _, x := range all {
			square += (x - sum/n) * (x - sum/n)
		}
		for i, in := range b.Mask {
			if adv[i] = 0; in {
				adv[i] = float64(float32((ret[i] - v[i] - sum/n) / math.Sqrt(square/n)))
			}
		}
		o := stage.Judge(stage.Find("gae/advantage"), b, set)
		requireName(t, o, "WHITEN-PADS", words)
		require.Equal(t, strings.Contains(words, "gaps"), Explain(o)[0].Hypothesis.Relative, words)
	}
}
